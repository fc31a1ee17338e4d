"""The record of one measurement and the environment it was taken in.

Both are plain data: what was counted and what was timed, in SI base units, with `None` for what is not known.
Nothing judged is kept here (no MFU, no verdict), so that an old run can be judged anew by a better formula.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from datetime import datetime
from typing import Annotated, Any, Self

from msgspec import Meta, ValidationError, convert

SCHEMA = 1

STATUSES = ("ok", "skipped", "invalid", "failed")
METHODS = ("graph", "events", "host")
CACHE_STATES = ("cold", "warm", "partly-cold")
UNITS = ("matrix", "vector")
DTYPES = (
    *("fp64", "fp32", "tf32", "fp16", "bf16", "fp8e4m3", "fp8e5m2", "int8", "nvfp4"),
    *("int32", "int64", "int16", "uint8", "uint16", "uint32", "uint64", "bool"),
)
"""All that `roofline.work` knows the width of; a test keeps the two alike."""

MAX_COUNT = 2**63 - 1
"""No count and no extent is larger: at 1 PFLOP/s, so many FLOPs take two and a half hours."""

MIN_TIME_S, MAX_TIME_S = 1e-15, 1e12
"""What can be a time: from what no clock resolves to thirty thousand years. Sums and rates of such times are finite."""


def one_of(names: Iterable[str]) -> Meta:
    return Meta(pattern=f"^({'|'.join(names)})$")


Object = dict[str, Any]
Texts = tuple[str, ...]
Count = Annotated[int, Meta(ge=0, le=MAX_COUNT)]
Extents = Annotated[dict[str, Annotated[int, Meta(ge=1, le=MAX_COUNT)]], Meta(min_length=1)]
Time = Annotated[float, Meta(ge=MIN_TIME_S, le=MAX_TIME_S)]
Times = tuple[Time, ...]
FileWord = Annotated[str, Meta(pattern=r"^(?!\.\.?\Z)[^/\\\0]+\Z")]
OPTIONAL_KEYS = (
    ("units",),
    ("visits",),
    ("passed_over",),
    ("output",),
    ("process",),
    ("interleaved",),
    ("launched_kernels", "kernel_s", "eager_s"),
    ("flops_convention", "hardware_flops", "tokens_per_step", "memory_bytes"),
    ("counted_flops", "counted_flops_estimated", "counted_flops_by_operation", "notes"),
    ("phases_s",),
    ("device_s",),
    ("host_launch_s", "link_bytes_per_s"),
    ("copy_s", "compute_s"),
    ("waits_s", "major_faults", "file_bytes"),
)
"""Keys of a record that only some ops and commands have: those of one group stand in a line together or not at all."""

DEFINITION_PREFIX = "2:"
"""Beginning of a definition's hash. Only hashes of one method can be compared."""


class RecordError(ValueError):
    """A line of a run file lacks a required key, or a value has the wrong type or is out of range."""


