"""Options shared by several estimates: models and machines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypedDict

from results.store.runfile import Run, StoreError, load_run
from results.store.runs import Selection, list_runs
from roofline.accounting.config import ConfigError, ModelConfig, model_of_size
from roofline.accounting.families import GPT2_NAMES, NAMES
from roofline.accounting.machines import mfu_of, peak_of, run_machine, why_not
from roofline.accounting.presets import load_config, load_preset, read_config
from roofline.accounting.state import RECIPES, Sharding
from roofline.accounting.storage import STORAGES
from roofline.estimate.answer import Row
from roofline.estimate.question import Names, Number, Prices, Share, Size, Whole
from roofline.gpu_table import find_gpu, load_gpus
from roofline.machine import MEASURED_FIRST, Ceiling, Machine
from roofline.work import DTYPES

STYLES = {
    "llama": {
        **NAMES,
        "kv_heads": "num_key_value_heads",
        "vocab": "vocab_size",
        "experts": "num_local_experts",
        "experts_per_token": "num_experts_per_tok",
    },
    "gpt2": {name: key for name, key in GPT2_NAMES.items() if key} | {"vocab": "vocab_size"},
}
"""Keys of `config.json` by dimension."""

Zero = Annotated[int | str, ("0", "1", "2", "3")]
Stored = Annotated[str, tuple(STORAGES)]

REQUIRED = ("layers", "width", "heads", "vocab")
"""Required dimensions; style llama also requires `ffn`."""


MAX_SOURCES = 8
"""GPUs that are named as sources one by one."""

Options = Mapping[str, Any]
"""Parsed options by name."""


class Dimensions(TypedDict, total=False):
    """A model by its file or its dimensions."""

    config: str
    layers: Whole
    width: Whole
    heads: Whole
    kv_heads: Whole
    head_dim: Whole
    ffn: Whole
    vocab: Whole
    context: Whole
    experts: Whole
    experts_per_token: Whole
    tied: bool
    style: Annotated[str, tuple(STYLES)]


class Sized(Dimensions, total=False):
    """A model, or only its number of parameters."""

    params: Number


class Routed(Sized, total=False):
    """A model, or only the numbers of its parameters, also of those that one token uses."""

    active_params: Number


class Machines(TypedDict, total=False):
    """GPUs of the table, or the machine of a saved run."""

    gpu: Names
    measured: str


class Held(Machines, total=False):
    """Machines whose memory may be given."""

    memory: Size


class Linked(Machines, total=False):
    """Machines, and the links between them."""

    network: Size
    node: Whole


class Computing(Machines, total=False):
    """Machines, dtypes, and figures that replace those of the machines."""

    dtype: Annotated[list[str], DTYPES]
    peak: Number
    bandwidth: Size


class Training(Computing, total=False):
    """Machines that train at a fraction of their peak."""

    mfu: Share


class Context(Dimensions, Held, total=False):
    """A model, and machines of which only the memory is used."""


class Devices(TypedDict, total=False):
    """How devices share a training step."""

    data_parallel: Whole
    tensor_parallel: Whole
    pipeline_parallel: Whole
    expert_parallel: Whole
    context_parallel: Whole
    sequence_parallel: bool
    zero: Zero


class Sharded(Sized, Held, Devices, total=False):
    """A model, machines of which only the memory is used, and how they share a training step."""


class Layouts(Dimensions, Computing, Held, Linked, total=False):
    """A model with known layers, and linked machines that compute."""


class Running(Routed, Computing, total=False):
    """A model, or the numbers of its parameters, and machines that compute."""


class Generating(Running, Held, total=False):
    """A model, and machines that compute and hold it."""


class Needed(Generating, Training, total=False):
    """A model, and machines that train and hold it."""


class Replying(Generating, total=False):
    """A model, and machines with a price."""

    price: Prices


class Stepping(Replying, Training, Devices, Linked, total=False):
    """A model, machines, and how they share a training step."""

    batch: Whole
    micro_batch: Whole
    checkpoint: str
    interleave: Whole


LAYOUT = Stepping.__annotations__.keys() - Needed.__annotations__.keys() - {"price"}
"""Options of a layout, with which `train` gives the time of a step."""


def model_of(model: str | ModelConfig | None, options: Options) -> ModelConfig:
    """Return the model given by a preset, a file, dimensions or a number of parameters."""
    sizes = {name: options[name] for name in STYLES["llama"] if name in options}
    ways = [model is not None, "config" in options, bool(sizes)].count(True)
    if "params" in options:
        if ways:
            raise ConfigError("--params and --model, --config or dimensions are mutually exclusive")
        return model_of_size(options["params"], options.get("active_params"))
    if ways != 1:
        raise ConfigError(
            "expected one model: --model PRESET, such as llama-3-8b, --config "
            "path/to/config.json, or its dimensions, such as --layers 16 --width 2048 --heads "
            "32 --ffn 8192 --vocab 128256"
        )
    if sizes:
        style = options.get("style", "llama")
        return _by_dimensions(sizes, style, options.get("tied", style == "gpt2"))
    if model is None:
        return load_config(Path(options["config"]))
    return model if isinstance(model, ModelConfig) else load_preset(model)


def _by_dimensions(sizes: Mapping[str, int], style: str, is_tied: bool) -> ModelConfig:
    unknown = [name for name in sizes if name not in STYLES[style]]
    if unknown:
        raise ConfigError(f"--style {style} has no --{unknown[0].replace('_', '-')}")
    needed = REQUIRED if style == "gpt2" else (*REQUIRED, "ffn")
    missing = [f"--{name}" for name in needed if name not in sizes]
    if missing:
        raise ConfigError(f"a model by its dimensions requires {', '.join(missing)}")
    family = "granitemoe" if "experts" in sizes else style  # Llama whose layers all have experts
    values: dict[str, Any] = {"model_type": family, "tie_word_embeddings": is_tied}
    values |= {key: sizes[name] for name, key in STYLES[style].items() if name in sizes}
    if style == "gpt2":
        values.setdefault("n_positions", 1024)
    config = read_config(values, "the model of these dimensions")
    return replace(
        config, source=f"a decoder of {style} style with the dimensions given", assumptions=()
    )


def machines_of(options: Options, is_needed: bool = True) -> list[Machine]:
    """Return GPUs of the table, the machine of a measured run, or a machine with only the given
    figures.

    Raises:
        ConfigError: there is none, and one is needed.
    """
    figures = ("peak", "bandwidth", "memory")
    given = {name: float(options[name]) for name in figures if name in options}
    machines = list(map(find_gpu, options.get("gpu", ())))
    if "measured" in options:
        machines.append(_measured(options))
    if is_needed and not machines and not given:
        raise ConfigError(
            "expected a machine: --gpu SLUG, such as h100-sxm, --measured RUN, such as latest, "
            "or --peak, --bandwidth or --memory"
        )
    if not given:
        return machines
    dtypes = options.get("dtype", ["bf16"])
    return [_as_given(machine, given, dtypes) for machine in machines or [Machine("given")]]


def _measured(options: Options) -> Machine:
    path = Path(options["measured"])
    if path.is_dir():
        return fleet_machine(path)
    run = _whole(load_run(Selection().find(options["measured"])))
    return run_machine(run, f"run {run.environment.run_id}")


def _whole(run: Run) -> Run:
    if run.problems:
        raise StoreError(run.problems[0])
    return run


def fleet_machine(directory: Path) -> Machine:
    """Return the device of a fleet with the figures of the slowest rank, from the files of
    `bench.fleet`.

    A rank has its fastest matmul and copy, alone or with all others, whichever is slower; the rest
    is of the GPU table.
    """
    summaries = list_runs(directory, counts_records=False)
    runs = [_whole(load_run(summary.path)) for summary in summaries]
    if not runs:
        raise ConfigError(f"no run in {directory}")
    fastest: dict[tuple[str, str], dict[str, float]] = {}
    for run in runs:
        for record in run.records:
            work = record.flops
            figure = ("flops", record.dtype)
            if record.op == "copy":
                work = record.moved_bytes
                figure = ("bandwidth", "copy")
            is_used = record.op in ("matmul", "copy") and record.status == "ok"
            if is_used and record.median_s and work:
                rates = fastest.setdefault(figure, {})
                rank = f"{run.path} {record.options.get('phase')}"
                rates[rank] = max(rates.get(rank, 0), work / record.median_s)
    where = f"measured by the slowest of {len(runs)} files in {directory}"
    ceilings = [
        Ceiling(*figure, min(rates.values()), "measured", where)
        for figure, rates in fastest.items()
    ]
    device = runs[0].environment.device
    known = load_gpus().get(device["slug"], Machine(device["slug"], device["name"]))
    source = "; ".join(filter(None, [where if ceilings else "", known.source]))
    return replace(
        known.with_entries(ceilings),
        memory_reported_bytes=device.get("memory_bytes"),
        source=source,
    )


def _as_given(machine: Machine, given: Mapping[str, float], dtypes: Sequence[str]) -> Machine:
    entries: list[Ceiling] = []
    if "peak" in given:
        entries += [Ceiling("flops", d, given["peak"], "given", "as given") for d in dtypes]
    if "bandwidth" in given:
        entries.append(Ceiling("bandwidth", "memory", given["bandwidth"], "given", "as given"))
    source = f"{' and '.join(given)} as given"
    if machine.source:
        source += f"; {machine.source}"
    if "memory" in given:
        memory_bytes = max(1, int(given["memory"]))
        machine = replace(machine, memory_reported_bytes=memory_bytes, memory_bytes=None)
    return replace(machine.with_entries(entries), source=source)


def sharding_of(gpus: int, options: Options, recipe: str) -> Sharding:
    """Return how devices share a step; those that are left over are data-parallel.

    Raises:
        ConfigError: the layout has another number of devices, or the recipe requires more sharding.
    """
    names = [name for name in Devices.__annotations__ if name in options]
    ways = {name: options[name] for name in names if name not in ("zero", "sequence_parallel")}
    sharding = Sharding(int(options.get("zero", 0)), **ways)
    if "data_parallel" not in ways:
        data = max(sharding.expert_parallel, gpus // sharding.devices)
        sharding = replace(sharding, data_parallel=data)
    if gpus not in (1, sharding.devices):
        raise ConfigError(
            f"{sharding.data_parallel} data x {sharding.tensor_parallel} tensor x "
            f"{sharding.pipeline_parallel} pipeline x {sharding.context_parallel} context are "
            f"{sharding.devices} devices, not {gpus}"
        )
    least = RECIPES[recipe].least_zero
    if sharding.zero < least:
        raise ConfigError(f"--recipe {recipe} requires --zero {least}")
    return sharding


class Use(NamedTuple):
    """A machine and a dtype."""

    machine: Machine
    dtype: str
    peak: float
    """Peak of one device, FLOP/s."""
    mfu: float = 1
    price: float | None = None
    """Of a device per hour."""

    @property
    def row(self) -> Row:
        return {"gpu": self.machine.slug, "dtype": self.dtype}

    def speed(self, gpus: int) -> float:
        return gpus * self.peak * self.mfu

    def cost(self, gpus: int, seconds: float) -> Row:
        """Return the price, and the maximum energy by TDP."""
        row: Row = {"price": None, "energy_j": None}
        if self.price is not None:
            row["price"] = self.price * gpus * seconds / 3600
        if self.machine.tdp_w is not None:
            row["energy_j"] = self.machine.tdp_w * gpus * seconds
        return row


class Uses(NamedTuple):
    """The machines of an estimate with each dtype, and notes on them."""

    uses: list[Use]
    notes: list[str]

    @property
    def source(self) -> str:
        return sources_of([use.machine for use in self.uses])


def uses_of(options: Options, trains: bool = False) -> Uses:
    """Return the machines with each dtype of known peak, and a note for each other dtype; those
    that train with their MFU.
    """
    machines = machines_of(options)
    dtypes = options.get("dtype", ["bf16"])
    prices = options.get("price") or {}  # of all machines, or of each, or of some by slug
    if isinstance(prices, dict):
        prices = [prices.get(machine.slug) for machine in machines]
    elif len(prices) == 1:
        prices = prices * len(machines)
    if len(prices) != len(machines):
        raise ConfigError(f"--price has {len(prices)} prices for {len(machines)} GPUs")
    found = Uses([], [])
    for (machine, price), dtype in product(zip(machines, prices, strict=True), dtypes):
        peak = machine.peak(dtype, MEASURED_FIRST)
        if peak is None:
            found.notes.append(f"{machine.slug} has {why_not(machine, dtype)} {dtype}")
            continue
        share: float = 1
        if trains:
            share, origin = mfu_of(machine, dtype, options.get("mfu"))
            found.notes.append(origin)
        found.uses.append(Use(machine, dtype, peak.value, share, price))
    if not found.uses:
        peak_of(machines[0], dtypes[0])
    return found._replace(notes=list(dict.fromkeys(found.notes)))


def sources_of(machines: Sequence[Machine]) -> str:
    sources = list(dict.fromkeys(machine.source for machine in machines))
    if len(sources) > MAX_SOURCES:
        return "dense peaks and bandwidths of the files in roofline/gpus"
    return "; ".join(sources)
