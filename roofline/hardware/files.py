"""Read a TOML file of hardware facts, and check every value before anything is computed from it.

A file may be torn, foreign or mistyped. Whatever is wrong with it is reported with the file, the key, the value and
what is allowed, because one peak in the wrong unit makes every utilization after it wrong in silence.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Annotated, Any, NoReturn

from msgspec import Meta, Struct, defstruct

from results.checked import KeyMismatchError, WrongValueError, converted, one_of, shortened

PEAK_KEYS = (
    "fp64",
    "fp64_tensor",
    "fp32",
    "fp32_tensor",
    "fp16_vector",
    "tf32_tensor",
    "fp16_tensor",
    "fp16_tensor_fp16acc",
    "bf16_tensor",
    "fp8_tensor",
    "fp8_tensor_fp16acc",
    "fp6_tensor",
    "fp4_tensor",
    "int8_tensor",
    "int4_tensor",
)
"""What a peak or a rate may be of. `_tensor`: tensor core (matrix core on AMD), accumulating in fp32 unless
`_fp16acc` follows; no such suffix, or `_vector`: CUDA core (VALU on AMD)."""

PROVENANCE = {
    "vendor": "a page of the vendor, read",
    "datasheet": "published by the vendor",
    "vendor-forum": "the vendor's developer forum",
    "vendor-adjacent": "somebody close to the vendor, or with the vendor's parts in hand",
    "copy": "a third party's copy of a vendor's sheet",
    "copy+device": "such a copy, beside what a device reports",
    "device": "reported by or measured on a real device",
    "device-table": "the table of names shipped with the driver",
    "db": "a database of specifications",
    "lib": "a value in a public library",
    "lib-doc": "the documentation of a public library",
    "thread": "an issue or pull request",
    "derived": "arithmetic on other values",
    "assumed": "taken from a close relative, not confirmed",
    "recalled": "general knowledge; the vendor's document was not read again",
    "leaked": "a leaked table that others repeat",
}
"""The words that open each source and each kind, so that a reader sees how far to trust a value."""

CONFIDENCES = ("high", "medium", "low")
LARGEST_FILE_BYTES = 1 << 20
"""A file of hardware facts has a few kilobytes; a larger one is something else."""


class GpuFileError(ValueError):
    """A file of hardware facts cannot be read, or holds a value that is not allowed."""


def _range(low: float, high: float, unit: str) -> Meta:
    """Return the numbers that a key may hold: wide, but narrow enough to catch a wrong unit."""
    what = "a whole number" if isinstance(low, int) else "a number"
    return Meta(ge=low, le=high, description=f"{what} from {low:g} to {high:g} ({unit})")


_PRINTED = r"(?=.*\S)[^\x00-\x1f\x7f-\x9f\u2028\u2029]+\Z"
Text = Annotated[
    str, Meta(pattern=f"^{_PRINTED}", description="text in one line, not empty, without control characters")
]
Source = Annotated[
    str,
    Meta(
        pattern=f"^({'|'.join(map(re.escape, PROVENANCE))}): {_PRINTED}",
        description=f"'WORD: text' with one of {', '.join(PROVENANCE)}",
    ),
]
PeakKey = Annotated[str, one_of(PEAK_KEYS)]
Clock = Annotated[float, _range(1e8, 1e10, "Hz")]
Bandwidth = Annotated[float, _range(1e9, 1e15, "bytes/s")]
Peak = Annotated[float, _range(1e10, 1e18, "FLOP/s")]
Rate = Annotated[int, _range(1, 1 << 20, "FLOPs per clock per SM")]
Memory = Annotated[int, _range(1 << 28, 1 << 45, "bytes")]
Cache = Annotated[int, _range(1 << 15, 1 << 34, "bytes")]
Texts = Annotated[list[Text], Meta(description="a list of texts")]
Sources = Annotated[list[Source], Meta(min_length=1, description="a list of at least one text")]
PeakKeys = Annotated[list[PeakKey], Meta(description=f"a list of {', '.join(PEAK_KEYS)}")]
Table = Annotated[dict[str, Any], Meta(min_length=1, description="a table with at least one value")]


class GpuFile(Struct, forbid_unknown_fields=True, kw_only=True):
    """The keys of one GPU's file; `roofline.hardware.gpu.Gpu` says what they mean."""

    name: Text
    driver_names: Annotated[list[Text], Meta(min_length=1, description="a list of at least one text")]
    vendor: Text
    architecture: Text
    chip: Text | None = None
    compute_capability: Text | None = None
    rate_class: Text | None = None
    sm_count: Annotated[int, _range(1, 10_000, "SMs or CUs")]
    confidence: Annotated[str, one_of(CONFIDENCES)]
    tensor_clock_hz: Clock | None = None
    boost_clock_hz: Clock | None = None
    max_clock_hz: Clock | None = None
    memory_type: Text | None = None
    memory_bytes: Memory
    memory_reported_bytes: Memory | None = None
    memory_bandwidth_bytes_per_s: Bandwidth
    bandwidth_from_device_clock_bytes_per_s: Bandwidth | None = None
    l2_bytes: Cache | None = None
    llc_bytes: Cache | None = None
    tdp_w: Annotated[float, _range(1.0, 20_000.0, "W")] | None = None
    link_bytes_per_s: Annotated[float, _range(0.0, 1e14, "bytes/s, 0 where there is no such link")] | None = None
    pcie_gen: Annotated[int, _range(1, 10, "generation")] | None = None
    pcie_lanes: Annotated[int, _range(1, 32, "lanes")] | None = None
    unsupported: PeakKeys = []
    capped: PeakKeys = []
    sources: Sources
    notes: Texts = []
    kinds: dict[str, Any] = {}
    peaks_flops_per_s: Table


