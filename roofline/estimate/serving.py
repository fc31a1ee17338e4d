"""Estimates of generation: minimum time of prefill, decode and a reply, its price, and what fits in
memory.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, NamedTuple, Unpack

from results.show.units import count, duration, gibibytes, number, quantity
from roofline.accounting.config import MAX_EXTENT, ConfigError, ModelConfig
from roofline.accounting.inference import Serving as Limits
from roofline.accounting.inference import kv_bytes_per_token, kv_cache_bytes, weight_bytes_read
from roofline.accounting.machines import bandwidth_of, memory_of
from roofline.accounting.number_formats import STORED_BITS
from roofline.accounting.parameters import count_parameters
from roofline.estimate.answer import Answer, Step, by_machine
from roofline.estimate.options import (
    Serving,
    Training,
    Use,
    machines_of,
    model_of,
    sources_of,
    uses_of,
)
from roofline.estimate.question import Model, Number, OneOf, Whole, question
from roofline.gpu_table import load_gpus
from roofline.model import bound
from roofline.work import DTYPE_BITS, DTYPES

Stored = Annotated[str, OneOf(tuple(STORED_BITS))]
Cached = Annotated[str, OneOf(DTYPES)]

BY_PARAMETERS = (
    "dense model: 2 N FLOPs per token, and every weight is read once per step",
    (
        "KV cache and attention scores depend on the model and are not included: long contexts "
        "take longer"
    ),
)
STEPS_BY_PARAMETERS = (
    "prefill >= max(2 N B s / peak, N w / bandwidth); decode >= max(2 N B / peak, N w / bandwidth)"
)


def _element_bytes(kv_dtype: str) -> int:
    whole, rest = divmod(DTYPE_BITS[kv_dtype], 8)
    if rest:
        raise ConfigError(
            f"--kv-dtype {kv_dtype}: expected a type of whole bytes, such as bf16 or fp8e4m3"
        )
    return whole


class _Plan(NamedTuple):
    config: ModelConfig
    prompt: int
    batch: int
    gpus: int
    weight_dtype: str | None
    kv_dtype: str

    def limits(self, use: Use) -> Limits:
        return Limits(
            self.config,
            self.batch,
            peak_flops_per_s=use.speed(self.gpus),
            bandwidth_bytes_per_s=self.gpus * bandwidth_of(use.machine),
            weight_bytes=STORED_BITS[self.weight_dtype or use.dtype] / 8,
            kv_bytes=_element_bytes(self.kv_dtype),
        )

    def held(self, use: Use, positions: int) -> dict[str, Any]:
        limits = self.limits(use)
        memory_bytes = use.machine.usable_memory_bytes
        stored = max(1, round(count_parameters(self.config).total * limits.weight_bytes))
        cache = kv_cache_bytes(self.config, positions, self.batch, limits.kv_bytes)
        total = stored + cache
        return {
            "weight_bytes": stored,
            "cache_bytes": None if self.config.parameters else cache,
            "memory_bytes": memory_bytes,
            "used": memory_bytes and total / (self.gpus * memory_bytes),
            "fits": None if memory_bytes is None else total <= self.gpus * memory_bytes,
            "gpus_needed": None if memory_bytes is None else -(-total // memory_bytes),
        }

    def row(self, use: Use) -> dict[str, Any]:
        limits = self.limits(use)
        config = self.config
        row = use.row
        for name, work in (
            ("prefill", limits.prefill(self.prompt)),
            ("decode", limits.decode(self.prompt)),
        ):
            compute_s, memory_s = limits.times(work)
            row[f"{name}_seconds"] = max(compute_s, memory_s)
            row[f"{name}_bound"] = bound(compute_s, memory_s, None)
            row[f"{name}_flops"], row[f"{name}_bytes"] = work
        row["tokens_per_s"] = self.batch / row["decode_seconds"]
        row["peak_flops_per_s"] = limits.peak_flops_per_s
        row["bandwidth_bytes_per_s"] = limits.bandwidth_bytes_per_s
        row["kv_bytes_per_token"] = (
            None if config.parameters else kv_bytes_per_token(config, limits.kv_bytes)
        )
        row["critical_batch"] = limits.critical_batch(self.prompt)
        row["critical_batch_without_cache"] = limits.critical_batch(0)
        row["weight_bytes_read"] = weight_bytes_read(config, self.batch, limits.weight_bytes)
        return row | self.held(use, self.prompt)

    def warnings(self, rows: Sequence[Mapping[str, Any]]) -> list[str]:
        lines = []
        for row in rows:
            if row["fits"] is False:
                held = f"{quantity(row['weight_bytes'], 'B')} of weights"
                if row["cache_bytes"] is not None:
                    held += f" and {quantity(row['cache_bytes'], 'B')} of cache"
                available = (
                    f"{count(self.gpus, 'device')} {row['gpu']} of {gibibytes(row['memory_bytes'])}"
                )
                needed = f"at least {row['gpus_needed']:,} are needed; the times are hypothetical"
                lines.append(f"does not fit: {held} on {available}; {needed}")
        return lines

    def notes(self, positions: int) -> list[str]:
        storage = f"weights in {self.weight_dtype or 'the computing dtype'}"
        bounds = "lower bounds: full peak and bandwidth, without activations and communication"
        if self.config.parameters:
            return [storage, *BY_PARAMETERS, bounds]
        lines = [
            f"{storage}, cache in {self.kv_dtype}",
            bounds,
            "prefill computes the head for the last token only",
        ]
        if self.config.latent:
            lines.append(
                "latent attention: prefill expands keys and values; decoding uses the absorbed form"
            )
        if self.config.experts:
            lines.append("experts are chosen evenly and independently")
        return [*lines, *self.config.notes_on(positions)]


@question
def infer(
    model: Model | None = None,
    params: Number | None = None,
    prompt: Whole = 2048,
    batch: Whole = 1,
    weight_dtype: Stored | None = None,
    kv_dtype: Cached = "bf16",
    gpus: Whole = 1,
    memory: Number | None = None,
    fits: bool = False,
    **options: Unpack[Serving],
) -> Answer:
    """Minimum time of prefill and of one decode step, and the KV cache."""
    config = model_of(model, options, params)
    if fits and "gpu" not in options:
        options["gpu"] = list(load_gpus())
    uses, missing = uses_of(options, memory)
    plan = _Plan(config, prompt, batch, gpus, weight_dtype, kv_dtype)
    rows = [plan.row(use) for use in uses]
    if fits:
        rows = sorted((row for row in rows if row["fits"]), key=lambda row: row["decode_seconds"])
        missing = []
        if not rows:
            raise ConfigError(
                f"{config.name} with {batch} x {prompt} tokens fits on {count(gpus, 'device')} of "
                f"none of the GPUs"
            )
        fitting: list[Use] = []
        for row in rows:
            fitting += [use for use in uses if use.row.items() <= row.items()]
        uses = fitting
    notes = plan.notes(prompt)
    if not config.parameters:
        notes.append(
            f"critical batch: with {prompt} tokens per cache; `without a cache` ignores it"
        )
    by_weights = (
        "prefill >= max((2 N_mm s + pairs) / peak, bytes / bandwidth); decode >= max((2 N_mm + "
        "pairs) B / peak, (weights + B s kv) / bandwidth); critical batch: the smallest "
        "compute-bound one"
    )
    return Answer(
        main=("decode_seconds", "tokens_per_s", "prefill_seconds"),
        title=f"Generation with {config.name}: {batch} x {prompt} tokens, {count(gpus, 'device')}",
        warnings=plan.warnings(rows),
        **by_machine(rows, kv_bytes_per_token=rows[0]["kv_bytes_per_token"]),
        steps=_infer_steps(plan, rows[0]),
        formula=STEPS_BY_PARAMETERS if config.parameters else by_weights,
        source=f"Pope et al. (2022); Austin et al. (2025); "
        f"{sources_of(use.machine for use in uses)}",
        assumptions=[*notes, *missing],
        columns={
            "gpu": "GPU",
            "dtype": "dtype",
            "prefill_seconds": "prefill",
            "prefill_bound": "bound",
            "decode_seconds": "decode step",
            "decode_bound": "bound",
            "tokens_per_s": "tokens/s",
            "critical_batch": "critical batch",
            "used": "memory",
        },
    )


def _infer_steps(plan: _Plan, row: Mapping[str, Any]) -> list[Step]:
    peak = number(row["peak_flops_per_s"])
    bandwidth = number(row["bandwidth_bytes_per_s"])
    config = plan.config
    prefills = f"{plan.batch} x {plan.prompt} tokens"
    has_cache = row["cache_bytes"] is not None
    read = f"{quantity(row['weight_bytes_read'], 'B')} of weights"
    longest = (
        f"max({number(row['decode_flops'])} / {peak}, {number(row['decode_bytes'])} / {bandwidth})"
    )
    prefill = f"{duration(row['prefill_seconds'])}, {row['prefill_bound']}-bound"
    steps = [
        Step(
            "weights",
            f"{count(count_parameters(config).total)} parameters",
            quantity(row["weight_bytes"], "B"),
        )
    ]
    if has_cache:
        steps.append(
            Step(
                "cache per token",
                f"{config.layers} layers",
                quantity(row["kv_bytes_per_token"], "B"),
            )
        )
        cached = prefills
        if config.windowed_layers:
            cached += f", {config.windowed_layers} layers store at most {config.window}"
        steps.append(Step("cache", cached, quantity(row["cache_bytes"], "B")))
        read += f" + {quantity(row['cache_bytes'], 'B')}"
    steps += [
        Step("prefill FLOPs", prefills, number(row["prefill_flops"])),
        Step("prefill", f"{number(row['prefill_flops'])} / {peak}", prefill),
        Step("decode bytes", read, quantity(row["decode_bytes"], "B")),
        Step(
            "decode step",
            longest,
            f"{duration(row['decode_seconds'])}, {row['decode_bound']}-bound",
        ),
        Step(
            "tokens/s",
            f"{plan.batch} / {duration(row['decode_seconds'])}",
            number(row["tokens_per_s"]),
        ),
        Step(
            "critical batch",
            f"compute time = memory time at {plan.prompt} tokens",
            _batch(row["critical_batch"]),
        ),
    ]
    if has_cache:
        steps.append(
            Step(
                "without a cache",
                "the same at 0 tokens",
                _batch(row["critical_batch_without_cache"]),
            )
        )
    if row["used"] is None:
        return [*steps, Step("memory", "unknown for this machine", "-")]
    parts = "weights and cache" if has_cache else "weights"
    devices_memory = f"all devices of {gibibytes(row['memory_bytes'])}"
    return [*steps, Step("memory", f"{parts} / {devices_memory}", f"{100 * row['used']:.1f} %")]


def _batch(value: int | None) -> str:
    return "never" if value is None else count(value)


@question
def generate(
    model: Model | None = None,
    params: Number | None = None,
    prompt: Whole = 2048,
    batch: Whole = 1,
    weight_dtype: Stored | None = None,
    kv_dtype: Cached = "bf16",
    gpus: Whole = 1,
    output_tokens: Whole = 256,
    price: Number | None = None,
    memory: Number | None = None,
    **options: Unpack[Serving],
) -> Answer:
    """Minimum time of a reply, from the prompt to its last token, and its price."""
    config = model_of(model, options, params)
    uses, missing = uses_of(options, memory)
    plan = _Plan(config, prompt, batch, gpus, weight_dtype, kv_dtype)
    rows = [_reply(plan, use, output_tokens, price) for use in uses]
    row = rows[0]
    growing = "" if row["cache_bytes"] is None else ", with a growing cache"
    steps = [
        Step(
            "first token", f"prefill of {batch} x {prompt} tokens", duration(row["first_token_s"])
        ),
        Step(
            "other tokens",
            f"{output_tokens - 1:,} steps{growing}",
            duration(row["seconds"] - row["first_token_s"]),
        ),
        Step("reply", "sum", duration(row["seconds"])),
        Step(
            "tokens/s",
            f"{batch} x {output_tokens} / {duration(row['seconds'])}",
            number(row["tokens_per_s"]),
        ),
    ]
    columns = {"gpu": "GPU", "dtype": "dtype", "seconds": "reply", "first_token_s": "first token"}
    columns |= {"tokens_per_s": "tokens/s", "used": "memory"}
    if price is not None:
        rate = f"{gpus:,} x {price:g} an hour / 3600 / {number(row['tokens_per_s'])} x 10^6"
        steps.append(Step("price of 10^6 tokens", rate, number(row["price_per_million_tokens"])))
        columns["price_per_million_tokens"] = "price of 10^6"
    formula = (
        "seconds = prefill + sum over tokens 2 to n of max(FLOPs / peak, (weights + cache) / "
        "bandwidth)"
    )
    if config.parameters:
        formula = f"seconds = prefill + (n - 1) decode steps; {STEPS_BY_PARAMETERS}"
    return Answer(
        title=f"Replies of {config.name}: {batch} x {output_tokens} tokens to prompts of "
        f"{prompt}, {count(gpus, 'device')}",
        warnings=plan.warnings(rows),
        **by_machine(rows),
        main=("seconds", "first_token_s", "tokens_per_s", "price_per_million_tokens"),
        steps=steps,
        formula=formula,
        source=f"Pope et al. (2022); {sources_of(use.machine for use in uses)}",
        assumptions=[
            *plan.notes(prompt + output_tokens),
            "price per generated token; energy is the maximum by TDP",
            *missing,
        ],
        columns=columns,
    )


def _reply(plan: _Plan, use: Use, tokens: int, price: float | None) -> dict[str, Any]:
    limits = plan.limits(use)
    first = max(limits.times(limits.prefill(plan.prompt)))
    seconds = first + limits.decode_seconds(plan.prompt, tokens)
    cost = use.cost(plan.gpus, seconds, price)
    generated = plan.batch * tokens
    per_million = None
    if cost["price"] is not None:
        per_million = cost["price"] / generated * 1e6
    return {
        **use.row,
        "gpus": plan.gpus,
        "seconds": seconds,
        "first_token_s": first,
        "tokens_per_s": generated / seconds,
        "price_per_million_tokens": per_million,
        **cost,
        **plan.held(use, plan.prompt + tokens - 1),
    }


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
    element_bytes = _element_bytes(kv_dtype)
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
                "context": _longest_context(config, free, batch, element_bytes),
                "batch": max(0, free) // kv_cache_bytes(config, prompt, 1, element_bytes),
            }
        )
    row = rows[0]
    cache = quantity(kv_cache_bytes(config, prompt, 1, element_bytes), "B")
    steps = [
        Step(
            "memory",
            f"{gpus:,} x {gibibytes(row['memory_bytes'])}",
            quantity(gpus * row["memory_bytes"], "B"),
        ),
        Step(
            "weights",
            f"{count(count_parameters(config).total)} parameters in {weight_dtype}",
            quantity(weight_bytes, "B"),
        ),
        Step("left for the cache", "memory - weights", quantity(max(0, row["free_bytes"]), "B")),
        Step(
            "cache per token",
            f"{config.layers} layers in {kv_dtype}",
            quantity(row["kv_bytes_per_token"], "B"),
        ),
        Step(
            "longest context",
            f"of {batch} sequences" if batch > 1 else "of 1 sequence",
            _limit(row["context"], "tokens"),
        ),
        Step(
            "largest batch",
            f"of {prompt} tokens each, {cache} of cache",
            _limit(row["batch"], "sequences"),
        ),
    ]
    notes = [
        "activations, workspaces and fragmentation need memory too: leave 10 % or more free",
        "weights and cache are shared evenly by all devices",
    ]
    if config.context and (row["context"] or MAX_EXTENT) > config.context:
        notes.append(f"{config.name} was made for {config.context:,} tokens")
    return Answer(
        main=("context", "batch"),
        title=f"Context and batch of {config.name} on {count(gpus, 'device')}",
        warnings=[
            f"does not fit: {quantity(weight_bytes, 'B')} of weights on {count(gpus, 'device')} "
            f"{each['gpu']}"
            for each in rows
            if each["free_bytes"] < 0
        ],
        **by_machine(rows, weight_bytes=weight_bytes),
        steps=steps,
        formula="longest s with batch x cache(s) <= devices x memory - weights; cache(s) = 2 L k "
        "d w s at most",
        source=f"Pope et al. (2022); {config.source}; {sources_of(machines)}",
        assumptions=[*notes, *config.notes_on(prompt)],
        columns={
            "gpu": "GPU",
            "gpus": "GPUs",
            "free_bytes": "left for the cache",
            "context": "longest context",
            "batch": "largest batch",
        },
    )


def _longest_context(
    config: ModelConfig, free_bytes: int, batch: int, element_bytes: int
) -> int | None:
    """Return the most tokens of each sequence whose caches fit, 0 if none do; None if there is no
    limit.

    A cache does not grow without limit if each layer has a window or a state.
    """

    def needed(tokens: int) -> int:
        return kv_cache_bytes(config, tokens, batch, element_bytes)

    if needed(MAX_EXTENT) <= free_bytes:
        return None
    if free_bytes <= 0:
        return 0
    return max(0, bisect_right(range(MAX_EXTENT), free_bytes, lo=1, key=needed) - 1)


def _limit(value: int | None, unit: str) -> str:
    return "no limit" if value is None else f"{value:,} {unit}"