@dataclass(frozen=True, kw_only=True)
class Line:
    """A line of a run file."""

    extra: Object = field(default_factory=dict)
    """Keys of a file that this version does not know; kept and written back as they were."""

    def to_dict(self) -> dict[str, Any]:
        own = Environment if isinstance(self, Environment) else Record  # a class below may know more than a file holds
        values = {f.name: getattr(self, f.name) for f in fields(own) if f.name != "extra"}
        values = {key: list(value) if isinstance(value, tuple) else value for key, value in values.items()}
        return {"kind": own.__name__.lower()} | values | self.extra

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Read a line; null is as absent, and unknown keys become `extra`.

        Raises:
            RecordError: a required key is missing, or a value has the wrong type or is out of range.
        """
        known = _KNOWN_KEYS[cls]
        values: dict[str, Any] = {key: value for key, value in data.items() if value is not None and key in known}
        if not data.keys() <= known:
            values["extra"] = {key: value for key, value in data.items() if key not in known}
        try:
            return convert(values, cls)
        except ValidationError as error:
            raise RecordError(str(error)) from None


@dataclass(frozen=True, kw_only=True)
class Environment(Line):
    """Where and with what a run was taken; the first line of a run file."""

    run_id: FileWord
    """Unique name of the run, also the end of its file's name."""
    started_at: str
    """Start of the run, UTC, ISO 8601."""
    argv: Texts
    """The command line that reproduces the run."""
    device: Object
    """At least `slug`, `name` and `type`: `cuda`, `rocm` or `cpu`."""
    host: Object = field(default_factory=dict)
    versions: Object = field(default_factory=dict)
    """Python, torch, triton, CUDA, driver, ...: what each calls itself, or None."""
    git: Object = field(default_factory=dict)
    """`sha` and `dirty` of the code that measured."""
    hardware: Object = field(default_factory=dict)
    """The ceilings used, each with its kind and source, as `roofline.machine` writes them."""
    settings: Object = field(default_factory=dict)
    """Seed, fill, cache and budget of the run."""
    preflight: Object = field(default_factory=dict)
    """What the clock itself costs: tick, empty events, launch; seconds."""
    schema: Annotated[int, Meta(ge=1)] = SCHEMA

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        schema = data.get("schema")
        if isinstance(schema, int) and schema > SCHEMA:
            raise RecordError(f"schema {schema} is newer than {SCHEMA}, the newest that is read: update Ridgepoint")
        if schema is None:  # which a new environment has by default, but no file may lack
            raise RecordError("'schema' is missing")
        environment = super().from_dict(data)
        for key in ("slug", "name", "type"):
            if not isinstance(environment.device.get(key), str):
                raise RecordError(f"'device.{key}' is missing or not text")
        try:
            datetime.fromisoformat(environment.started_at)
        except ValueError:
            raise RecordError(f"'started_at' is not a time of ISO 8601: {environment.started_at!r}") from None
        return environment


