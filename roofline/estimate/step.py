"""Time of a training step that devices share: matmuls, memory, and what communication adds to
them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import inf
from pathlib import Path
from typing import NamedTuple

from results.show.units import quantity
from roofline.accounting.activations import (
    checkpoint_group,
    model_activations,
    recomputed_layers,
)
from roofline.accounting.config import ConfigError, ModelConfig
from roofline.accounting.flops import train_flops
from roofline.accounting.inference import kv_bytes_per_token
from roofline.accounting.state import FP32_BYTES, held_weights, state_bytes
from roofline.accounting.step_memory import StepPlan, step_memory
from roofline.estimate.options import Options, Use
from roofline.gpu_table import pcie_bytes_per_s
from roofline.links import Fit, bus_factor, read_fits
from roofline.machine import MEASURED_FIRST, Machine

NODE_DEVICES = 8
"""Devices of a node, as in an HGX or DGX H100: tensor parallelism across nodes waits for the
network.
"""

NETWORK_BYTES_PER_S = 50e9
"""Between nodes, of one device, one way: 400 Gb/s InfiniBand (NDR) for each GPU, as in a DGX
H100.
"""

BETWEEN_PAIRS = ("all-to-all", "send-recv")
"""Collectives of which each device sends its own data between nodes; the others send theirs once
for a node.
"""


@dataclass(frozen=True)
class Network:
    """The links of a device, one way."""

    link_bytes_per_s: float
    """Within a node."""
    network_bytes_per_s: float = NETWORK_BYTES_PER_S
    """Between nodes."""
    node_devices: int = NODE_DEVICES
    fits: Mapping[str, Fit] = field(default_factory=dict)
    """Measured collectives, which replace these figures for groups of the same kind: within a node,
    or across.
    """
    kind: str = "links"
    """`bridges` between a few cards of a host, which reach the others over PCI Express, one slot
    each; or `PCI Express` alone.
    """

    def seconds(self, op: str, size_bytes: float, ranks: int, stride: int) -> float:
        """Return the time of a collective of every `stride`-th device, as all such groups of a node
        run it together.
        """
        is_inside = ranks * stride <= self.node_devices
        members = 1 if op in BETWEEN_PAIRS else max(1, self.node_devices // stride)
        fit = self.fits.get(op)
        if fit and (fit.ranks <= self.node_devices) == is_inside:
            slower = 1 if is_inside or op in BETWEEN_PAIRS else self.node_devices / members
            return fit.seconds(slower * size_bytes, ranks)
        if is_inside:
            return size_bytes * bus_factor(op, ranks) / self.link_bytes_per_s
        if op == "all-to-all":  # only what is for other nodes takes the network
            others = 1 - max(1, self.node_devices // stride) / ranks
            return size_bytes * others / self.network_bytes_per_s
        rails = 1 if self.kind == "bridges" else members
        across = min(self.link_bytes_per_s, rails * self.network_bytes_per_s)
        return size_bytes * bus_factor(op, ranks) / across

    def derivation(self, op: str, ranks: int) -> str:
        """Return how `seconds` has the bandwidth of a collective of neighbors."""
        if op in self.fits:
            return "measured"
        if ranks <= self.node_devices:
            return f"{self.kind} within a node"
        beyond = quantity(self.network_bytes_per_s, "B")
        if op == "all-to-all":
            others = f"{ranks - 1} / {ranks - self.node_devices}"
            return f"{beyond} x {others}, as {self.node_devices} of {ranks} are in the node"
        rails = 1 if self.kind == "bridges" or op in BETWEEN_PAIRS else self.node_devices
        return f"the least of the {self.kind} and {rails} x {beyond} of a node"

    @property
    def source(self) -> str:
        known = [f"{op} measured on {fit.ranks} ranks" for op, fit in self.fits.items()]
        link = f"{quantity(self.link_bytes_per_s, 'B')}/s"
        known.append(f"{self.kind} of {link} between {self.node_devices} devices (--node), one way")
        known.append(f"{quantity(self.network_bytes_per_s, 'B')}/s beyond them (--network)")
        return "; ".join(known)


class Traffic(NamedTuple):
    """What a device sends in a step, by kind of parallelism."""

    sent: dict[str, int]
    """Bytes."""
    sending: dict[str, float]
    """Seconds."""


@dataclass(frozen=True)
class Layout:
    """A step of training, shared by devices."""

    plan: StepPlan
    use: Use
    network: Network
    interleave: int = 1
    """Parts of the model on each pipeline stage."""
    bandwidth_bytes_per_s: float = inf
    """Of the memory; infinite if the MFU includes work that it limits."""

    @cached_property
    def stage(self) -> ModelConfig:
        return self.plan.sharding.stage(self.plan.config)

    @cached_property
    def total_bytes(self) -> int:
        """Memory of the fuller device."""
        return step_memory(self.plan).total

    @property
    def bubble(self) -> float:
        """Fraction of the ideal time that a stage waits: (p - 1) / (m v).

        Source: Narayanan et al., Efficient Large-Scale Language Model Training on GPU Clusters
        (2021), sections 2.2.1 and 2.2.2.
        """
        waiting = self.plan.sharding.pipeline_parallel - 1
        return waiting / (self.plan.micro_batches * self.interleave)

    @cached_property
    def traffic(self) -> Traffic:
        """What a device sends in a step, and how long, by kind of parallelism.

        Tensor parallelism is innermost, then context, experts, data and pipeline.

        Sources:

        - data: Rajbhandari et al., ZeRO (2020), section 7. Up to stage 1 gradients are reduced
          once; stage 2 scatters those of each micro-batch and gathers the weights once; stage 3
          also gathers them twice for each.
        - tensor: Shoeybi et al., Megatron-LM (2019), section 3: two reductions of the hidden states
          of a layer forward and two backward; sequence parallelism scatters and gathers as much
          (Korthikanti et al., 2022, section 4.2.2).
        - experts: Lepikhin et al., GShard (2020): tokens go to their experts and return, forward
          and backward.
        - context: Liu et al., Ring Attention (2023): keys and values of the other devices.
        - pipeline: Narayanan et al. (2021), section 3.2: the hidden states once in each direction.
        """
        plan = self.plan
        sharding = plan.sharding
        micro_batches = plan.micro_batches
        data = sharding.data_parallel
        tensor = sharding.tensor_parallel
        pipeline = sharding.pipeline_parallel
        sent = dict.fromkeys(KINDS, 0)
        sending = dict.fromkeys(KINDS, 0.0)

        def send(
            kind: str, op: str, size_bytes: int, ranks: int, times: int, stride: int = 1
        ) -> None:
            """Add a collective of every `stride`-th device; its size is counted as by
            `roofline.links`.
            """
            if ranks > 1:
                sent[kind] += round(times * size_bytes * bus_factor(op, ranks))
                sending[kind] += times * self.network.seconds(op, size_bytes, ranks, stride)

        context = sharding.context_parallel
        tokens = plan.tokens // context
        hidden_bytes = tokens * plan.config.width * plan.recipe.activation_bytes
        own_bytes = hidden_bytes // plan.shared_kernels.token_ways
        rounds = micro_batches * (6 if checkpoint_group(plan.checkpoint, self.stage.layers) else 4)
        send("tensor", "all-reduce", hidden_bytes, tensor, self.stage.layers * rounds)
        # Each device needs all keys and values, forward and backward, and their gradients return.
        cached_bytes = kv_bytes_per_token(self.stage, plan.recipe.activation_bytes) * plan.tokens
        cached_bytes //= min(tensor, plan.config.kv_heads)
        send("context", "all-gather", cached_bytes, context, rounds // 2, tensor)
        send("context", "reduce-scatter", cached_bytes, context, micro_batches, tensor)
        experts = self.stage.experts
        if experts:
            routed_bytes = experts.per_token * own_bytes
            times = experts.layers * rounds
            send("expert", "all-to-all", routed_bytes, sharding.expert_parallel, times, tensor)
        # The slowest send counts: it is between nodes if one node does not have all devices.
        across = -(-data * tensor * context * pipeline // 2)
        sends = 2 * micro_batches * self.interleave
        send("pipeline", "send-recv", own_bytes, min(2, pipeline), sends, across)
        reduction = "reduce-scatter" if sharding.zero else "all-reduce"
        reduced = micro_batches if sharding.zero > 1 else 1
        gathered = 2 * micro_batches if sharding.zero == 3 else int(sharding.zero > 0)
        elements = {True: 0, False: 0}
        for weight in held_weights(plan.config, sharding):
            elements[weight.component == "experts"] += weight.elements
        replicas = sharding.replicas_of_experts()
        for are_experts, ranks, stride in (
            (False, sharding.same_weights, tensor),
            (True, replicas, sharding.same_weights * tensor // replicas),
        ):
            gradients = plan.recipe.gradient_bytes * elements[are_experts]
            weights = plan.recipe.activation_bytes * elements[are_experts]
            send("data", reduction, gradients, ranks, reduced, stride)
            send("data", "all-gather", weights, ranks, gathered, stride)
        return Traffic(sent, sending)

    @cached_property
    def computing(self) -> tuple[float, float]:
        """Seconds of a micro-batch in the layers of a stage, and in the head.

        What the forward pass saves is written and read by it, and read by the backward pass, which
        writes and reads a gradient of the same size; recomputation writes and reads it again.
        Attention scores are computed in 16 bits.
        """
        plan = self.plan
        kernels = plan.shared_kernels
        ways = plan.sharding.tensor_parallel
        context = plan.sharding.context_parallel
        sequences = plan.batch // plan.micro_batches
        counted_by = "gemm-causal-half" if kernels.is_flash else "gemm-full"
        own = plan.sequence // context
        counts = train_flops(
            self.stage, plan.sequence, sequences, counted_by, plan.checkpoint, kernels.is_flash
        )
        head = counts.components.get("lm_head", 0)
        core = counts.components.get("attention_core", 0)
        core += counts.recomputed.get("attention_core", 0)
        core += counts.recomputed.get("attention_scores", 0)
        scores = self.use.machine.peak("bf16", MEASURED_FIRST)
        core_peak = min(self.use.peak, scores.value) if scores else self.use.peak
        flops_s = (counts.hardware_flops - head - core) / self.use.peak + core / core_peak
        flops_s = flops_s / self.use.mfu / ways
        flops_s /= context
        saved = model_activations(self.stage, own, sequences, kernels)
        again = saved if recomputed_layers(plan.checkpoint, self.stage.layers, kernels) else {}
        if plan.checkpoint == "selective" and not kernels.is_flash:
            again = {"attention_scores": saved.get("attention_scores", 0)}
        layers_bytes = 5 * sum(saved.values()) + 2 * sum(again.values())
        head_bytes = 5 * FP32_BYTES * sequences * own * self.stage.vocabulary / ways
        head_s = head / self.use.peak / self.use.mfu / ways / context
        head_s += head_bytes / self.bandwidth_bytes_per_s
        return flops_s + layers_bytes / self.bandwidth_bytes_per_s, head_s

    @cached_property
    def parts(self) -> dict[str, float]:
        """Seconds of a step by part, of the stage that takes the longest; communication as far as
        it is not hidden.

        Tensor, context and expert parallelism wait for each collective. Gradients and weights move
        during the backward pass (stage 3: and the forward pass) except for the last bucket, of one
        layer; up to stage 1 that of the last micro-batch. A pipeline waits for the sends while it
        fills and drains. The optimizer reads and writes its state.
        """
        plan = self.plan
        count = plan.micro_batches
        pipeline = plan.sharding.pipeline_parallel
        sending = self.traffic.sending
        layers_s, head_s = self.computing
        inside_s = sending["tensor"] + sending["context"] + sending["expert"]
        whole_s = layers_s + inside_s / count
        last_layers = max(0, plan.config.layers - (pipeline - 1) * self.stage.layers)
        share = last_layers / self.stage.layers
        # A full stage without the head may take longer than the last one.
        if pipeline > 1 and whole_s > share * whole_s + head_s:
            share = 1.0
            head_s = 0.0
        ideal_s = count * (share * whole_s + head_s)
        hidden_s = ideal_s * {2: BACKWARD, 3: 1.0}.get(plan.sharding.zero, BACKWARD / count)
        filling_s = sending["pipeline"] * (pipeline - 1) / (count * self.interleave)
        state = state_bytes(plan.config, plan.recipe, plan.optimizer, plan.sharding)
        return {
            "compute": count * (share * layers_s + head_s),
            "tensor": share * sending["tensor"],
            "context": share * sending["context"],
            "expert": share * sending["expert"],
            "bubble": self.bubble * ideal_s,
            "data": max(sending["data"] / self.stage.layers, sending["data"] - hidden_s),
            "pipeline": max(filling_s, sending["pipeline"] - ideal_s),
            "optimizer": 2 * sum(state.values()) / self.bandwidth_bytes_per_s,
        }

    @cached_property
    def seconds(self) -> float:
        """Time of a step."""
        return sum(self.parts.values())

    @property
    def devices(self) -> int:
        return self.plan.sharding.devices


KINDS = ("data", "tensor", "pipeline", "expert", "context")
BACKWARD = 2 / 3
"""Fraction of a step that is its backward pass; recomputation makes it longer."""

BEST_MATMULS = {"ampere": 271.2 / 312, "hopper": 794.5 / 989, "blackwell": 1745 / 2250}
"""Fraction of the bf16 peak that the fastest of many matmuls reaches on an A100, H100 and B200 SXM.

