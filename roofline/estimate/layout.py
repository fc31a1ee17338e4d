"""Estimate of a layout: how devices share a training step, what each holds and sends, and how long it waits."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Unpack

from results.show.units import devices, duration, number, size
from results.show.units import memory as in_gib
from roofline.accounting.config import ConfigError
from roofline.accounting.flops import train_flops
from roofline.accounting.machines import memory_of
from roofline.accounting.parameters import count_parameters
from roofline.accounting.state import RECIPES, Sharding
from roofline.accounting.step_memory import StepPlan, step_memory
from roofline.estimate.answer import Answer, Step
from roofline.estimate.models import Optimizer, Recipe
from roofline.estimate.options import Serving, Use, model_of, sources_of, uses_of
from roofline.estimate.question import Model, Number, Share, Whole, question

MAX_TENSOR_PARALLEL = 8
"""Devices of a node, as in an HGX or DGX H100: tensor parallelism across nodes waits for the network."""

SHOWN = 5

SOURCE = "Rajbhandari et al., ZeRO (2020); Shoeybi et al., Megatron-LM (2019); Narayanan et al. (2021)"

ACTIVATION_BYTES = 2
"""Of an element that devices send each other, in bf16."""

COLUMNS = {
    **{"gpu": "GPU", "data_parallel": "data", "tensor_parallel": "tensor", "pipeline_parallel": "pipeline"},
    **{"zero": "ZeRO", "total_bytes": "memory", "sent_bytes": "sent a step", "bubble": "bubble", "seconds": "step"},
}


@dataclass(frozen=True)
class Layout:
    """A step of training, shared by devices; the micro-batch is one sequence."""

    plan: StepPlan
    use: Use
    link_bytes_per_s: float
    """Of one device, in one direction."""

    @property
    def sharding(self) -> Sharding:
        return self.plan.sharding

    @cached_property
    def total_bytes(self) -> int:
        """Memory of the fuller device."""
        return sum(step_memory(self.plan).parts().values())

    @property
    def bubble(self) -> float:
        """Fraction of the ideal time that a stage waits: (p - 1) / m.

        Source: Narayanan et al., Efficient Large-Scale Language Model Training on GPU Clusters (2021), section 2.2.1.
        """
        return (self.sharding.pipeline_parallel - 1) / self.plan.micro_batches

    def sent(self) -> dict[str, int]:
        """Return the bytes that a device sends in a step, by kind of parallelism.

        A ring sends 2 (n - 1) / n of a tensor to reduce it on n devices, and half of that to gather it.

        Source: data: Rajbhandari et al., ZeRO (2020), section 7. Up to stage 1 gradients are reduced once; stage 2
        scatters those of each micro-batch and gathers the weights once; stage 3 also gathers them twice for each.
        Tensor: Shoeybi et al., Megatron-LM (2019), section 3: two reductions of the hidden states of a layer forward
        and two backward. Pipeline: Narayanan et al. (2021), section 3.2: the hidden states once in each direction.
        """
        plan, sharding = self.plan, self.sharding
        hidden_bytes = plan.tokens * plan.config.width * ACTIVATION_BYTES
        data, tensor, pipeline = sharding.data_parallel, sharding.tensor_parallel, sharding.pipeline_parallel
        layers = sharding.stage(plan.config).layers
        weight_bytes = count_parameters(plan.config).total * ACTIVATION_BYTES // (tensor * pipeline)
        passes = {0: 2, 1: 2, 2: plan.micro_batches + 1, 3: 3 * plan.micro_batches}[sharding.zero]
        return {
            "data": passes * weight_bytes * (data - 1) // data,
            "tensor": plan.micro_batches * 4 * layers * 2 * hidden_bytes * (tensor - 1) // tensor,
            "pipeline": plan.micro_batches * 2 * hidden_bytes * (pipeline > 1),
        }

    @cached_property
    def seconds(self) -> float:
        """Time of a step: its FLOPs at the MFU, the bubble, and what is sent, one after the other."""
        plan, gpus = self.plan, self.devices
        flops = train_flops(plan.config, plan.sequence).per_token * plan.sequence * plan.batch
        compute_s = flops * self.sharding.data_parallel / self.use.speed(gpus)
        return compute_s * (1 + self.bubble) + sum(self.sent().values()) / self.link_bytes_per_s

    @property
    def devices(self) -> int:
        return self.sharding.data_parallel * self.sharding.tensor_parallel * self.sharding.pipeline_parallel

    def row(self) -> dict[str, Any]:
        names = ("data_parallel", "tensor_parallel", "pipeline_parallel", "zero")
        return {
            **self.use.row,
            **{name: getattr(self.sharding, name) for name in names},
            "micro_batches": self.plan.micro_batches,
            "total_bytes": self.total_bytes,
            "memory_bytes": memory_of(self.use.machine),
            **{f"sent_{kind}_bytes": sent for kind, sent in self.sent().items()},
            "sent_bytes": sum(self.sent().values()),
            "bubble": self.bubble,
            "seconds": self.seconds,
        }


@question
def parallel(
    model: Model | None = None,
    gpus: Whole = 8,
    sequence: Whole = 2048,
    batch: Whole = 1024,
    recipe: Recipe = "bf16-master",
    optimizer: Optimizer = "adamw",
    checkpoint: str = "none",
    mfu: Share = 0.5,
    memory: Number | None = None,
    **options: Unpack[Serving],
) -> Answer:
    """Layouts of a training step on devices: data, tensor and pipeline parallelism and ZeRO, the fastest first."""
    config = model_of(model, options)
    uses, missing = uses_of(options, memory)
    found: list[Layout] = []
    for use in uses:
        link = use.machine.link_bytes_per_s
        if not link:
            raise ConfigError(f"{use.machine.slug} has no known link between devices; --gpu names one that has")
        for sharding in shardings(gpus, config.layers, config.kv_heads, batch):
            micro_batches = batch // sharding.data_parallel
            plan = StepPlan(
                config=config,
                recipe=RECIPES[recipe],
                optimizer=optimizer,
                sequence=sequence,
                batch=micro_batches,
                micro_batches=micro_batches,
                checkpoint=checkpoint,
                sharding=sharding,
            )
            found.append(Layout(plan, use._replace(mfu=mfu), link / 2))
    fitting = [layout for layout in found if layout.total_bytes <= memory_of(layout.use.machine)]
    if not found:
        raise ConfigError(f"no number of data-parallel devices among {gpus} divides a batch of {batch} sequences")
    if not fitting:
        least = size(min(layout.total_bytes for layout in found))
        raise ConfigError(
            f"no layout fits: the smallest takes {least} on each of {devices(gpus)}; --checkpoint full or more --gpus"
        )
    fitting.sort(key=lambda layout: layout.seconds)
    rows = [layout.row() for layout in fitting[:SHOWN]]
    return Answer(
        main=("data_parallel", "tensor_parallel", "pipeline_parallel", "zero", "seconds"),
        title=f"Layout of {config.name} on {devices(gpus)}: {batch} x {sequence} tokens a step",
        values=rows[0],
        rows=rows,
        worked=f"{rows[0]['gpu']}, {rows[0]['dtype']}",
        steps=_steps(fitting[0]),
        formula="step = FLOPs / (devices x peak x MFU) x (1 + (p - 1) / m) + bytes sent / link",
        source=f"{SOURCE}; {sources_of(use.machine for use in uses)}",
        assumptions=[
            f"MFU {mfu:g} without communication; micro-batches of one sequence; checkpointing: {checkpoint}",
            "links as fast as within a node between all devices; nothing is sent while they compute",
            f"tensor parallelism of at most {MAX_TENSOR_PARALLEL}, the devices of a node",
            f"{len(fitting)} of {len(found)} layouts fit; the {len(rows)} fastest are shown",
            *config.notes_on(sequence),
            *missing,
        ],
        columns=COLUMNS,
    )


def _steps(best: Layout) -> list[Step]:
    data, tensor, stages = (best.row()[f"{kind}_parallel"] for kind in ("data", "tensor", "pipeline"))
    sent, zero, micro_batches = best.sent(), best.sharding.zero, best.plan.micro_batches
    speed = f"{number(best.use.speed(best.devices))} FLOP/s"
    return [
        Step("devices", f"{data} data x {tensor} tensor x {stages} pipeline", f"{best.devices:,}"),
        Step("memory", f"ZeRO {zero}, of {in_gib(memory_of(best.use.machine))}", size(best.total_bytes)),
        *(Step(f"sent for {kind}", "by a device in a step", size(moved)) for kind, moved in sent.items() if moved),
        Step("link", "of a device, one way", f"{size(best.link_bytes_per_s)}/s"),
        Step("bubble", f"({stages} - 1) / {micro_batches} micro-batches", f"{100 * best.bubble:.1f} %"),
        Step("step", f"FLOPs / {speed} with the bubble + sent / link", duration(best.seconds)),
    ]


def shardings(gpus: int, layers: int, kv_heads: int, batch: int) -> list[Sharding]:
    """Return the layouts whose parts are equal: heads, layers and sequences of the batch divide evenly."""
    tensors = [ways for ways in range(1, MAX_TENSOR_PARALLEL + 1) if gpus % ways == 0 and kv_heads % ways == 0]
    found = []
    for tensor in tensors:
        stages = [ways for ways in range(1, layers + 1) if layers % ways == 0 and gpus // tensor % ways == 0]
        for pipeline in stages:
            data = gpus // tensor // pipeline
            if batch % data == 0:
                # With a pipeline, stages 2 and 3 would share gradients and weights again for each micro-batch.
                highest = 3 if data > 1 and pipeline == 1 else 1 if data > 1 else 0
                found += [Sharding(zero, data, tensor, pipeline) for zero in range(highest + 1)]
    return found
