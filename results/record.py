"""Record of a measurement, and the environment of a run.

Both have only counts and times in SI base units, `None` if unknown. MFU, bound and verdict are
computed from them, so that old runs get new formulas.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime
from functools import cached_property
from statistics import median
from typing import Annotated, Any, ClassVar, NamedTuple, Self, TypeVar, get_args

from msgspec import Meta, Struct, ValidationError, convert, defstruct, to_builtins
from msgspec import field as member

from results.show.grid import Cell, Cells
from results.show.units import ABSENT, duration, number, percent
from roofline.machine import Machine, Magnitude, Texts, one_of
from roofline.work import DTYPE_BITS

SCHEMA = 2

STATUSES = ("ok", "skipped", "invalid", "failed")
METHODS = ("graph", "events", "host")
CACHE_STATES = ("cold", "warm", "partly-cold")
UNITS = ("matrix", "vector")
MAX_COUNT = 2**63 - 1
"""Maximum of counts and extents: as FLOPs, two and a half hours at 1 PFLOP/s."""

MIN_TIME_S = 1e-15
MAX_TIME_S = 1e12
"""Limits of a time: below any timer resolution, to thirty thousand years. Their sums and rates are
finite.
"""


Object = dict[str, Any]
Score = Mapping[str, Any]
"""What a record means on its machine: the keys of `roofline.model.Judgment`."""
Facts = dict[str, str | bool | int | float | None]
Count = Annotated[int, Meta(ge=0, le=MAX_COUNT)]
Finite = Annotated[float, Meta(ge=-sys.float_info.max, le=sys.float_info.max)]
"""A driver may report any number: a counter of energy that starts again gives a negative one."""

Clock = Annotated[float, Meta(gt=0, le=sys.float_info.max)]
Extents = Annotated[dict[str, Annotated[int, Meta(ge=1, le=MAX_COUNT)]], Meta(min_length=1)]
Time = Annotated[float, Meta(ge=MIN_TIME_S, le=MAX_TIME_S)]
Times = tuple[Time, ...]
FileWord = Annotated[str, Meta(pattern=r"^(?!\.\.?\Z)[^/\\\0]+\Z")]
SPARSE_KEYS = (
    "units",
    "count",
    "work",
    "visits",
    "passed_over",
    "output",
    "peak_memory_bytes",
    "details",
)
"""Keys that a line has only if they have a value."""

TELEMETRY_NUMBERS = (
    "window_s",
    "sm_clock_hz",
    "sm_clock_start_hz",
    "memory_clock_hz",
    "temperature_c",
    "power_w",
    "energy_j",
    "flops_per_j",
    "throttle_resolution",
    "core_wait",
    "involuntary_switches_per_s",
    "voluntary_switches_per_s",
    "load_average",
)

DEFINITION_PREFIX = "3:"
"""Prefix of the hashes of a definition. Hashes without it are of older versions and not
comparable.
"""


class RowKey(NamedTuple):
    """Fields that are equal for matching records."""

    op: str
    dtype: str
    case: str
    shape: str
    options: str
    provider: str | None
    """None if providers are compared."""
    fill: str | None
    cache: str | None


def text_of(values: Mapping[str, Any]) -> str:
    return " ".join(f"{name}={values[name]}" for name in sorted(values))


class _Device(Struct):
    slug: str
    name: str
    type: str
    uuid: str | None = None
    threads: int | None = None
    memory_bytes: Count | None = None


class _Comparing(Struct):
    margin: Annotated[float, Meta(ge=0, lt=1)] = 0.0


class _OfEnvironment(Struct):
    """Types inside the objects of an environment, of keys that something reads; others may have
    any.
    """

    device: _Device
    schema: int
    host: Facts = {}
    versions: Facts = {}
    git: Facts = {}
    settings: _Comparing | None = None


class _Check(Struct):
    reference: str | None = None
    max_error_of_bound: Magnitude | None = None


class _Verified(Struct):
    after: _Check | None = None


_Telemetry = defstruct(
    "_Telemetry",
    [
        *((name, Finite | None, None) for name in TELEMETRY_NUMBERS),
        ("cgroup_throttled_periods", Count | None, None),
        ("round_s", Times | None, None),
    ],
)


class _OfRecord(Struct):
    """Types inside the objects of a record, as `_OfEnvironment`."""

    telemetry: _Telemetry | None = None  # type: ignore[valid-type]
    verified: _Verified | None = None
    source_git: Facts = {}


class Part(Struct, frozen=True, kw_only=True):
    """An object in a line of a run file."""

    extra: Object = {}
    """Unknown keys of the file, written back unchanged."""

    def to_dict(self) -> Object:
        values: Object = to_builtins(self)
        extra: Object = values.pop("extra", {})
        return values | extra


class Details(Part, frozen=True, kw_only=True, tag_field="kind"):
    """What only one kind of rows has; `kind` in the file names its class."""

    def keys_in_json(self) -> Object:
        """Return what stands beside the keys that every row has in JSON outputs."""
        values = self.to_dict()
        del values["kind"]
        return values

    def cells(self, record: Record, score: Score) -> Cells:
        """Return the columns of this kind in the table of a run."""
        return {}


class _Sizes(Struct):
    total: Magnitude | None = None


class Step(Details, frozen=True, tag="step"):
    """A training step."""

    tokens_per_step: Count | None = None
    flops_convention: str | None = None
    """Name of the convention that counts the FLOPs."""
    hardware_flops: Count | None = None
    """FLOPs including recomputation."""
    counted_flops: Count | None = None
    """FLOPs as torch counts them."""
    counted_flops_by_operation: dict[str, Count] = {}
    counted_flops_estimated: Count | None = None
    """Estimate of what torch counts."""
    memory_bytes: dict[str, Object] = {}
    """Memory by component, `estimated` and `measured`."""
    phases_s: dict[str, Magnitude | None] = {}
    """Seconds of each phase."""
    device_s: Time | None = None
    """Seconds on a GPU if the step was queued in advance; `median_s` is the time on the host's
    clock."""
    checkpoint_file: Object = {}
    """File of the state: `bytes`, `estimated_bytes`, `write_s`, `read_s`, `is_bit_exact`."""
    notes: Texts = ()
    """Explanations of differences between estimates and measurements."""

    def __post_init__(self) -> None:
        convert(self.memory_bytes, dict[str, _Sizes])

    def cells(self, record: Record, score: Score) -> Cells:
        lost = None
        if self.device_s is not None and record.median_s is not None:
            lost = max(0.0, 1 - self.device_s / record.median_s)
        cells = {
            "tokens/s": Cell(number(score["tokens_per_s"]), "right"),
            "device": Cell(duration(self.device_s), "right", leaves=3),
            "lost to host": Cell(percent(lost), "right", leaves=3),
        }
        for phase, time_s in self.phases_s.items():
            cells[phase] = Cell(duration(time_s), "right", leaves=4)
        for title, kind in (("peak memory", "measured"), ("predicted", "estimated")):
            size = self.memory_bytes.get(kind, {}).get("total")
            text = ABSENT if size is None else f"{number(size / 1e6)} MB"
            cells[title] = Cell(text, "right", leaves=4)
        return cells


class Copy(Details, frozen=True, tag="copy"):
    """A copy between host and device, alone or during matmuls."""

    host_launch_s: Time | None = None
    """Seconds that the copy blocks the host."""
    link_bytes_per_s: Magnitude | None = None
    """One-way bandwidth of the link to the GPU; None if unknown or without a link."""
    copy_s: Times = ()
    """Seconds of the copy alone, in a row that overlaps copy and matmuls."""
    compute_s: Times = ()
    """Seconds of the matmuls alone, in such a row."""

    def cells(self, record: Record, score: Score) -> Cells:
        return {
            "% link": Cell(percent(score["link_share"]), "right"),
            "hidden": Cell(percent(score["hidden_share"]), "right"),
            "host kept": Cell(duration(self.host_launch_s), "right", leaves=3),
        }


class Loop(Details, frozen=True, tag="loop"):
    """Steps of a loop, each on a batch that it loads."""

    waits_s: tuple[Magnitude, ...]
    """Seconds that each step waits for its batch."""
    compute_s: Times = ()
    """Seconds of the work of a step alone."""
    file_bytes: Count | None = None
    """Bytes of the token file."""

    def cells(self, record: Record, score: Score) -> Cells:
        work_s = median(self.compute_s) if self.compute_s else None
        return {
            "tokens/s": Cell(number(score["tokens_per_s"]), "right"),
            "waits": Cell(percent(score["wait_share"]), "right"),
            "work": Cell(duration(work_s), "right", leaves=3),
        }


class Rounds(Details, frozen=True, tag="rounds"):
    """Rounds that the records of a comparison share."""

    names: Annotated[Texts, Meta(min_length=1)] = member(name="with")
    """Providers of a round, the baseline first."""
    rounds: Count
    samples_per_round: Annotated[int, Meta(ge=1, le=MAX_COUNT)]
    is_fixed: bool
    """Whether the number of rounds was set beforehand."""
    is_clear: bool
    """Whether all verdicts were clear at the end."""
    seconds: Magnitude
    """Duration of all rounds."""
    seed: int
    sm_clock_hz: tuple[Clock, ...] | None = None
    """SM clock last read at the end of each round; None if unknown."""

    def keys_in_json(self) -> Object:
        return {"interleaved": super().keys_in_json()}


class Fusion(Struct, frozen=True, kw_only=True):
    """Chains of the same operations in the same module, or in the same module of each layer."""

    module: str
    operations: Annotated[Texts, Meta(min_length=1)]
    """Of a chain, in the order of the step."""
    count: Count
    saved_bytes: Count
    """By all chains together; at the memory roof they take `saved_bytes` over the bandwidth."""


class Rank(Part, frozen=True, kw_only=True):
    """One process of a run, which measures one device."""

    rank: Count
    local_rank: Count = 0
    world_size: Annotated[int, Meta(ge=1, le=100_000)] | None = None
    """Number of ranks; None if unknown."""
    local_world_size: Count = 1
    """Number of ranks on this node; 1 if unknown."""
    node: str
    launcher: str = "none"
    pci_bus_id: str | None = None
    health: Object = {}
    """What may explain a slow device, read before its rank uses it; only of `bench.fleet`."""


class StepTotals(Part, frozen=True, kw_only=True, omit_defaults=True):
    """What is known of a profiled step besides its rows."""

    time_s: Time
    eager_bytes: Count | None = None
    no_shape: dict[str, Count] | None = None
    """Calls without shapes by operation; None if the step is not from a trace."""
    steps_s: tuple[Magnitude, ...] = ()
    """Times of the steps of a trace on the host, if it has several."""
    early_s: Magnitude = 0.0
    early_kernels: Count = 0
    """Sum of the times, and number, of kernels that were launched before the recording of a trace
    began; they belong to no part of it.
    """
    communication_s: Magnitude = 0.0
    exposed_s: Magnitude = 0.0
    """Time in which kernels that communicate between GPUs ran, and in which nothing else ran."""
    fusing: tuple[Fusion, ...] = ()


class ProfileOp(Details, frozen=True, tag="profile-op"):
    """Calls of an operation in a profiled step, or a part of the step outside of operations."""

    module: str = ""
    phase: str = ""
    matmul_flops: Count | None = None
    time_s: Magnitude | None = None
    share: Magnitude | None = None
    """Fraction of the step's time."""
    shapes: str = ""
    dtypes: Texts = ()
    kernels: Texts = ()
    kernels_s: tuple[Magnitude, ...] = ()
    """Seconds of each kernel."""
    kernel_calls: tuple[Count, ...] = ()

    def cells(self, record: Record, score: Score) -> Cells:
        return {
            "count": Cell(str(record.count), "right", leaves=7),
            "time": Cell(duration(self.time_s), "right"),
            "share": Cell(percent(self.share), "right"),
        }