Source: Bekman, Machine Learning Engineering, compute/accelerator, maximum achievable matmul FLOPS.
"""

LAYER_MATMULS = 0.7
"""Speed of the matmuls of a training step, compared with the fastest matmul: the same for all GPUs.

Source: fitted to the ten runs of Narayanan et al. (2021), table 1, whose median error is then below
1 %.
"""


def matmul_share(use: Use) -> tuple[float, str]:
    """Return the fraction of the peak that the matmuls of a training step reach, and a note."""
    peak = use.machine.peak(use.dtype, MEASURED_FIRST)
    best = BEST_MATMULS.get(use.machine.architecture or "", 0.8)
    origin = "published or typical"
    if peak and peak.kind == "measured":
        best = 1
        origin = "measured"
    share = LAYER_MATMULS * best
    fastest = f"{LAYER_MATMULS:g} of the fastest, {best:.3g} ({origin})"
    return share, f"matmuls at {share:.3g} of the peak: {fastest}"


def network_of(machine: Machine, options: Options) -> Network:
    """Return the links of a device; ConfigError if they are unknown.

    Cards that no link or bridge joins use PCI Express, which also limits the network of each.
    Without a link in the table, collectives that were not measured are as slow as the slowest one.
    """
    fits: dict[str, Fit] = {}
    if "measured" in options and Path(options["measured"]).is_dir():
        fits = read_fits(Path(options["measured"]))
    link = (machine.link_bytes_per_s or 0) / 2
    if not link and fits:
        link = min(fit.bytes_per_s for fit in fits.values())
    slot = pcie_bytes_per_s(machine)
    kind = "links"
    if not link and slot:
        link = slot
        kind = "PCI Express"
    link = link or options.get("network") or 0
    if not link:
        raise ConfigError(
            f"{machine.slug} has no known link between devices: give its bandwidth, --network"
        )
    joined = options.get("node") or machine.link_devices or NODE_DEVICES
    if joined == machine.link_devices and joined < NODE_DEVICES:
        kind = "bridges"
    return Network(
        link,
        options.get("network") or min(NETWORK_BYTES_PER_S, slot or inf),
        joined,
        fits,
        kind,
    )
