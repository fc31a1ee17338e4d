"""Read a TOML file of hardware facts, and check every value before anything is computed from it.

A file may be torn, foreign or mistyped. Whatever is wrong with it is reported with the file, the key, the value and
what is allowed, because one peak in the wrong unit makes every utilization after it wrong in silence.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

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


@dataclass(frozen=True)
class NumberRange:
    """The numbers that a key may hold. Wide, but narrow enough to catch a wrong unit."""

    low: float
    high: float
    unit: str
    is_whole: bool = False


_CLOCK = NumberRange(1e8, 1e10, "Hz")
_BANDWIDTH = NumberRange(1e9, 1e15, "bytes/s")
_PEAK = NumberRange(1e10, 1e18, "FLOP/s")
_RATE = NumberRange(1, 1 << 20, "FLOPs per clock per SM", is_whole=True)
_MEMORY = NumberRange(1 << 28, 1 << 45, "bytes", is_whole=True)
_CACHE = NumberRange(1 << 15, 1 << 34, "bytes", is_whole=True)

NUMBERS = {
    "sm_count": NumberRange(1, 10_000, "SMs or CUs", is_whole=True),
    "tensor_clock_hz": _CLOCK,
    "boost_clock_hz": _CLOCK,
    "max_clock_hz": _CLOCK,
    "memory_bytes": _MEMORY,
    "memory_reported_bytes": _MEMORY,
    "memory_bandwidth_bytes_per_s": _BANDWIDTH,
    "bandwidth_from_device_clock_bytes_per_s": _BANDWIDTH,
    "l2_bytes": _CACHE,
    "llc_bytes": _CACHE,
    "tdp_w": NumberRange(1, 20_000, "W"),
    "link_bytes_per_s": NumberRange(0, 1e14, "bytes/s, 0 where there is no such link"),
    "pcie_gen": NumberRange(1, 10, "generation", is_whole=True),
    "pcie_lanes": NumberRange(1, 32, "lanes", is_whole=True),
}
TEXTS = (
    "name",
    "vendor",
    "architecture",
    "chip",
    "compute_capability",
    "rate_class",
    "confidence",
    "memory_type",
)
LISTS = ("driver_names", "unsupported", "capped", "sources", "notes")
TABLES = ("kinds", "peaks_flops_per_s")
REQUIRED = (
    "name",
    "driver_names",
    "vendor",
    "architecture",
    "compute_capability",
    "sm_count",
    "confidence",
    "memory_bytes",
    "memory_bandwidth_bytes_per_s",
    "sources",
    "peaks_flops_per_s",
)


def refuse(path: Path, key: str, value: object, allowed: str) -> NoReturn:
    """Raise the error for one value of one file.

    Raises:
        GpuFileError: always.
    """
    shown = repr(value)
    shown = shown if len(shown) <= 60 else f"{shown[:57]}..."
    raise GpuFileError(f"{path}: {key} = {shown} is not allowed; allowed: {allowed}") from None


def read_gpu_file(path: Path) -> dict[str, Any]:
    """Return the values of one GPU's file, all checked; a key that the file leaves out is left out here.

    Raises:
        GpuFileError: the file cannot be read, or a value is not allowed.
    """
    data = _read_toml(path)
    known = (*TEXTS, *LISTS, *NUMBERS, *TABLES)
    _check_keys(path, "", data, known, REQUIRED)
    for key, value in data.items():
        if key in NUMBERS:
            _check_number(path, key, value, NUMBERS[key])
        elif key in TEXTS:
            _check_text(path, key, value)
        elif key in LISTS:
            _check_list(path, key, value)
    if data["confidence"] not in CONFIDENCES:
        refuse(path, "confidence", data["confidence"], ", ".join(CONFIDENCES))
    for index, source in enumerate(data["sources"]):
        _check_provenance(path, f"sources[{index}]", source)
    _check_table(path, "peaks_flops_per_s", data["peaks_flops_per_s"], PEAK_KEYS, _PEAK)
    _check_peak_lists(path, data)
    _check_kinds(path, data)
    return data


def read_rates_file(path: Path) -> dict[str, Any]:
    """Return the rate classes of a file by name, all checked, each with its `boost_clock_keys`.

    Raises:
        GpuFileError: the file cannot be read, or a value is not allowed.
    """
    data = _read_toml(path)
    keys = ("boost_clock_keys", "classes")
    _check_keys(path, "", data, keys, keys)
    _check_peak_names(path, "boost_clock_keys", data["boost_clock_keys"])
    if not isinstance(data["classes"], dict):
        refuse(path, "classes", data["classes"], "a table of rate classes")
    required = ("description", "sources", "flops_per_clock_per_sm")
    for name, entry in data["classes"].items():
        where = f"classes.{name}"
        if not isinstance(entry, dict):
            refuse(path, where, entry, "a table")
        _check_keys(path, f"{where}.", entry, (*required, "notes", "boost_clock_keys"), required)
        _check_text(path, f"{where}.description", entry["description"])
        entry.setdefault("boost_clock_keys", data["boost_clock_keys"])
        entry.setdefault("notes", [])
        _check_list(path, f"{where}.notes", entry["notes"])
        _check_peak_names(path, f"{where}.boost_clock_keys", entry["boost_clock_keys"])
        _check_list(path, f"{where}.sources", entry["sources"])
        for index, source in enumerate(entry["sources"]):
            _check_provenance(path, f"{where}.sources[{index}]", source)
        rates = entry["flops_per_clock_per_sm"]
        _check_table(path, f"{where}.flops_per_clock_per_sm", rates, PEAK_KEYS, _RATE)
    return dict(data["classes"])


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


def _check_keys(
    path: Path, prefix: str, data: Mapping[str, Any], known: tuple[str, ...], required: tuple[str, ...]
) -> None:
    for key in data:
        if key not in known:
            raise GpuFileError(f"{path}: unknown key {prefix + key!r}; known: {', '.join(known)}")
    for key in required:
        if key not in data:
            raise GpuFileError(f"{path}: {prefix}{key} is missing")


def _check_number(path: Path, key: str, value: object, allowed: NumberRange) -> None:
    is_number = isinstance(value, int) if allowed.is_whole else isinstance(value, int | float)
    if (
        not is_number
        or isinstance(value, bool)
        or not math.isfinite(value)  # type: ignore[arg-type]
        or not allowed.low <= value <= allowed.high  # type: ignore[operator]
    ):
        what = "a whole number" if allowed.is_whole else "a number"
        refuse(path, key, value, f"{what} from {allowed.low:g} to {allowed.high:g} ({allowed.unit})")


def _check_text(path: Path, key: str, value: object) -> None:
    if not isinstance(value, str) or not value.strip() or not value.isprintable():
        refuse(path, key, value, "text in one line, not empty, without control characters")


def _check_list(path: Path, key: str, value: object) -> None:
    if not isinstance(value, list):
        refuse(path, key, value, "a list of texts")
    for index, item in enumerate(value):
        _check_text(path, f"{key}[{index}]", item)
        if item in value[:index]:
            refuse(path, f"{key}[{index}]", item, "each text once")
    if not value and key.endswith(("driver_names", "sources")):
        refuse(path, key, value, "at least one text")


def _check_provenance(path: Path, key: str, value: str) -> None:
    word, colon, rest = value.partition(": ")
    if not colon or word not in PROVENANCE or not rest.strip():
        refuse(path, key, value, f"'WORD: text' with one of {', '.join(PROVENANCE)}")


def _check_table(path: Path, key: str, value: object, known: tuple[str, ...], allowed: NumberRange) -> None:
    if not isinstance(value, dict) or not value:
        refuse(path, key, value, "a table with at least one value")
    _check_keys(path, f"{key}.", value, known, ())
    for name, number in value.items():
        _check_number(path, f"{key}.{name}", number, allowed)


def _check_peak_names(path: Path, key: str, value: object) -> None:
    _check_list(path, key, value)
    assert isinstance(value, list)
    for item in value:
        if item not in PEAK_KEYS:
            refuse(path, key, item, ", ".join(PEAK_KEYS))


def _check_peak_lists(path: Path, data: Mapping[str, Any]) -> None:
    """Check that what is unsupported has no peak, and that what is capped has one."""
    peaks = data["peaks_flops_per_s"]
    problems: tuple[tuple[str, Callable[[str], bool], str], ...] = (
        ("unsupported", lambda item: item in peaks, "a key without a peak in peaks_flops_per_s"),
        ("capped", lambda item: item not in peaks, "a key of peaks_flops_per_s"),
    )
    for key, is_wrong, allowed in problems:
        _check_peak_names(path, key, data.get(key, []))
        for item in data.get(key, []):
            if is_wrong(item):
                refuse(path, key, item, allowed)


def _check_kinds(path: Path, data: Mapping[str, Any]) -> None:
    kinds = data.get("kinds", {})
    if not isinstance(kinds, dict):
        refuse(path, "kinds", kinds, "a table")
    for key, kind in kinds.items():
        if key not in data and key not in data["peaks_flops_per_s"]:
            raise GpuFileError(f"{path}: kinds.{key} describes a value that the file does not have")
        _check_text(path, f"kinds.{key}", kind)
        _check_provenance(path, f"kinds.{key}", kind)
