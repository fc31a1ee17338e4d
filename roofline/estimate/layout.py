"""Estimates of how devices share a training step: the time of a layout, and the fastest layouts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from itertools import islice, product
from math import gcd, inf, isqrt
from typing import Annotated, NamedTuple, Unpack

from results.show.units import count, duration, number, quantity
from roofline.accounting.activations import Kernels
from roofline.accounting.config import ConfigError, ModelConfig
from roofline.accounting.flops import DEFAULT_CONVENTION, train_flops
from roofline.accounting.machines import memory_of
from roofline.accounting.state import RECIPES, Sharding
from roofline.accounting.step_memory import StepPlan
from roofline.estimate.answer import Answer, Curve, Row, by_machine, steps_of
from roofline.estimate.fitting import fit_row, fit_warnings
from roofline.estimate.models import ZERO_3, Optimizer, Recipe, least_devices
from roofline.estimate.options import (
    Layouts,
    Linked,
    Options,
    Uses,
    machines_of,
    model_of,
    sources_of,
    uses_of,
)
from roofline.estimate.question import Model, Share, Size, Whole, question
from roofline.estimate.step import (
    KINDS,
    NODE_DEVICES,
    Layout,
    matmul_share,
    network_of,
)
from roofline.links import OPS, bus_factor
from roofline.machine import MEASURED_FIRST
from roofline.model import mfu as share_of

SECONDS_PER_DAY = 86_400

CONTEXT_WAYS = (1, 2, 4, 8)

SHOWN = 5

SOURCE = (
    "Rajbhandari et al., ZeRO (2020); Shoeybi et al., Megatron-LM (2019); Narayanan et al. (2021)"
)

FORMULA = (
    "step = (FLOPs / speed + bytes / bandwidth + tensor, context and expert links) x "
    "(1 + (p - 1) / (m v)) + other links"
)

HIDDEN = (
    (
        "hidden by the backward pass: gradients and gathered weights, except for one layer; most "
        "sends of a pipeline"
    ),
    (
        "not hidden: tensor parallelism, and the all-to-all of experts, each token once for "
        "each of its experts"
    ),
)

EXECUTED = "HFU of {:g} while nothing waits (--mfu): recomputation is executed too"

SCALES = 0.9
"""Fraction of linear speed."""

COLUMNS = {
    "gpu": "GPU",
    "data_parallel": "data",
    "tensor_parallel": "tensor",
    "pipeline_parallel": "pipeline",
    "expert_parallel": "expert",
    "context_parallel": "context",
    "zero": "ZeRO",
    "total_bytes": "memory",
    "sent_bytes": "sent a step",
    "bubble": "bubble",
    "step_seconds": "step",
}


STEPS = """\
devices | {sharding.data_parallel} data x {sharding.tensor_parallel} tensor x \
{sharding.pipeline_parallel} pipeline x {sharding.context_parallel} context | {sharding.devices:,}
memory | ZeRO {sharding.zero}, the fuller device | {layout.total_bytes:bytes}
compute | FLOPs at {layout.use.peak:number} FLOP/s x {layout.use.mfu:.4g}{moved} | {compute:time}
tensor | {sent[tensor]:bytes} sent in {sending[tensor]:time}, not hidden | {tensor:time}
context | {sent[context]:bytes} sent in {sending[context]:time}, not hidden | {context:time}
expert | {sent[expert]:bytes} sent in {sending[expert]:time}, not hidden | {expert:time}
bubble | ({sharding.pipeline_parallel} - 1) / ({plan.micro_batches} x {layout.interleave}) of \
the time without it | {bubble:time}
data | {sent[data]:bytes} sent in {sending[data]:time}, not hidden | {data:time}
pipeline | {sent[pipeline]:bytes} sent in {sending[pipeline]:time}, not hidden | {pipeline:time}
optimizer | reads and writes its state | {optimizer:time}
step | sum | {layout.seconds:time}
communication | waiting for links | {row[communication]:percent}
published runs | {runs.name}: {runs.least} to {runs.most} times the predicted time | \
{row[step_range]}
scales to | 90 % of linear speed | {row[largest_gpus]:devices}
"""


@question
def parallel(
    model: Model = None,
    gpus: Whole = 8,
    sequence: Whole = 2048,
    batch: Whole = 1024,
    recipe: Recipe = "bf16-master",
    optimizer: Optimizer = "adamw",
    checkpoint: str = "none",
    mfu: Share = 0.5,
    **options: Unpack[Layouts],
) -> Answer:
    """Layouts of a training step on devices, the fastest first.

    They are those of data, tensor, pipeline, expert and context parallelism, and of ZeRO.
    """
    config = model_of(model, options).with_attention()
    uses = uses_of(options)
    how = {"batch": batch, "checkpoint": checkpoint}
    found = []
    for use in uses.uses:
        links = network_of(use.machine, options)
        stage = RECIPES[recipe].least_zero
        for sharding in shardings(gpus, config, batch, sequence, stage):
            plan = step_plan(config, recipe, optimizer, sequence, sharding, how)
            found.append(Layout(plan, use._replace(mfu=mfu), links))
    found.sort(key=lambda layout: layout.seconds)
    # Their memory takes longer than their time to compute: only until enough fit.
    holding = (layout for layout in found if layout.total_bytes <= memory_of(layout.use.machine))
    fitting = list(islice(holding, SHOWN))
    if not found:
        raise ConfigError(
            f"no layout: heads, layers and a batch of {batch} sequences do not divide over "
            f"{gpus} devices; another --batch may"
        )
    if not fitting:
        least = quantity(min(layout.total_bytes for layout in found), "B")
        ways = "more --gpus" if checkpoint == "full" else "--checkpoint full or more --gpus"
        raise ConfigError(
            f"no layout fits: the smallest takes {least} on each of {count(gpus, 'device')}; {ways}"
        )
    notes = [
        EXECUTED.format(mfu),
        f"tensor times context parallelism of at most {NODE_DEVICES}",
        f"of {len(found)} layouts, the {len(fitting)} fastest that fit are shown",
    ]
    answer = step_answer(fitting, None, notes, uses)
    return replace(
        answer,
        main=(
            "data_parallel",
            "tensor_parallel",
            "pipeline_parallel",
            "expert_parallel",
            "context_parallel",
            "zero",
            "step_range",
        ),
        values=answer.rows[0],
        columns=COLUMNS,
        warnings=fit_warnings(answer.rows[:1], ZERO_3),
    )


def step_plan(
    config: ModelConfig,
    recipe: str,
    optimizer: str,
    sequence: int,
    sharding: Sharding,
    options: Options,
) -> StepPlan:
    batch = options.get("batch", 1024)
    micro_batch = options.get("micro_batch", 1)
    data = sharding.data_parallel
    if batch % (data * micro_batch):
        raise ConfigError(
            f"--batch {batch} is not a multiple of {data} data-parallel devices x {micro_batch}"
        )
    precision = RECIPES[recipe]
    splits_norms = options.get("sequence_parallel", False)
    return StepPlan(
        config=config,
        recipe=precision,
        optimizer=optimizer,
        sequence=sequence,
        batch=batch // data,
        micro_batches=batch // data // micro_batch,
        checkpoint=options.get("checkpoint", "none"),
        kernels=Kernels(precision.activation_bytes, is_sequence_parallel=splits_norms),
        sharding=sharding,
    )


FACTORS = {"all-reduce": "2 (n - 1) / n", "broadcast": "1", "send-recv": "1"}

COLLECTIVE_STEPS = """\
sent by a device | {size_bytes:bytes} x {factor:.4g} | {sent_bytes:bytes}
bandwidth | {derived} | {bandwidth_bytes_per_s:bytes} a second
time | {sent_bytes:bytes} / {bandwidth_bytes_per_s:bytes} a second | {seconds:time}
"""


@question
def collective(
    size: Size = 2**30,
    kind: Annotated[str, OPS] = "all-reduce",
    gpus: Whole = 8,
    **options: Unpack[Linked],
) -> Answer:
    """Time of a collective on a ring, by the bandwidth of the links."""
    if gpus < 2:
        raise ConfigError("--gpus is 2 at least")
    machines = machines_of(options)
    rows: list[Row] = []
    notes = []
    for machine in machines:
        links = network_of(machine, options)
        seconds = links.seconds(kind, size, gpus, stride=1)
        sent_bytes = size * bus_factor(kind, gpus)
        row = {
            "gpu": machine.slug,
            "kind": kind,
            "gpus": gpus,
            "size_bytes": size,
            "seconds": seconds,
            "sent_bytes": sent_bytes,
            "bandwidth_bytes_per_s": sent_bytes / seconds,
        }
        rows.append(row)
        notes.append(links.source)
    return Answer(
        main=("seconds",),
        title=f"{kind} of {quantity(size, 'B')} on {count(gpus, 'device')}",
        **by_machine(rows),
        steps=steps_of(
            COLLECTIVE_STEPS,
            factor=bus_factor(kind, gpus),
            derived=network_of(machines[0], options).derivation(kind, gpus),
            **rows[0],
        ),
        formula=f"seconds = size x factor / bandwidth; {kind}: factor "
        f"{FACTORS.get(kind, '(n - 1) / n')}",
        source=f"NVIDIA, nccl-tests, doc/PERFORMANCE.md; {sources_of(machines)}",
        assumptions=[
            *dict.fromkeys(notes),
            "without latency, unless the collective was measured (--measured DIR)",
            "switches that add up (NVLink SHARP) and trees may be faster than a ring",
        ],
        columns={
            "gpu": "GPU",
            "gpus": "GPUs",
            "size_bytes": "size",
            "seconds": "time",
            "bandwidth_bytes_per_s": "bus bandwidth",
        },
    )


class PublishedRuns(NamedTuple):
    """How long published runs of a kind took, as a multiple of the predicted time."""

    name: str
    least: float
    most: float

    def range_of(self, value: float, write: Callable[[float], str] = duration) -> str:
        return f"{write(self.least * value)} to {write(self.most * value)}"


DENSE = PublishedRuns("dense models", 0.83, 1.45)
DENSE_IN_RACKS = PublishedRuns("dense models on GB200 and GB300", 1.06, 1.23)
LONG = PublishedRuns("dense models of 32,768 tokens or more", 1.74, 2.1)
EXPERTS = PublishedRuns("models with experts", 0.68, 4.59)
EXPERTS_IN_RACKS = PublishedRuns("models with experts on GB200 and GB300", 1.58, 1.93)
"""Source: the runs in roofline/README.md."""

LONG_TOKENS = 32768
RACK_DEVICES = 72


def published_runs(layout: Layout) -> PublishedRuns:
    is_rack = layout.network.node_devices >= RACK_DEVICES
    if layout.plan.config.experts:
        return EXPERTS_IN_RACKS if is_rack else EXPERTS
    if layout.plan.sequence >= LONG_TOKENS:
        return LONG
    return DENSE_IN_RACKS if is_rack else DENSE


def predicted(plan: StepPlan, tokens: float | None, options: Options) -> Answer:
    """Return the time of a training step."""
    uses = uses_of(options)
    layouts = []
    notes = []
    for use in uses.uses:
        bandwidth = None
        if "mfu" in options:
            share = options["mfu"]
            note = EXECUTED.format(share)
        else:
            share, note = matmul_share(use)
            bandwidth = use.machine.bandwidth(MEASURED_FIRST)
        notes.append(note)
        layouts.append(
            Layout(
                plan,
                use._replace(mfu=share),
                network_of(use.machine, options),
                options.get("interleave", 1),
                bandwidth.value if bandwidth else inf,
            )
        )
    return step_answer(layouts, tokens, list(dict.fromkeys(notes)), uses)


def step_answer(
    layouts: Sequence[Layout], tokens: float | None, notes: Sequence[str], uses: Uses
) -> Answer:
    """Return the times of layouts, what communication costs in the first one, and up to how many
    devices it scales.
    """
    rows = [_row(layout, tokens) for layout in layouts]
    first = layouts[0]
    plan = first.plan
    config = plan.config
    batch = plan.batch * plan.sharding.data_parallel
    moved = ""
    if first.bandwidth_bytes_per_s < inf:
        moved = f", activations at {quantity(first.bandwidth_bytes_per_s, 'B')}/s"
    return Answer(
        main=("step_range", "communication", "largest_gpus", "days_range", "price_range"),
        title=f"Training step of {config.name} on {count(first.devices, 'device')}: {batch} x "
        f"{plan.sequence} tokens",
        warnings=fit_warnings(rows, ZERO_3),
        **by_machine(rows),
        steps=steps_of(
            STEPS,
            **{part: seconds or None for part, seconds in first.parts.items()},
            layout=first,
            plan=plan,
            sharding=plan.sharding,
            sent=first.traffic.sent,
            sending=first.traffic.sending,
            moved=moved,
            runs=published_runs(first),
            row=rows[0],
        ),
        formula=FORMULA,
        source=f"{SOURCE}; {uses.source}; {first.network.source}",
        assumptions=[
            *notes,
            f"MFU by convention {DEFAULT_CONVENTION}; HFU by executed FLOPs, waiting included",
            (
                f"micro-batches of {plan.tokens} tokens; checkpointing: {plan.checkpoint}; flash "
                f"attention, fused kernels"
            ),
            *HIDDEN,
            (
                f"scaling: data parallelism grows, a step keeps its {batch} sequences; linear: "
                "in proportion to the speed of the fewest devices"
            ),
            (
                "left out: launches, uneven experts, stragglers, data loading, failures, memory of "
                "interleaving"
            ),
            *config.notes_on(plan.sequence),
            *uses.notes,
        ],
        columns={
            "gpu": "GPU",
            "dtype": "dtype",
            "communication": "communication",
            "mfu": "MFU",
            "hfu": "HFU",
            "largest_gpus": "scales to",
            "step_seconds": "step",
        },
        curve=Curve(
            "devices", "fraction of linear speed", {config.name: list(scaling(first).items())}
        ),
    )


def _row(layout: Layout, tokens: float | None) -> Row:
    """Return the time, speed and memory of a step, and the time and price of all tokens."""
    plan = layout.plan
    use = layout.use
    runs = published_runs(layout)
    step_seconds = layout.seconds
    parts = layout.parts
    sent = {f"sent_{kind}_bytes": layout.traffic.sent[kind] for kind in KINDS}
    row = use.row | asdict(plan.sharding) | sent
    row |= {
        "gpus": layout.devices,
        "micro_batches": plan.micro_batches,
        "total_bytes": layout.total_bytes,
        "sent_bytes": sum(sent.values()),
        "bubble": layout.bubble,
        "communication": sum(parts[kind] for kind in KINDS) / step_seconds,
    }
    row |= {f"{part}_seconds": seconds for part, seconds in parts.items()}
    row |= {
        "step_seconds": step_seconds,
        "least_step_seconds": runs.least * step_seconds,
        "most_step_seconds": runs.most * step_seconds,
        "step_range": runs.range_of(step_seconds),
    }
    speed = plan.batch * plan.sharding.data_parallel * plan.sequence / step_seconds
    speed_each = speed / layout.devices
    reached = train_flops(plan.config, plan.sequence).per_token * speed_each
    executed = train_flops(plan.config, plan.sequence, 1, "gemm-causal-half", plan.checkpoint)
    known = use.machine.peak(use.dtype)
    peak = known.value if known else use.peak
    row |= {"tokens_per_s": speed, "flops_per_s": reached, "mfu": share_of(reached, peak)}
    row["hfu"] = share_of(executed.hardware_flops / executed.tokens * speed_each, peak)
    far = [devices for devices, linear in scaling(layout).items() if linear >= SCALES]
    row["largest_gpus"] = max(far)
    if tokens is not None:
        seconds = tokens / speed
        row |= use.cost(layout.devices, seconds)
        row |= {
            "seconds": seconds,
            "days": seconds / SECONDS_PER_DAY,
            "device_hours": layout.devices * seconds / 3600,
            "days_range": runs.range_of(seconds),
        }
        row["price_range"] = row["price"] and runs.range_of(row["price"], number)
    memory_bytes = use.machine.usable_memory_bytes
    needed = least_devices(plan, memory_bytes) if memory_bytes else None
    return row | fit_row(use.machine, layout.total_bytes, needed)


def scaling(layout: Layout) -> dict[int, float]:
    """Return the speed as a fraction of linear by the number of devices: data parallelism grows,
    the batch does not.

    Linear is the speed for each device of the fewest: one data-parallel device, or those that hold
    all experts.
    """
    plan = layout.plan
    sharding = plan.sharding
    micro_batches = plan.micro_batches * sharding.data_parallel
    sequences = plan.batch // plan.micro_batches
    small = [ways for ways in range(1, isqrt(micro_batches) + 1) if micro_batches % ways == 0]
    speeds = {}
    for data in sorted({*small, *(micro_batches // ways for ways in small)}):
        if data % sharding.expert_parallel == 0:
            count = micro_batches // data
            shared = replace(sharding, data_parallel=data)
            grown = replace(plan, batch=count * sequences, micro_batches=count, sharding=shared)
            other = replace(layout, plan=grown)
            speeds[other.devices] = 1 / (other.seconds * other.devices)
    first = speeds[min(speeds)]
    return {count: speed / first for count, speed in speeds.items()}


def shardings(
    gpus: int, config: ModelConfig, batch: int, sequence: int, least_zero: int = 0
) -> list[Sharding]:
    """Return the layouts whose parts are equal: heads, layers, experts, sequences of the batch and
    their tokens divide evenly.

    Tensor and context parallelism stay within a node: both wait for each layer.
    """
    found = []
    experts = config.experts.count if config.experts else 1
    inside = range(1, NODE_DEVICES + 1)
    stages = range(1, config.layers + 1)
    for tensor, context, pipeline in product(inside, CONTEXT_WAYS, stages):
        data, rest = divmod(gpus, tensor * context * pipeline)
        uneven = config.kv_heads % tensor or sequence % context or config.layers % pipeline
        if tensor * context > NODE_DEVICES or uneven or rest or not data or batch % data:
            continue
        # With a pipeline, stages 2 and 3 would share gradients and weights again for each
        # micro-batch.
        highest = 0
        if data * context > 1:
            highest = 3 if pipeline == 1 else 1
        shared = gcd(data, experts)
        ways = [count for count in range(1, shared + 1) if shared % count == 0]
        pairs = product(range(least_zero, highest + 1), ways)
        found += [Sharding(zero, data, tensor, pipeline, each, context) for zero, each in pairs]
    return found
