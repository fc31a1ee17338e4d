"""A worked answer about generation: prefill and decode on the roofline, and the cache."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from typing import Any, NamedTuple

from roofline.accounting.answers.answer import Answer, Step, by_machine, count, devices, duration, memory, number, size
from roofline.accounting.answers.budget import Use
from roofline.accounting.config.config import ConfigError, ModelConfig
from roofline.accounting.inference import (
    compute_bound_from,
    critical_batch,
    decode_bytes,
    decode_flops,
    kv_bytes_per_token,
    kv_cache_bytes,
    prefill_bytes,
    prefill_flops,
    weight_bytes_read,
)
from roofline.accounting.machines import Machine
from roofline.accounting.parameters import count_parameters
from roofline.model import bound, least_time_s
from roofline.work import DTYPE_BITS

STORED_BITS = {**DTYPE_BITS, "nvfp4": 4.5, "int4": 4.15625, "mxfp4": 4.25}
"""Of one weight, its share of what its group has in common included: nvfp4 an 8-bit scale for 16, int4 a 16-bit scale
and a 4-bit zero for 128 (Frantar et al., GPTQ; Lin et al., AWQ), mxfp4 an 8-bit scale for 32 (OCP Microscaling)."""


FORMULA = (
    "prefill >= max((2 N_mm s + pairs) / peak, bytes / bandwidth); decode >= max((2 N_mm + pairs) B / peak, "
    "(weights + B s kv) / bandwidth); critical batch: the first at which both are as long"
)

COLUMNS = (
    ("gpu", "GPU"),
    ("dtype", "dtype"),
    ("prefill_seconds", "prefill"),
    ("prefill_bound", "bound"),
    ("decode_seconds", "decode step"),
    ("decode_bound", "bound"),
    ("tokens_per_s", "tokens/s"),
    ("critical_batch", "critical batch"),
    ("used", "memory"),
)


Model = ModelConfig | float
"""A model, or the number of parameters of a dense one."""

PARAMETERS_FORMULA = "prefill >= max(2 N B s / peak, N w / bandwidth); decode >= max(2 N B / peak, N w / bandwidth)"
PARAMETERS_NOTES = (
    "a dense model: 2 N FLOPs for each token, and every weight is read once a step",
    "the cache and attention's own products depend on the model and are left out: long contexts take longer",
)


def infer_answer(
    model: Model,
    uses: Sequence[Use],
    prompt: int,
    batch: int = 1,
    weight_dtype: str | None = None,
    kv_dtype: str = "bf16",
    gpus: int = 1,
    notes: Sequence[str] = (),
) -> Answer:
    """Return the least time of prefill and of one decode step on each machine.

    Args:
        model: what generates.
        uses: machines and the dtypes that they compute in.
        prompt: tokens of each prompt, which the decode step sees.
        batch: sequences at once.
        weight_dtype: in which the weights lie; None: as computed.
        kv_dtype: in which the cache lies.
        gpus: devices that share the model evenly, without communication.
        notes: further assumptions.

    Raises:
        ConfigError: the cache cannot lie in that dtype.
    """
    whole_bytes(kv_dtype)
    rows = [row_of(model, use, prompt, batch, weight_dtype or use[1], kv_dtype, gpus) for use in uses]
    machine, dtype = uses[0]
    has_cache = isinstance(model, ModelConfig)
    turning = f"critical batch: with {prompt} tokens in each cache; beside it stands the one without any cache"
    of_cache = {"kv_bytes_per_token": rows[0]["kv_bytes_per_token"]} if has_cache else {}
    return Answer(
        main=("decode_seconds", "tokens_per_s", "prefill_seconds"),
        title=f"Generation with {name_of(model)}: {batch} x {prompt} tokens, {devices(gpus)}",
        warnings=[line for row in rows if (line := does_not_fit(row, gpus))],
        values=of_cache | by_machine(rows),
        steps=_steps(model, rows[0], prompt, batch),
        formula=FORMULA if has_cache else PARAMETERS_FORMULA,
        source="Pope et al. (2022); Austin et al. (2025); " + "; ".join(dict.fromkeys(use[0].source for use in uses)),
        assumptions=[
            *serving_notes(model, prompt, weight_dtype, kv_dtype),
            *([turning] if has_cache else []),
            *notes,
        ],
        rows=rows,
        columns=COLUMNS,
        worked=f"{machine.slug}, {dtype}",
    )


def name_of(model: Model) -> str:
    """Return what a model is called; of one that is not known, how many parameters it has."""
    return model.name if isinstance(model, ModelConfig) else f"{number(model)} parameters"


def row_of(
    model: Model, use: Use, prompt: int, batch: int, weight_dtype: str, kv_dtype: str, gpus: int
) -> dict[str, Any]:
    """Return what is known of generation on a machine; by the number of parameters alone, what a cache does is None.

    Source: `FORMULA` and `PARAMETERS_FORMULA`, of Pope et al., Efficiently Scaling Transformer Inference (2022).
    """
    machine, dtype = use
    weight_bytes, kv_bytes = element_bytes(weight_dtype), whole_bytes(kv_dtype)
    if not isinstance(model, ModelConfig):
        stored = max(1, round(model * weight_bytes))
        phases = Phase(round(2 * model * batch * prompt), stored), Phase(round(2 * model * batch), stored)
        turning = ceil(critical_batch(machine.peak(dtype), machine.bandwidth(), weight_bytes))
        read = {"critical_batch": turning, "weight_bytes_read": stored}
        return {**_bounds(use, gpus, batch, *phases), **read, **_share_of(machine, gpus, stored, None)}
    prefill_moved = prefill_bytes(model, prompt, batch, weight_bytes, kv_bytes)
    decode_moved = decode_bytes(model, prompt, batch, weight_bytes, kv_bytes)
    limits = (gpus * machine.peak(dtype), gpus * machine.bandwidth(), weight_bytes, kv_bytes)
    return {
        **_bounds(
            use,
            gpus,
            batch,
            Phase(prefill_flops(model, prompt, batch), prefill_moved),
            Phase(decode_flops(model, prompt, batch), decode_moved),
        ),
        "kv_bytes_per_token": kv_bytes_per_token(model, kv_bytes),
        "critical_batch": compute_bound_from(model, prompt, *limits),
        "critical_batch_without_cache": compute_bound_from(model, 0, *limits),
        "weight_bytes_read": weight_bytes_read(model, batch, weight_bytes),
        **held_in(model, machine, prompt, batch, weight_bytes, kv_bytes, gpus),
    }


class Phase(NamedTuple):
    """The work of prefill or of one decode step, over all devices."""

    flops: int
    bytes: int


def _bounds(use: Use, gpus: int, batch: int, prefill: Phase, decode: Phase) -> dict[str, Any]:
    """Return the least times of both phases on so many devices of a machine, and what binds them."""
    machine, dtype = use
    peak, bandwidth = gpus * machine.peak(dtype), gpus * machine.bandwidth()
    decode_s = least_time_s(decode.flops, decode.bytes, peak, bandwidth)
    return {
        "gpu": machine.slug,
        "dtype": dtype,
        "prefill_seconds": least_time_s(prefill.flops, prefill.bytes, peak, bandwidth),
        "prefill_bound": bound(prefill.flops / peak, prefill.bytes / bandwidth, None),
        "decode_seconds": decode_s,
        "decode_bound": bound(decode.flops / peak, decode.bytes / bandwidth, None),
        "tokens_per_s": batch / decode_s,
        "prefill_flops": prefill.flops,
        "decode_flops": decode.flops,
        "prefill_bytes": prefill.bytes,
        "decode_bytes": decode.bytes,
        "peak_flops_per_s": peak,
        "bandwidth_bytes_per_s": bandwidth,
    }


def element_bytes(dtype: str) -> float:
    """Return the bytes of one weight in a dtype, its share of the scale of its block included."""
    return STORED_BITS[dtype] / 8


def whole_bytes(kv_dtype: str) -> int:
    """Return the bytes of one element of a cache.

    Raises:
        ConfigError: it has no whole bytes.
    """
    if DTYPE_BITS[kv_dtype] % 8:
        raise ConfigError(f"no cache in {kv_dtype}: whole bytes only, as bf16 or fp8e4m3")
    return DTYPE_BITS[kv_dtype] // 8


def held_in(
    config: ModelConfig, machine: Machine, positions: int, batch: int, weight_bytes: float, kv_bytes: int, gpus: int
) -> dict[str, Any]:
    """Return what weights and cache take of the memory of devices, and how many would hold them."""
    stored = round(count_parameters(config).total * weight_bytes)
    return _share_of(machine, gpus, stored, kv_cache_bytes(config, positions, batch, kv_bytes))


def _share_of(machine: Machine, gpus: int, stored: int, cache: int | None) -> dict[str, Any]:
    held, total = machine.memory_bytes, stored + (cache or 0)
    return {
        "weight_bytes": stored,
        "cache_bytes": cache,
        "memory_bytes": held,
        "used": None if held is None else total / (gpus * held),
        "fits": None if held is None else total <= gpus * held,
        "gpus_needed": None if held is None else -(-total // held),
    }


def does_not_fit(row: dict[str, Any], gpus: int) -> str | None:
    """Return what to say of a row whose weights and cache are larger than the memory; None where they fit."""
    if row["fits"] is not False:
        return None
    held = f"{size(row['weight_bytes'])} of weights"
    if row["cache_bytes"] is not None:
        held += f" and {size(row['cache_bytes'])} of cache"
    return (
        f"does not fit: {held} on {devices(gpus)} {row['gpu']} of {memory(row['memory_bytes'])}; it takes "
        f"{row['gpus_needed']:,} at least, and the times are hypothetical"
    )


def serving_notes(model: Model, positions: int, weight_dtype: str | None, kv_dtype: str) -> list[str]:
    """Return what every estimate of generation takes for granted, over so many positions."""
    lying = f"weights in {weight_dtype or 'the computing dtype'}"
    bounds = "lower bounds: peak and bandwidth are reached, activations do not count, devices share without talking"
    if not isinstance(model, ModelConfig):
        return [lying, *PARAMETERS_NOTES, bounds]
    lines = [f"{lying}, cache in {kv_dtype}", bounds, "in prefill the head is needed for the last token alone"]
    if model.latent:
        lines.append("latent attention: prefill expands keys and values; decoding uses the absorbed form")
    if model.experts:
        lines.append("experts: an even and independent choice")
    return [*lines, *model.notes_on(positions)]


def _steps(model: Model, row: dict[str, Any], prompt: int, batch: int) -> list[Step]:
    peak, bandwidth = number(row["peak_flops_per_s"]), number(row["bandwidth_bytes_per_s"])
    params = count_parameters(model).total if isinstance(model, ModelConfig) else model
    read, cache, without_cache = f"{size(row['weight_bytes_read'])} of weights", [], []
    moved = row["weight_bytes_read"]
    if isinstance(model, ModelConfig):
        windowed = f", {model.windowed_layers} layers keep {model.window} at most" if model.windowed_layers else ""
        cache = [
            Step("cache per token", f"{model.layers} layers", size(row["kv_bytes_per_token"])),
            Step("cache", f"{batch} x {prompt} tokens{windowed}", size(row["cache_bytes"])),
        ]
        moved += row["cache_bytes"]
        read += f" + {size(row['cache_bytes'])}"
        without_cache = [Step("without a cache", "the same at 0 tokens", _batch(row["critical_batch_without_cache"]))]
    return [
        Step("weights", f"{count(params)} parameters", size(row["weight_bytes"])),
        *cache,
        Step("prefill FLOPs", f"{batch} x {prompt} tokens", number(row["prefill_flops"])),
        Step(
            "prefill",
            f"{number(row['prefill_flops'])} / {peak} at best",
            f"{duration(row['prefill_seconds'])}, {row['prefill_bound']}-bound",
        ),
        Step("decode bytes", read, size(moved)),
        Step(
            "decode step",
            f"max({number(row['decode_flops'])} / {peak}, {number(moved)} / {bandwidth})",
            f"{duration(row['decode_seconds'])}, {row['decode_bound']}-bound",
        ),
        Step("tokens/s", f"{batch} / {duration(row['decode_seconds'])}", number(row["tokens_per_s"])),
        Step("critical batch", f"compute as long as memory at {prompt} tokens", _batch(row["critical_batch"])),
        *without_cache,
        Step("memory", *_held(row)),
    ]


def _held(row: dict[str, Any]) -> tuple[str, str]:
    if row["used"] is None:
        return "not known of this machine", "-"
    what = "weights" if row["cache_bytes"] is None else "weights and cache"
    return f"{what} / all devices of {memory(row['memory_bytes'])}", f"{100 * row['used']:.1f} %"


def _batch(value: int | None) -> str:
    return "never" if value is None else count(value)