AnyDetails = Step | Copy | Loop | Rounds | ProfileOp
DetailsT = TypeVar("DetailsT", bound=Details)

KINDS: dict[str, type[AnyDetails]] = {
    str(kind.__struct_config__.tag): kind for kind in get_args(AnyDetails)
}


class RecordError(ValueError):
    """A line of a run file lacks a required key, or has a value of the wrong type or out of
    range.
    """


@dataclass(frozen=True, kw_only=True)
class Line:
    """A line of a run file."""

    TYPES_INSIDE: ClassVar[type[Struct]]
    """Types inside its objects."""

    extra: Object = field(default_factory=dict)
    """Unknown keys of the file, written back unchanged."""

    def to_dict(self) -> Object:
        # A subclass may have more fields than the file.
        own = Environment if isinstance(self, Environment) else Record
        values = {f.name: getattr(self, f.name) for f in fields(own) if f.name != "extra"}
        return {"kind": own.__name__.lower()} | values | self.extra

    @classmethod
    def parsed(cls, data: Mapping[str, Any], parts: Mapping[str, type[Part] | None]) -> Self:
        """Parse a line, in which `parts` are the types of objects by key, None for one of a newer
        version; null means absent, and unknown keys become `extra`.

        Raises:
            RecordError: a required key is missing, or a value has the wrong type or is out of
                range.
        """
        known = cls.__dataclass_fields__
        values: Object = {"extra": {}}
        for key, value in data.items():
            if key not in known and key != "kind":
                values["extra"][key] = value
            elif value is not None:
                values[key] = value
        for key, kind in parts.items():
            part = values.get(key)
            if isinstance(part, dict):
                if kind is None:
                    values["extra"][key] = values.pop(key)
                    continue
                keys = {kind.__struct_config__.tag_field, *kind.__struct_encode_fields__}
                unknown = {name: part[name] for name in part if name not in keys}
                values[key] = part | {"extra": unknown}
        try:
            convert(values, cls.TYPES_INSIDE)
            return convert(values, cls)
        except (ValidationError, UnicodeError) as error:  # the latter for half a surrogate pair
            raise RecordError(str(error)) from None


