"""Estimates of generation: the least time of prefill and decode, of a whole reply, and its price."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, NamedTuple, Unpack

from roofline.accounting.config import ConfigError, ModelConfig
from roofline.accounting.inference import Serving as Limits
from roofline.accounting.inference import (
    compute_bound_from,
    decode_bytes,
    decode_flops,
    decode_seconds,
    kv_bytes_per_token,
    kv_cache_bytes,
    prefill_bytes,
    prefill_flops,
    weight_bytes_read,
)
from roofline.accounting.machines import bandwidth_of, peak_of
from roofline.accounting.number_formats import STORED_BITS
from roofline.accounting.parameters import count_parameters
from roofline.estimate.answer import Answer, Step, by_machine, count, devices, duration, memory, number, size
from roofline.estimate.budgets import cost_of
from roofline.estimate.options import Serving, Use, model_of, sources_of, uses_of
from roofline.estimate.question import Model, Number, OneOf, Whole, question
from roofline.model import bound, least_time_s
from roofline.work import DTYPE_BITS, DTYPES

Stored = Annotated[str, OneOf(tuple(STORED_BITS))]
Cached = Annotated[str, OneOf(DTYPES)]

BY_PARAMETERS = (
    "a dense model: 2 N FLOPs for each token, and every weight is read once a step",
    "the cache and attention's own products depend on the model and are left out: long contexts take longer",
)
STEPS_BY_PARAMETERS = "prefill >= max(2 N B s / peak, N w / bandwidth); decode >= max(2 N B / peak, N w / bandwidth)"


class _Plan(NamedTuple):
    config: ModelConfig
    prompt: int
    batch: int
    gpus: int
    weight_dtype: str | None
    kv_dtype: str

    def limits(self, use: Use) -> Limits:
        machine, dtype = use
        if DTYPE_BITS[self.kv_dtype] % 8:
            raise ConfigError(f"no cache in {self.kv_dtype}: whole bytes only, as bf16 or fp8e4m3")
        weight_bytes = STORED_BITS[self.weight_dtype or dtype] / 8
        rates = (self.gpus * peak_of(machine, dtype), self.gpus * bandwidth_of(machine))
        return Limits(*rates, weight_bytes, DTYPE_BITS[self.kv_dtype] // 8)

    def held(self, use: Use, positions: int) -> dict[str, Any]:
        limits, memory_bytes = self.limits(use), use[0].usable_memory_bytes
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
        (machine, dtype), limits, config = use, self.limits(use), self.config
        peak, bandwidth, sizes = *limits[:2], limits[2:]
        row: dict[str, Any] = {"gpu": machine.slug, "dtype": dtype}
        for name, flops, moved in (
            ("prefill", prefill_flops, prefill_bytes),
            ("decode", decode_flops, decode_bytes),
        ):
            work, traffic = flops(config, self.prompt, self.batch), moved(config, self.prompt, self.batch, *sizes)
            row |= {f"{name}_seconds": least_time_s(work, traffic, peak, bandwidth)}
            row |= {f"{name}_bound": bound(work / peak, traffic / bandwidth, None)}
            row |= {f"{name}_flops": work, f"{name}_bytes": traffic}
        row |= {"tokens_per_s": self.batch / row["decode_seconds"]}
        row |= {"peak_flops_per_s": peak, "bandwidth_bytes_per_s": bandwidth}
        row["kv_bytes_per_token"] = None if config.parameters else kv_bytes_per_token(config, limits.kv_bytes)
        row["critical_batch"] = compute_bound_from(config, self.prompt, *limits)
        row["critical_batch_without_cache"] = compute_bound_from(config, 0, *limits)
        row["weight_bytes_read"] = weight_bytes_read(config, self.batch, limits.weight_bytes)
        return row | self.held(use, self.prompt)

    def too_large(self, row: Mapping[str, Any]) -> list[str]:
        if row["fits"] is not False:
            return []
        held = f"{size(row['weight_bytes'])} of weights"
        if row["cache_bytes"] is not None:
            held += f" and {size(row['cache_bytes'])} of cache"
        there = f"{devices(self.gpus)} {row['gpu']} of {memory(row['memory_bytes'])}"
        needed = f"it takes {row['gpus_needed']:,} at least, and the times are hypothetical"
        return [f"does not fit: {held} on {there}; {needed}"]

    def notes(self, positions: int) -> list[str]:
        lying = f"weights in {self.weight_dtype or 'the computing dtype'}"
        bounds = "lower bounds: peak and bandwidth are reached, activations do not count, devices share without talking"
        if self.config.parameters:
            return [lying, *BY_PARAMETERS, bounds]
        lines = [f"{lying}, cache in {self.kv_dtype}", bounds, "in prefill the head is needed for the last token alone"]
        if self.config.latent:
            lines.append("latent attention: prefill expands keys and values; decoding uses the absorbed form")
        if self.config.experts:
            lines.append("experts: an even and independent choice")
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
    **options: Unpack[Serving],
) -> Answer:
    """Least time of prefill and of one decode step, and the cache."""
    config = model_of(model, options, params)
    uses, missing = uses_of(options, memory)
    plan = _Plan(config, prompt, batch, gpus, weight_dtype, kv_dtype)
    rows = [plan.row(use) for use in uses]
    turning = [f"critical batch: with {prompt} tokens in each cache; beside it stands the one without any cache"]
    by_weights = (
        "prefill >= max((2 N_mm s + pairs) / peak, bytes / bandwidth); decode >= max((2 N_mm + pairs) B / peak, "
        "(weights + B s kv) / bandwidth); critical batch: the first at which both are as long"
    )
    return Answer(
        main=("decode_seconds", "tokens_per_s", "prefill_seconds"),
        title=f"Generation with {config.name}: {batch} x {prompt} tokens, {devices(gpus)}",
        warnings=[line for row in rows for line in plan.too_large(row)],
        **by_machine(rows, kv_bytes_per_token=rows[0]["kv_bytes_per_token"]),
        steps=_infer_steps(plan, rows[0]),
        formula=STEPS_BY_PARAMETERS if config.parameters else by_weights,
        source=f"Pope et al. (2022); Austin et al. (2025); {sources_of([machine for machine, _ in uses])}",
        assumptions=[*plan.notes(prompt), *([] if config.parameters else turning), *missing],
        columns=(
            *(("gpu", "GPU"), ("dtype", "dtype"), ("prefill_seconds", "prefill"), ("prefill_bound", "bound")),
            *(("decode_seconds", "decode step"), ("decode_bound", "bound"), ("tokens_per_s", "tokens/s")),
            *(("critical_batch", "critical batch"), ("used", "memory")),
        ),
    )


def _infer_steps(plan: _Plan, row: Mapping[str, Any]) -> list[Step]:
    peak, bandwidth = number(row["peak_flops_per_s"]), number(row["bandwidth_bytes_per_s"])
    config, prefills = plan.config, f"{plan.batch} x {plan.prompt} tokens"
    read, cache, without_cache, moved = f"{size(row['weight_bytes_read'])} of weights", [], [], row["weight_bytes_read"]
    if row["cache_bytes"] is not None:
        windowed = f", {config.windowed_layers} layers keep {config.window} at most" if config.windowed_layers else ""
        cache = [
            Step("cache per token", f"{config.layers} layers", size(row["kv_bytes_per_token"])),
            Step("cache", f"{prefills}{windowed}", size(row["cache_bytes"])),
        ]
        moved, read = moved + row["cache_bytes"], f"{read} + {size(row['cache_bytes'])}"
        without_cache = [Step("without a cache", "the same at 0 tokens", _batch(row["critical_batch_without_cache"]))]
    used = ("not known of this machine", "-")
    if row["used"] is not None:
        what = "weights and cache" if cache else "weights"
        used = (f"{what} / all devices of {memory(row['memory_bytes'])}", f"{100 * row['used']:.1f} %")
    least = f"max({number(row['decode_flops'])} / {peak}, {number(moved)} / {bandwidth})"
    return [
        Step("weights", f"{count(count_parameters(config).total)} parameters", size(row["weight_bytes"])),
        *cache,
        Step("prefill FLOPs", prefills, number(row["prefill_flops"])),
        Step(
            "prefill",
            f"{number(row['prefill_flops'])} / {peak} at best",
            f"{duration(row['prefill_seconds'])}, {row['prefill_bound']}-bound",
        ),
        Step("decode bytes", read, size(moved)),
        Step("decode step", least, f"{duration(row['decode_seconds'])}, {row['decode_bound']}-bound"),
        Step("tokens/s", f"{plan.batch} / {duration(row['decode_seconds'])}", number(row["tokens_per_s"])),
        Step("critical batch", f"compute as long as memory at {plan.prompt} tokens", _batch(row["critical_batch"])),
        *without_cache,
        Step("memory", *used),
    ]


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
    """Least time of a reply, from the prompt to its last token, and its price."""
    config = model_of(model, options, params)
    uses, missing = uses_of(options, memory)
    plan = _Plan(config, prompt, batch, gpus, weight_dtype, kv_dtype)
    rows = [_reply(plan, use, output_tokens, price) for use in uses]
    row = rows[0]
    growing = "" if row["cache_bytes"] is None else ", the cache growing"
    steps = [
        Step("first token", f"prefill of {batch} x {prompt} tokens", duration(row["first_token_s"])),
        Step("the others", f"{output_tokens - 1:,} steps{growing}", duration(row["seconds"] - row["first_token_s"])),
        Step("reply", "sum", duration(row["seconds"])),
        Step("tokens/s", f"{batch} x {output_tokens} / {duration(row['seconds'])}", number(row["tokens_per_s"])),
    ]
    columns = [("gpu", "GPU"), ("dtype", "dtype"), ("seconds", "reply"), ("first_token_s", "first token")]
    columns += [("tokens_per_s", "tokens/s"), ("used", "memory")]
    if price is not None:
        paid = f"{gpus:,} x {price:g} an hour / 3600 / {number(row['tokens_per_s'])} x 10^6"
        steps.append(Step("price of 10^6 tokens", paid, number(row["price_per_million_tokens"])))
        columns.append(("price_per_million_tokens", "price of 10^6"))
    return Answer(
        title=f"Replies of {config.name}: {batch} x {output_tokens} tokens to prompts of {prompt}, {devices(gpus)}",
        warnings=[line for row in rows for line in plan.too_large(row)],
        **by_machine(rows),
        main=("seconds", "first_token_s", "tokens_per_s", "price_per_million_tokens"),
        steps=steps,
        formula=f"seconds = prefill + (n - 1) decode steps; {STEPS_BY_PARAMETERS}"
        if config.parameters
        else "seconds = prefill + sum over tokens 2 to n of max(FLOPs / peak, (weights + cache) / bandwidth)",
        source=f"Pope et al. (2022); {sources_of([machine for machine, _ in uses])}",
        assumptions=[
            *plan.notes(prompt + output_tokens),
            "the price is that of tokens written; energy is the most that the devices draw",
            *missing,
        ],
        columns=columns,
    )


def _reply(plan: _Plan, use: Use, tokens: int, price: float | None) -> dict[str, Any]:
    machine, dtype = use
    limits, config = plan.limits(use), plan.config
    moved = prefill_bytes(config, plan.prompt, plan.batch, limits.weight_bytes, limits.kv_bytes)
    first = least_time_s(prefill_flops(config, plan.prompt, plan.batch), moved, *limits[:2])
    seconds = first + decode_seconds(config, plan.prompt, tokens, plan.batch, limits)
    cost = cost_of(machine, plan.gpus, seconds, price)
    return {
        "gpu": machine.slug,
        "dtype": dtype,
        "gpus": plan.gpus,
        "seconds": seconds,
        "first_token_s": first,
        "tokens_per_s": plan.batch * tokens / seconds,
        "price_per_million_tokens": None if cost["price"] is None else cost["price"] / (plan.batch * tokens) * 1e6,
        **cost,
        **plan.held(use, plan.prompt + tokens - 1),
    }