@dataclass(frozen=True, kw_only=True)
class Record(Line):
    """One case computed by one provider: what was counted, what was timed, what was seen meanwhile."""

    op: str
    provider: str
    dtype: Annotated[str, one_of(DTYPES)]
    shape: Extents
    """Extent of each axis, for example `{"m": 4096, "n": 4096, "k": 4096}`."""
    case: str
    """The shape in one word, for example `4096x4096x4096`."""
    status: Annotated[str, one_of(STATUSES)]
    """`ok`; `skipped` (not run), `invalid` (ran, but the result or the time is wrong), `failed` (raised)."""
    reason: str | None = None
    """Why the status is not `ok`."""
    options: Object = field(default_factory=dict)
    """What else tells this case from another: layout, batch."""
    flops: Count | None = None
    """Floating-point operations of one launch; a fused multiply-add counts as 2."""
    bytes_read: Count | None = None
    """Compulsory bytes read by one launch: each input once."""
    bytes_written: Count | None = None
    """Compulsory bytes written by one launch: each output once."""
    samples_s: Times = ()
    """Seconds per launch, one value a sample, in the order taken; none is dropped. Empty where the status is `ok`:
    only the median was kept, and the file has null."""
    launches_per_sample: Count | None = None
    method: Annotated[str, one_of(METHODS)] | None = None
    """How the clock was read: `graph` (CUDA graph replay), `events` (CUDA events), `host` (host clock)."""
    cache: Annotated[str, one_of(CACHE_STATES)] | None = None
    """`cold`: every launch finds its inputs outside the last-level cache; `warm`: the same inputs again;
    `partly-cold`: some of the inputs that it finds may be in the cache. Older files call that `warm` too."""
    copies: Count | None = None
    """Copies of the inputs that the launches went round."""
    fill: str | None = None
    """Distribution of the inputs: `uniform` in [-1, 1], `normal`, `zeros`."""
    median_s: Time | None = None
    visits: tuple[Count, ...] = ()
    """How many of `samples_s` belong to each visit: a row is visited several times during its run, among other rows.
    Empty: one visit, as in older files."""
    ci95_s: tuple[Time, Time] | None = None
    """95 % confidence interval of the median, seconds."""
    converged: bool | None = None
    """False: the cap was reached before the interval was as narrow as asked for."""
    warm_median_s: Time | None = None
    """Median seconds of the same launches with their inputs in the cache, beside a cold median."""
    outliers: Count | None = None
    """Samples further than 5 median absolute deviations from the median; they are kept."""
    settled: bool | None = None
    """False: clock, power or the time itself still moved when the warm-up reached its cap."""
    host_latency_s: Time | None = None
    """Median seconds from call to finished result as the host sees it."""
    first_call_s: Time | None = None
    """Seconds of the first call: loading, compiling, tuning."""
    flags: Texts = ()
    """Short warnings, for example `launch-limited`."""
    flag_reasons: Object = field(default_factory=dict)
    """For each flag a sentence with what was seen."""
    telemetry: Object = field(default_factory=dict)
    verified: Object = field(default_factory=dict)
    source_sha256: str | None = None
    """Hash of the text, of a kernel of ours with all that it imports of ours: tells two texts of one name apart."""
    op_sha256: str | None = None
    """Hash of the op's definition (inputs, formula, work), see `bench.harness.op_file`. Hashes without
    `DEFINITION_PREFIX` are of older versions, which hashed the whole file. None if the op has no source file."""
    source_git: Object | None = None
    """`sha` and `dirty` of the repository that holds a user's kernel; None where none does, and for kernels of ours."""
    compiled: Object | None = None
    """In records of older versions, compiler options of a Triton kernel of this project, which its text has too."""
    units: Annotated[str, one_of(UNITS)] | None = None
    """Which units the op runs on, by its definition; None for records of before: then its name tells."""
    passed_over: Object = field(default_factory=dict)
    """By newer version of the kernel, why it refused the case before this one took it."""
    output: str | None = None
    """What a user's function printed."""
    process: int | str | None = None
    """Which of the processes of a comparison measured it."""
    interleaved: Object = field(default_factory=dict)
    """How it took turns on the clock with others, see `results.compare.turns`."""
    launched_kernels: tuple[Object, ...] = ()
    """What one launch starts on a GPU, by torch's profiler: `name`, `count`, `time_s` of all of one kind, `grid` and
    `block` along each axis, `registers` of a thread and `shared_bytes` of a block."""
    kernel_s: Time | None = None
    """Seconds that the kernels of a launch run, by torch's profiler, beside `median_s`, in which the gaps between them
    are."""
    eager_s: Time | None = None
    """Seconds a launch where the host launches one after the other."""
    flops_convention: str | None = None
    """Name of the convention by which the FLOPs of a training step are counted."""
    hardware_flops: Count | None = None
    """FLOPs that a training step executes, with what is computed again."""
    tokens_per_step: Count | None = None
    memory_bytes: Object = field(default_factory=dict)
    """Memory of a training step by component, `estimated` and `measured`."""
    counted_flops: Count | None = None
    """FLOPs of a training step as torch counts them."""
    counted_flops_estimated: Count | None = None
    counted_flops_by_operation: Object = field(default_factory=dict)
    notes: Texts = ()
    """What explains the differences between estimates and measurements of a training step."""
    phases_s: Object = field(default_factory=dict)
    """Seconds of each phase of a training step or of a decoded token."""
    device_s: Time | None = None
    """Seconds that a GPU needs for a training step that was queued beforehand; `median_s` is the time by the clock of
    the host, which launches it."""
    host_launch_s: Time | None = None
    """Seconds that a copy keeps the host."""
    link_bytes_per_s: float | None = None
    """What the link to the GPU carries one way; None where it is not known or there is none."""
    copy_s: Times = ()
    """Samples of a copy alone, of a copy beside products."""
    compute_s: Times = ()
    """Samples of the products alone, of a copy beside products."""
    waits_s: tuple[float, ...] = ()
    """Seconds that each step of a loop waited for its batch."""
    major_faults: Count | None = None
    """Pages read from the disk, of runs of before; no longer measured."""
    file_bytes: Count | None = None
    """Length of the token file of a loop."""

    def to_dict(self) -> dict[str, Any]:
        values = super().to_dict()
        for group in OPTIONAL_KEYS:
            if all(values[key] in (None, [], {}) for key in group):
                values = {key: value for key, value in values.items() if key not in group}
        return values | ({"samples_s": None} if self.status == "ok" and not self.samples_s else {})

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        record = super().from_dict(data)
        if record.status == "ok" and record.median_s is None:
            raise RecordError("'median_s' is missing although 'status' is 'ok'")
        return record


_KNOWN_KEYS: Mapping[type[Line], frozenset[str]] = {
    line: frozenset({f.name for f in fields(line)} - {"extra"} | {"kind"}) for line in (Environment, Record)
}