@dataclass(frozen=True, kw_only=True)
class Environment(Line):
    """Machine, software and settings of a run; the first line of a run file."""

    TYPES_INSIDE = _OfEnvironment

    run_id: FileWord
    """Unique name of the run; its short id ends the file name."""
    started_at: str
    """Start of the run, UTC, ISO 8601."""
    argv: Texts
    """The command line that reproduces the run."""
    device: Object
    """At least `slug`, `name` and `type`: `cuda`, `rocm` or `cpu`."""
    host: Object = field(default_factory=dict)
    versions: Object = field(default_factory=dict)
    """Version of Python, torch, triton, CUDA, driver, ..., or None."""
    git: Object = field(default_factory=dict)
    """`sha` and `dirty` of the measuring code."""
    machine: Machine = field(default_factory=Machine)
    """The machine with its ceilings, `hardware` in the file."""
    settings: Object = field(default_factory=dict)
    """Seed, fill, cache and budget of the run."""
    preflight: Object = field(default_factory=dict)
    """Timer resolution, time of empty events and of an empty launch, seconds."""
    fleet: Rank | None = None
    """The rank that measured; not in the file of a run without ranks."""
    profile: StepTotals | None = None
    """The step of a profile; not in the file of other runs."""
    schema: Annotated[int, Meta(ge=1)] = SCHEMA

    def to_dict(self) -> Object:
        values = super().to_dict()
        values["hardware"] = values.pop("machine").to_dict()
        for key in ("fleet", "profile"):
            if values[key] is None:
                del values[key]
            else:
                values[key] = values[key].to_dict()
        return values

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        schema = data.get("schema")
        if isinstance(schema, int) and schema > SCHEMA:
            raise RecordError(
                f"schema {schema} is newer than the supported {SCHEMA}; update Roofmark"
            )
        values = dict(data)
        hardware = values.pop("hardware", None) or {}
        if not isinstance(hardware, dict):
            raise RecordError("'hardware' is not an object")
        environment = super().parsed(values, {"fleet": Rank, "profile": StepTotals})
        rank = environment.fleet
        if rank and rank.world_size and rank.rank >= rank.world_size:
            raise RecordError(f"rank {rank.rank} of {rank.world_size}")
        try:
            machine = Machine.from_dict(environment.device | hardware)
        except (ValidationError, UnicodeError) as error:
            raise RecordError(f"hardware: {error}") from None
        try:
            datetime.fromisoformat(environment.started_at).astimezone(UTC)
        except (ValueError, OverflowError):
            raise RecordError(
                f"'started_at' is not an ISO 8601 time: {environment.started_at!r}"
            ) from None
        return replace(environment, machine=machine)


