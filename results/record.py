"""The record of one measurement and the environment it was taken in.

Both are plain data: what was counted and what was timed, in SI base units, with `None` for what is not known.
Nothing judged is kept here (no MFU, no verdict), so that an old run can be judged anew by a better formula.

Schema history
    1   first version
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from datetime import datetime
from functools import cache
from sys import intern
from typing import Any

SCHEMA = 1

STATUSES = ("ok", "skipped", "invalid", "failed")
METHODS = ("graph", "events", "host")
CACHE_STATES = ("cold", "warm")
DEVICE_TYPES = ("cuda", "rocm", "mps", "cpu")
DTYPES = ("fp64", "fp32", "tf32", "fp16", "bf16", "fp8e4m3", "fp8e5m2", "int8", "nvfp4", "int32")
"""All that `roofline.work` knows the width of; a test keeps the two alike."""

MAX_COUNT = 10**30
"""No count and no extent is larger: at 1 PFLOP/s, so many FLOPs take thirty million years. What is read back must be
a number that arithmetic can take, and a float ends at 1.8e308."""

MIN_TIME_S, MAX_TIME_S = 1e-15, 1e12
"""What can be a time: from what no clock resolves to thirty thousand years. Sums and rates of such times are finite."""

ROUNDING = 1e-6
"""By how much a median may lie outside its samples, as a fraction: another writer may keep fewer digits."""


class RecordError(ValueError):
    """A line of a run file does not hold what its key promises."""


@dataclass(frozen=True, kw_only=True)
class Environment:
    """Where and with what a run was taken; the first line of a run file."""

    run_id: str
    """Unique name of the run, also the end of its file's name."""
    started_at: str
    """Start of the run, UTC, ISO 8601."""
    argv: tuple[str, ...]
    """The command line that reproduces the run."""
    device: dict[str, Any]
    """At least `slug`, `name` and `type` (one of `DEVICE_TYPES`)."""
    host: dict[str, Any] = field(default_factory=dict)
    versions: dict[str, Any] = field(default_factory=dict)
    """Python, torch, triton, CUDA, driver, ...: what each calls itself, or None."""
    git: dict[str, Any] = field(default_factory=dict)
    """`sha` and `dirty` of the code that measured."""
    hardware: dict[str, Any] = field(default_factory=dict)
    """The ceilings used, each with its kind and source, as `roofline.ceilings` writes them."""
    settings: dict[str, Any] = field(default_factory=dict)
    """Seed, fill, cache and budget of the run."""
    preflight: dict[str, Any] = field(default_factory=dict)
    """What the clock itself costs: tick, empty events, launch; seconds."""
    schema: int = SCHEMA
    extra: dict[str, Any] = field(default_factory=dict)
    """Keys of a file that this version does not know; kept and written back as they were."""

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON object of this environment."""
        return {"kind": "environment"} | _known(self) | self.extra

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Environment:
        """Read an environment line.

        Raises:
            RecordError: a required key is missing, or a value has the wrong type.
        """
        schema = _read(data, "schema", _whole)
        if schema is None or schema < 1:
            raise RecordError("'schema' is missing or below 1")
        if schema > SCHEMA:
            raise RecordError(f"schema {schema} is newer than {SCHEMA}, the newest that is read: update Ridgepoint")
        device = _read(data, "device", _mapping, required=True)
        for key in ("slug", "name", "type"):
            if not isinstance(device.get(key), str):
                raise RecordError(f"'device.{key}' must be text, found {device.get(key)!r}")
        if device["type"] not in DEVICE_TYPES:
            raise RecordError(f"'device.type' must be one of {_listed(DEVICE_TYPES)}, found {device['type']!r}")
        return cls(
            run_id=_read(data, "run_id", _file_word, required=True),
            started_at=_read(data, "started_at", _moment, required=True),
            argv=_read(data, "argv", _texts, required=True),
            device=device,
            host=_read(data, "host", _mapping) or {},
            versions=_read(data, "versions", _mapping) or {},
            git=_read(data, "git", _mapping) or {},
            hardware=_read(data, "hardware", _mapping) or {},
            settings=_read(data, "settings", _mapping) or {},
            preflight=_read(data, "preflight", _mapping) or {},
            schema=schema,
            extra=_unknown(cls, data),
        )


@dataclass(frozen=True, kw_only=True)
class Record:
    """One case computed by one provider: what was counted, what was timed, what was seen meanwhile."""

    op: str
    provider: str
    dtype: str
    shape: dict[str, int]
    """Extent of each axis, for example `{"m": 4096, "n": 4096, "k": 4096}`."""
    case: str
    """The shape in one word, for example `4096x4096x4096`."""
    status: str
    """`ok`; `skipped` (not run), `invalid` (ran, but the result or the time is wrong), `failed` (raised)."""
    reason: str | None = None
    """Why the status is not `ok`."""
    options: dict[str, Any] = field(default_factory=dict)
    """What else tells this case from another: layout, batch."""
    flops: int | None = None
    """Floating-point operations of one launch; a fused multiply-add counts as 2."""
    bytes_read: int | None = None
    """Compulsory bytes read by one launch: each input once."""
    bytes_written: int | None = None
    """Compulsory bytes written by one launch: each output once."""
    samples_s: tuple[float, ...] = ()
    """Seconds per launch, one value a sample, in the order taken; none is dropped. Empty where the status is `ok`:
    only the median was kept, and the file has null."""
    launches_per_sample: int | None = None
    method: str | None = None
    """How the clock was read: `graph` (CUDA graph replay), `events` (CUDA events), `host` (host clock)."""
    cache: str | None = None
    """`cold`: every launch finds its inputs outside the last-level cache; `warm`: the same inputs again."""
    copies: int | None = None
    """Copies of the inputs that the launches went round."""
    fill: str | None = None
    """Distribution of the inputs: `uniform` in [-1, 1], `normal`, `zeros`."""
    median_s: float | None = None
    ci95_s: tuple[float, float] | None = None
    """95 % confidence interval of the median, seconds."""
    converged: bool | None = None
    """False: the cap was reached before the interval was as narrow as asked for."""
    warm_median_s: float | None = None
    """Median seconds of the same launches with their inputs in the cache, beside a cold median."""
    outliers: int | None = None
    """Samples further than 5 median absolute deviations from the median; they are kept."""
    settled: bool | None = None
    """False: clock, power or the time itself still moved when the warm-up reached its cap."""
    host_latency_s: float | None = None
    """Median seconds from call to finished result as the host sees it."""
    first_call_s: float | None = None
    """Seconds of the first call: loading, compiling, tuning."""
    flags: tuple[str, ...] = ()
    """Short warnings, for example `launch-limited`."""
    flag_reasons: dict[str, Any] = field(default_factory=dict)
    """For each flag a sentence with what was seen."""
    telemetry: dict[str, Any] = field(default_factory=dict)
    verified: dict[str, Any] = field(default_factory=dict)
    source_sha256: str | None = None
    """Hash of the text, of a kernel of ours with all that it imports of ours: tells two texts of one name apart."""
    op_sha256: str | None = None
    """Hash of the definition of the op that was measured: its inputs, formula and work, see `bench.harness.definition`.
    None for records of before, and where no op of ours was measured."""
    source_git: dict[str, Any] | None = None
    """`sha` and `dirty` of the repository that holds a user's kernel; None where none does, and for kernels of ours."""
    compiled: dict[str, Any] | None = None
    """Compiler options of a Triton kernel of this project, among them `enable_fp_fusion`; None where not known."""
    extra: dict[str, Any] = field(default_factory=dict)
    """Keys of a file that this version does not know; kept and written back as they were."""

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON object of this record."""
        without_samples = {"samples_s": None} if self.status == "ok" and not self.samples_s else {}
        return {"kind": "record"} | _known(self) | without_samples | self.extra

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Record:
        """Read a record line.

        Raises:
            RecordError: a required key is missing, a value has the wrong type, a time or a count cannot be one
                (negative, not finite, text), or two values contradict each other.
        """
        return cls(**checked_fields(data), extra=_unknown(cls, data))


def checked_fields(data: Mapping[str, Any], names: Iterable[str] | None = None) -> dict[str, Any]:
    """Return the values of a record line by field, without those that are absent or null.

    Args:
        data: the JSON object of the line.
        names: fields to look at, `status`, `median_s` and `samples_s` among them; None for all.

    Raises:
        RecordError: as `Record.from_dict`, of these fields.
    """
    values = {}
    for key in _FIELDS if names is None else names:
        value = data.get(key)
        if value is None:
            if key in _REQUIRED:
                raise RecordError(f"'{key}' is missing")
            continue
        try:
            values[key] = _FIELDS[key](value)
        except (TypeError, ValueError) as error:
            raise _refused(key, value, error) from None
    _refuse_contradictions(values, data)
    return values


def _refuse_contradictions(values: Mapping[str, Any], data: Mapping[str, Any]) -> None:
    """Refuse values each of which can be, but not both."""
    median_s, samples_s = values.get("median_s"), values.get("samples_s")
    if values["status"] == "ok" and median_s is None:
        raise RecordError("'median_s' is missing although 'status' is 'ok'")
    if values["status"] == "ok" and data.get("samples_s") == []:
        raise RecordError("'samples_s' is empty although 'status' is 'ok'")
    if samples_s and median_s is not None:
        low, high = min(samples_s), max(samples_s)
        if not low * (1 - ROUNDING) <= median_s <= high * (1 + ROUNDING):
            raise RecordError(f"'median_s' must lie within 'samples_s', {low:g} to {high:g}, found {median_s:g}")


def _known(line: Environment | Record) -> dict[str, Any]:
    """Return the fields of a line as JSON values, without `extra`."""
    values = {f.name: getattr(line, f.name) for f in fields(line) if f.name != "extra"}
    return {key: list(value) if isinstance(value, tuple) else value for key, value in values.items()}


def _unknown(cls: type, data: Mapping[str, Any]) -> dict[str, Any]:
    known = _known_keys(cls)
    return {} if data.keys() <= known else {key: value for key, value in data.items() if key not in known}


@cache
def _known_keys(cls: type) -> frozenset[str]:
    return frozenset({f.name for f in fields(cls)} - {"extra"} | {"kind"})


def _read(data: Mapping[str, Any], key: str, check: Any, required: bool = False) -> Any:
    """Return `data[key]` after `check`, None where it is absent or null."""
    value = data.get(key)
    if value is None:
        if required:
            raise RecordError(f"'{key}' is missing")
        return None
    try:
        return check(value)
    except (TypeError, ValueError) as error:
        raise _refused(key, value, error) from None


def _refused(key: str, value: Any, error: Exception) -> RecordError:
    shown = repr(value)
    return RecordError(f"'{key}' must be {error}, found {shown if len(shown) <= 60 else shown[:57] + '...'}")


def _listed(words: tuple[str, ...]) -> str:
    return ", ".join(words)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError("text")
    return value


def _name(value: Any) -> str:
    # Records share few names: one text for all of them is less to keep, to hash and to send to another process.
    return intern(_text(value))


def _file_word(value: Any) -> str:
    if not isinstance(value, str) or value in ("", ".", "..") or any(mark in value for mark in "/\\\0"):
        raise TypeError("text without a slash, a backslash or a zero byte")
    return value


def _moment(value: Any) -> str:
    try:
        datetime.fromisoformat(value)
    except (TypeError, ValueError):
        raise TypeError("a time as ISO 8601 writes it, such as 2026-11-20T21:03:12+00:00") from None
    return str(value)


def _texts(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise TypeError("a list of texts")
    return tuple(value)


def _mapping(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise TypeError("an object")
    return value


def _truth(value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError("true or false")
    return value


def _whole(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MAX_COUNT:
        raise TypeError("a whole number from 0 to 1e30")
    return value


def _extents(value: Any) -> dict[str, int]:
    if not isinstance(value, dict) or not value:
        raise TypeError("an object of axes")
    for extent in value.values():
        if isinstance(extent, bool) or not isinstance(extent, int) or not 1 <= extent <= MAX_COUNT:
            raise TypeError("an object of axes, each a whole number from 1 to 1e30")
    return value


def _time(value: Any) -> float:
    # A whole number may be too large for a float, so it is compared before it becomes one.
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not MIN_TIME_S <= value <= MAX_TIME_S:
        raise TypeError(f"a time in seconds, {MIN_TIME_S:g} to {MAX_TIME_S:g}")
    return float(value)


def _times(value: Any) -> tuple[float, ...]:
    if not isinstance(value, list):
        raise TypeError("a list of times")
    # Almost every line has floats alone, which need no look at each of them; a NaN shows in their sum.
    if set(map(type, value)) == {float} and min(value) >= MIN_TIME_S and max(value) <= MAX_TIME_S and sum(value) > 0:
        return tuple(value)
    try:
        return tuple(_time(item) for item in value)
    except TypeError:
        raise TypeError(f"a list of times in seconds, each {MIN_TIME_S:g} to {MAX_TIME_S:g}") from None


def _interval(value: Any) -> tuple[float, float]:
    if not isinstance(value, list) or len(value) != 2:
        raise TypeError("a pair of times")
    low, high = _times(value)
    if low > high:
        raise TypeError("a pair of times, the lower first")
    return low, high


def _one_of(words: tuple[str, ...]) -> Any:
    known = {word: word for word in words}

    def check(value: Any) -> str:
        word = known.get(value) if isinstance(value, str) else None
        if word is None:
            raise ValueError(f"one of {_listed(words)}")
        return word

    return check


_FIELDS: dict[str, Any] = {
    "op": _name,
    "provider": _name,
    "dtype": _one_of(DTYPES),
    "shape": _extents,
    "case": _text,
    "status": _one_of(STATUSES),
    "reason": _text,
    "options": _mapping,
    "flops": _whole,
    "bytes_read": _whole,
    "bytes_written": _whole,
    "samples_s": _times,
    "launches_per_sample": _whole,
    "method": _one_of(METHODS),
    "cache": _one_of(CACHE_STATES),
    "copies": _whole,
    "fill": _name,
    "median_s": _time,
    "ci95_s": _interval,
    "converged": _truth,
    "warm_median_s": _time,
    "outliers": _whole,
    "settled": _truth,
    "host_latency_s": _time,
    "first_call_s": _time,
    "flags": _texts,
    "flag_reasons": _mapping,
    "telemetry": _mapping,
    "verified": _mapping,
    "source_sha256": _text,
    "op_sha256": _text,
    "source_git": _mapping,
    "compiled": _mapping,
}
"""What each field of a record must be, in the order in which they are looked at."""

_REQUIRED = frozenset({"op", "provider", "dtype", "shape", "case", "status"})