class RateEntry(Struct, forbid_unknown_fields=True, kw_only=True):
    """The keys of one rate class."""

    description: Text
    sources: Sources
    notes: Texts = []
    boost_clock_keys: PeakKeys = []
    flops_per_clock_per_sm: Table


class RatesFile(Struct, forbid_unknown_fields=True, kw_only=True):
    """The keys of the file of rate classes."""

    boost_clock_keys: PeakKeys
    classes: Annotated[dict[str, Any], Meta(description="a table of rate classes")]


Peaks = defstruct("Peaks", [(key, Peak | None, None) for key in PEAK_KEYS], forbid_unknown_fields=True)
Rates = defstruct("Rates", [(key, Rate | None, None) for key in PEAK_KEYS], forbid_unknown_fields=True)


def refuse(path: Path, key: str, value: object, allowed: str) -> NoReturn:
    """Raise the error for one value of one file.

    Raises:
        GpuFileError: always.
    """
    raise GpuFileError(f"{path}: {key} = {shortened(value)} is not allowed; allowed: {allowed}") from None


def read_gpu_file(path: Path) -> dict[str, Any]:
    """Return the values of one GPU's file, all checked; a key that the file leaves out is left out here.

    Raises:
        GpuFileError: the file cannot be read, or a value is not allowed.
    """
    data = _read_toml(path)
    _check(path, "", data, GpuFile)
    peaks = data["peaks_flops_per_s"]
    _check(path, "peaks_flops_per_s.", peaks, Peaks)
    for key in ("driver_names", "unsupported", "capped", "sources", "notes"):
        _refuse_twice(path, key, data.get(key, []))
    for item in data.get("unsupported", []):
        if item in peaks:
            refuse(path, "unsupported", item, "a key without a peak in peaks_flops_per_s")
    for item in data.get("capped", []):
        if item not in peaks:
            refuse(path, "capped", item, "a key of peaks_flops_per_s")
    for key, kind in data.get("kinds", {}).items():
        if key not in data and key not in peaks:
            raise GpuFileError(f"{path}: kinds.{key} describes a value that the file does not have")
        _check(path, f"kinds.{key}", kind, Source)
    return data


def read_rates_file(path: Path) -> dict[str, Any]:
    """Return the rate classes of a file by name, all checked, each with its `boost_clock_keys`.

    Raises:
        GpuFileError: the file cannot be read, or a value is not allowed.
    """
    data = _read_toml(path)
    _check(path, "", data, RatesFile)
    for name, entry in data["classes"].items():
        if not isinstance(entry, dict):
            refuse(path, f"classes.{name}", entry, "a table")
        _check(path, f"classes.{name}.", entry, RateEntry)
        _check(path, f"classes.{name}.flops_per_clock_per_sm.", entry["flops_per_clock_per_sm"], Rates)
        _refuse_twice(path, f"classes.{name}.sources", entry["sources"])
        entry.setdefault("boost_clock_keys", data["boost_clock_keys"])
        entry.setdefault("notes", [])
    return dict(data["classes"])


def _check(path: Path, prefix: str, values: object, kind: Any) -> None:
    try:
        converted(values, kind)
    except WrongValueError as error:
        refuse(path, prefix + error.place, error.found, error.allowed)
    except KeyMismatchError as error:
        if error.is_missing:
            raise GpuFileError(f"{path}: {prefix}{error.place} is missing") from None
        known = ", ".join(kind.__struct_fields__)
        raise GpuFileError(f"{path}: unknown key {prefix + error.place!r}; known: {known}") from None


def _refuse_twice(path: Path, key: str, texts: list[str]) -> None:
    for index, text in enumerate(texts):
        if text in texts[:index]:
            refuse(path, f"{key}[{index}]", text, "each text once")


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        if path.stat().st_size > LARGEST_FILE_BYTES:
            raise GpuFileError(f"{path}: larger than {LARGEST_FILE_BYTES} bytes; this is no file of hardware facts")
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise GpuFileError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise GpuFileError(f"{path}: not a text file in UTF-8") from None
    except tomllib.TOMLDecodeError as error:
        raise GpuFileError(f"{path}: not valid TOML: {error}") from None
    except GpuFileError:
        raise
    except (ValueError, RecursionError):  # an integer of thousands of digits; brackets nested without end
        raise GpuFileError(f"{path}: not valid TOML: a value is too long or nested too deeply") from None
