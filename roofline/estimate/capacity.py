"""Estimates of what memory leaves room for: the longest context and the largest batch of a model."""

from __future__ import annotations

from bisect import bisect_right
from typing import Any, Unpack

from results.show.units import count, devices, size
from results.show.units import memory as in_gib
from roofline.accounting.config import MAX_EXTENT, ConfigError, ModelConfig
from roofline.accounting.inference import kv_bytes_per_token, kv_cache_bytes
from roofline.accounting.machines import memory_of
from roofline.accounting.number_formats import STORED_BITS
from roofline.accounting.parameters import count_parameters
from roofline.estimate.answer import Answer, Step, by_machine
from roofline.estimate.options import Training, machines_of, model_of, sources_of
from roofline.estimate.question import Model, Number, Whole, question
from roofline.estimate.serving import Cached, Stored
from roofline.work import DTYPE_BITS


@question
def context(
    model: Model | None = None,
    prompt: Whole = 2048,
    batch: Whole = 1,
    weight_dtype: Stored = "bf16",
    kv_dtype: Cached = "bf16",
    gpus: Whole = 1,
    memory: Number | None = None,
    **options: Unpack[Training],
) -> Answer:
    """Longest context of a batch, and largest batch of a context, that fit beside the weights."""
    config = model_of(model, options)
    element_bytes, rest = divmod(DTYPE_BITS[kv_dtype], 8)
    if rest:
        raise ConfigError(f"no cache in {kv_dtype}: whole bytes only, as bf16 or fp8e4m3")
    machines = machines_of(options, memory)
    weight_bytes = max(1, round(count_parameters(config).total * STORED_BITS[weight_dtype] / 8))
    rows: list[dict[str, Any]] = []
    for machine in machines:
        free = gpus * memory_of(machine) - weight_bytes
        rows.append(
            {
                "gpu": machine.slug,
                "gpus": gpus,
                "memory_bytes": memory_of(machine),
                "free_bytes": free,
                "kv_bytes_per_token": kv_bytes_per_token(config, element_bytes),
                "context": longest_context(config, free, batch, element_bytes),
                "batch": largest_batch(config, free, prompt, element_bytes),
            }
        )
    row = rows[0]
    cache = size(kv_cache_bytes(config, prompt, 1, element_bytes))
    steps = [
        Step("memory", f"{gpus:,} x {in_gib(row['memory_bytes'])}", size(gpus * row["memory_bytes"])),
        Step("weights", f"{count(count_parameters(config).total)} parameters in {weight_dtype}", size(weight_bytes)),
        Step("left for the cache", "memory - weights", size(max(0, row["free_bytes"]))),
        Step("cache per token", f"{config.layers} layers in {kv_dtype}", size(row["kv_bytes_per_token"])),
        Step("longest context", f"of {batch} sequence{'s' * (batch > 1)}", _limit(row["context"], "tokens")),
        Step("largest batch", f"of {prompt} tokens each, {cache} of cache", _limit(row["batch"], "sequences")),
    ]
    notes = [
        "activations, workspaces and fragmentation need memory too: leave 10 % or more free",
        "weights and cache are shared evenly by all devices",
    ]
    if config.context and (row["context"] or MAX_EXTENT) > config.context:
        notes.append(f"{config.name} was made for {config.context:,} tokens")
    return Answer(
        main=("context", "batch"),
        title=f"Context and batch of {config.name} on {devices(gpus)}",
        warnings=[
            f"does not fit: {size(weight_bytes)} of weights on {devices(gpus)} {each['gpu']}"
            for each in rows
            if each["free_bytes"] < 0
        ],
        **by_machine(rows, weight_bytes=weight_bytes),
        steps=steps,
        formula="longest s with batch x cache(s) <= devices x memory - weights; cache(s) = 2 L k d w s at most",
        source=f"Pope et al. (2022); {config.source}; {sources_of(machines)}",
        assumptions=[*notes, *config.notes_on(prompt)],
        columns={
            **{"gpu": "GPU", "gpus": "GPUs", "free_bytes": "left for the cache"},
            **{"context": "longest context", "batch": "largest batch"},
        },
    )


def longest_context(config: ModelConfig, free_bytes: int, batch: int, element_bytes: int) -> int | None:
    """Return the most tokens of each sequence whose caches fit, 0 if none do; None if there is no limit.

    A cache does not grow without limit if each layer has a window or a state.
    """

    def needed(tokens: int) -> int:
        return kv_cache_bytes(config, tokens, batch, element_bytes)

    if needed(MAX_EXTENT) <= free_bytes:
        return None
    return max(0, bisect_right(range(MAX_EXTENT), free_bytes, lo=1, key=needed) - 1) if free_bytes > 0 else 0


def largest_batch(config: ModelConfig, free_bytes: int, tokens: int, element_bytes: int) -> int:
    return max(0, free_bytes) // kv_cache_bytes(config, tokens, 1, element_bytes)


def _limit(value: int | None, unit: str) -> str:
    return "no limit" if value is None else f"{value:,} {unit}"