@dataclass(frozen=True, kw_only=True)
class Record(Line):
    """One case computed by one provider: counts, times and telemetry."""

    TYPES_INSIDE = _OfRecord

    op: str
    provider: str
    dtype: Annotated[str, one_of(DTYPE_BITS)]
    shape: Extents
    """Extent of each axis, for example `{"m": 4096, "n": 4096, "k": 4096}`."""
    case: str
    """The shape as text, for example `4096x4096x4096`."""
    status: Annotated[str, one_of(STATUSES)]
    """`ok`; `skipped` (not run), `invalid` (ran, but the result or the time is wrong), `failed`
    (raised).
    """
    reason: str | None = None
    """Why the status is not `ok`."""
    options: Object = field(default_factory=dict)
    """Other properties of the case: layout, batch."""
    flops: Count | None = None
    """Floating-point operations of one launch; a fused multiply-add counts as 2."""
    bytes_read: Count | None = None
    """Compulsory bytes read by one launch: each input once."""
    bytes_written: Count | None = None
    """Compulsory bytes written by one launch: each output once."""
    samples_s: Times = ()
    """Seconds per launch of each sample, in the order taken; none is dropped. Empty with the status
    `ok`: only the median was saved, and the file has null."""
    launches_per_sample: Count | None = None
    method: Annotated[str, one_of(METHODS)] | None = None
    """Timer: `graph` (CUDA graph replay), `events` (CUDA events), `host` (host clock)."""
    cache: Annotated[str, one_of(CACHE_STATES)] | None = None
    """`cold`: the inputs of each launch are not in the last-level cache; `warm`: the same inputs
    each time; `partly-cold`: some inputs may be in the cache, `warm` in older files."""
    copies: Count | None = None
    """Number of copies of the inputs that launches rotate through."""
    fill: str | None = None
    """Distribution of the inputs: `uniform` in [-1, 1], `normal`, `zeros`."""
    median_s: Time | None = None
    count: Count | None = None
    """Number of calls that the record sums up; None for one."""
    work: str | None = None
    """Source of the work of a function that is not an op."""
    visits: tuple[Count, ...] = ()
    """Number of samples of each visit: a row is visited several times during its run, among other
    rows. Empty for a single visit, as in older files."""
    ci95_s: tuple[Time, Time] | None = None
    """95 % confidence interval of the median, seconds."""
    converged: bool | None = None
    """Whether the interval was as narrow as requested before the time limit."""
    warm_median_s: Time | None = None
    """Median seconds of the same launches with warm inputs, besides a cold median."""
    outliers: Count | None = None
    """Number of samples further than 5 median absolute deviations from the median; none is
    dropped.
    """
    settled: bool | None = None
    """Whether clock, power and time were stable before the warm-up reached its time limit."""
    host_latency_s: Time | None = None
    """Median seconds from call to finished result as the host sees it."""
    first_call_s: Time | None = None
    """Seconds of the first call: loading, compiling, tuning."""
    flags: Texts = ()
    """Short warnings, for example `launch-limited`."""
    flag_reasons: Object = field(default_factory=dict)
    """Observation behind each flag, as a sentence."""
    telemetry: Object = field(default_factory=dict)
    verified: Object = field(default_factory=dict)
    source_sha256: str | None = None
    """Hash of the source file; for built-in kernels, with the files of this project that it
    imports.
    """
    op_sha256: str | None = None
    """Hash of the op's definition (inputs, formula, work), see `bench.harness.op_file`. Hashes
    without `DEFINITION_PREFIX` are of older versions and count as unknown. None if the op has no
    source file."""
    source_git: Object | None = None
    """`sha` and `dirty` of the repository of a user's kernel; None without one, and for built-in
    kernels.
    """
    units: Annotated[str, one_of(UNITS)] | None = None
    """Units that the op runs on, by its definition; None in older records, whose op name
    decides.
    """
    passed_over: Object = field(default_factory=dict)
    """Reason of each newer version of the kernel to reject the case."""
    output: str | None = None
    """Output of a user's function."""
    peak_memory_bytes: Count | None = None
    """Maximum that torch's allocator holds during one call, besides what it holds before."""
    details: AnyDetails | None = None
    """What only this kind of rows has."""

    def details_as(self, kind: type[DetailsT]) -> DetailsT | None:
        """Return the details; None if the row is of another kind."""
        return self.details if isinstance(self.details, kind) else None

    @property
    def moved_bytes(self) -> int | None:
        """Bytes read and written; None if those read are unknown."""
        if self.bytes_read is None:
            return None
        return self.bytes_read + (self.bytes_written or 0)

    @cached_property
    def row(self) -> RowKey:
        return RowKey(
            op=self.op,
            dtype=self.dtype,
            case=self.case,
            shape=text_of(self.shape),
            options=text_of(self.options),
            provider=self.provider,
            fill=self.fill,
            cache=self.cache,
        )

    def to_dict(self) -> Object:
        values = super().to_dict()
        if self.details is not None:
            values["details"] = self.details.to_dict()
        for key in SPARSE_KEYS:
            if values[key] in (None, (), {}):
                del values[key]
        if self.status == "ok" and not self.samples_s:
            values["samples_s"] = None
        return values

    def to_json(self) -> Object:
        """Return the record for JSON outputs: the keys of its details beside the others."""
        values = self.to_dict()
        if self.details is None:
            return values
        del values["details"]
        return values | self.details.keys_in_json()

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        details = data.get("details")
        kind = KINDS.get(str(details.get("kind"))) if isinstance(details, dict) else None
        record = super().parsed(data, {"details": kind})
        if record.status == "ok" and record.median_s is None:
            raise RecordError("'median_s' is missing although 'status' is 'ok'")
        return record


def unix_time(text: str) -> float:
    """Parse an ISO 8601 date or time, UTC by default, into Unix time."""
    moment = datetime.fromisoformat(text)
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def name_of(record: Record) -> str:
    return f"{record.op} {record.case} {record.dtype} {record.provider}"
