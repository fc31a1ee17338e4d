"""Estimates of generation: minimum time of prefill, decode and a reply, its price, and what fits in
memory.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from math import inf
from typing import Annotated, Unpack

from results.show.units import count, duration, quantity
from roofline.accounting.config import MAX_EXTENT, ConfigError, ModelConfig
from roofline.accounting.inference import (
    Serving,
    cache_copies,
    kv_bytes_per_token,
    state_bytes,
    weight_bytes_read,
)
from roofline.accounting.machines import bandwidth_of, memory_of
from roofline.accounting.parameters import count_parameters, weights
from roofline.accounting.storage import STORED_DTYPES, storage_note, stored_bytes
from roofline.estimate.answer import Answer, Row, Step, by_machine, steps_of
from roofline.estimate.fitting import UTILIZATION, fewest_devices, fit_row, fit_warnings
from roofline.estimate.options import (
    Context,
    Generating,
    Replying,
    Stored,
    Use,
    machines_of,
    model_of,
    sources_of,
    uses_of,
)
from roofline.estimate.question import Model, Seconds, Share, Whole, question
from roofline.machine import Machine
from roofline.model import bound

Cached = Annotated[str, tuple(STORED_DTYPES)]

BY_PARAMETERS = (
    "KV cache and attention scores depend on the model and are not included: long contexts take "
    "longer"
)
DENSE = "dense model: 2 N FLOPs per token, and every weight is read once per step"
ROUTED = "B tokens read N (1 - (1 - A / N)^B) of N weights, chosen evenly and independently"
STEPS_BY_PARAMETERS = (
    "prefill >= max(2 A B s / peak, bytes / bandwidth); decode >= max(2 A B / peak, bytes / "
    "bandwidth) of A parameters that a token uses"
)
STEPS_BY_WEIGHTS = (
    "prefill >= max((2 N_mm s + pairs) / peak, bytes / bandwidth); decode >= max((2 N_mm + "
    "pairs) B / peak, (weights + B s kv) / bandwidth); critical batch: the smallest "
    "compute-bound one"
)

INFER_STEPS = """\
weights | {total:count} parameters of {weight_bits:.4g} bits on average | {weight_bytes:bytes}
cache per token | {layers} layers | {kv_bytes_per_token:bytes}
states | of each sequence, beside the KV cache | {state_bytes:bytes}
cache | {cached} | {cache_bytes:bytes}
prefill FLOPs | {serving.batch} x {prompt} tokens | {prefill_flops:number}
prefill | {prefill_flops:number} / {peak_flops_per_s:number} | {prefill_seconds:time}, \
{prefill_bound}-bound
decode bytes | {read} | {decode_bytes:bytes}
decode step | max({decode_flops:number} / {peak_flops_per_s:number}, {decode_bytes:number} / \
{bandwidth_bytes_per_s:number}) | {decode_seconds:time}, {decode_bound}-bound
tokens/s | {serving.batch} / {decode_seconds:time} | {tokens_per_s:number}
critical batch | compute time = memory time at {prompt} tokens | {critical}
without a cache | the same at 0 tokens | {critical_without_cache}
memory | {parts} / all devices of {memory_bytes:bytes} | {used:percent}
"""

REPLY_STEPS = """\
first token | prefill of {batch} x {prompt} tokens | {first_token_s:time}
other tokens | {steps} | {others_s:time}
reply | sum | {seconds:time}
tokens/s | {batch} x {tokens} / {seconds:time} | {tokens_per_s:number}
price of 10^6 tokens | {gpus:,} x {hour:g} an hour / 3600 / {tokens_per_s:number} x 10^6 | \
{price_per_million_tokens:number}
"""

DRAFT_STEPS = """\
cycle | {draft_tokens} drafts of {draft_s:time}, a check of {check_s:time} | {cycle_s:time}
tokens of a cycle | {draft_tokens} drafts, {accepted:percent} accepted | {tokens_per_cycle:number}
speedup | of the tokens after the first, against decoding without drafts | {speedup:number}x
"""

CONTEXT_STEPS = """\
memory | {gpus:,} x {memory_bytes:bytes} x {utilization:g} | {total_bytes:bytes}
weights | {params:count} parameters of {weight_bits:.4g} bits on average | {weight_bytes:bytes}
left for the cache | memory - weights | {left_bytes:bytes}
cache per token | {layers} layers in {kv_dtype} | {kv_bytes_per_token:bytes}
states | of each sequence, beside the KV cache | {state_bytes:bytes}
copies of the cache | {gpus:,} devices, {stored_heads} | {copies:g}
longest context | of {sequences} | {longest}
largest batch | of {prompt} tokens each, {cache_bytes:bytes} of cache | {batch:,} sequences
data-parallel attention | a sequence on one device, with all weights of attention | \
{data_parallel_batch:,} sequences
"""


INFER_COLUMNS = {
    "gpu": "GPU",
    "dtype": "dtype",
    "prefill_seconds": "prefill",
    "prefill_bound": "bound",
    "decode_seconds": "decode step",
    "decode_bound": "bound",
    "tokens_per_s": "tokens/s",
    "critical_batch": "critical batch",
    "used": "memory",
}


def _serving(
    config: ModelConfig,
    use: Use,
    batch: int,
    gpus: int,
    weight_dtype: str | None,
    kv_dtype: str,
) -> Serving:
    return Serving(
        config,
        batch,
        peak_flops_per_s=use.speed(gpus),
        bandwidth_bytes_per_s=gpus * bandwidth_of(use.machine),
        weight_dtype=weight_dtype or config.quantization or use.dtype,
        kv_dtype=kv_dtype,
        devices=gpus,
    )


def _within(serving: Serving, machine: Machine, positions: int, latency_s: float) -> Serving:
    """Return the largest batch that fits in `UTILIZATION` of the memory and whose decode step takes
    at most `latency_s`, at least one sequence.
    """
    weight_bytes = serving.weight_bytes
    available = UTILIZATION * serving.devices * (machine.usable_memory_bytes or inf)

    def is_too_large(batch: int) -> bool:
        larger = serving._replace(batch=batch)
        held_bytes = weight_bytes + larger.cache_bytes(positions)
        return held_bytes > available or max(larger.times(larger.decode(positions))) > latency_s

    batch = bisect_left(range(MAX_EXTENT), True, lo=1, key=is_too_large) - 1
    return serving._replace(batch=max(1, batch))


def _held(serving: Serving, machine: Machine, positions: int) -> Row:
    """Return weights and cache, and how they fit: each device stores the whole cache of latent
    attention.
    """
    weight_bytes = serving.weight_bytes
    cache_bytes = serving.cache_bytes(positions)
    memory_bytes = machine.usable_memory_bytes

    def is_enough(devices: int) -> bool:
        cache = serving._replace(devices=devices).cache_bytes(positions)
        return weight_bytes + cache <= devices * (memory_bytes or inf)

    needed = fewest_devices(is_enough) if memory_bytes else None
    row = fit_row(machine, weight_bytes + cache_bytes, needed, serving.devices)
    row["weight_bytes"] = weight_bytes
    row["cache_bytes"] = None if serving.config.parameters else cache_bytes
    return row


def _notes(servings: Sequence[Serving], positions: int) -> list[str]:
    config, gpus = servings[0].config, servings[0].devices
    lines = list(dict.fromkeys(storage_note(serving.weight_dtype) for serving in servings))
    lines.append("lower bounds: full peak and bandwidth, without activations and communication")
    if config.parameters:
        is_dense = config.active_parameters == config.parameters
        return [*lines, DENSE if is_dense else ROUTED, BY_PARAMETERS]
    lines += [
        f"cache in {servings[0].kv_dtype}",
        "prefill computes the head for the last token only",
    ]
    copies = cache_copies(config, gpus)
    if copies > 1:
        lines.append(
            f"tensor parallelism stores the cache {float(copies):g} times, "
            f"{_stored_heads(config)}; data-parallel attention stores it once"
        )
    if config.latent:
        lines.append(
            "latent attention: prefill expands keys and values; decoding uses the absorbed form"
        )
    if config.experts:
        lines.append("experts are chosen evenly and independently")
    return [*lines, *_uneven(config, gpus), *config.notes_on(positions)]


TENSOR_PARALLEL = "with tensor parallelism; the times are hypothetical"


def _uneven(config: ModelConfig, devices: int) -> list[str]:
    """Return a note if tensor parallelism cannot share the heads evenly."""
    if config.heads % devices == 0 or not config.heads:
        return []
    return [f"{config.heads} heads do not divide over {devices} devices: engines refuse this"]


def _stored_heads(config: ModelConfig) -> str:
    if config.latent:
        return "each has the whole latent vector"
    return f"each has at least one of {config.kv_heads} key and value heads"


@question
def infer(
    model: Model = None,
    prompt: Whole = 2048,
    batch: Whole | None = None,
    weight_dtype: Stored | None = None,
    kv_dtype: Cached = "bf16",
    gpus: Whole = 1,
    latency: Seconds | None = None,
    **options: Unpack[Generating],
) -> Answer:
    """Minimum time of prefill and of one decode step, and the KV cache.

    With `latency`, they are those of the largest batch whose decode step takes no longer.
    """
    config = model_of(model, options)
    uses = uses_of(options)
    if batch and latency:
        raise ConfigError("--batch and --latency are mutually exclusive")
    servings = []
    rows = []
    slow = []
    for use in uses.uses:
        serving = _serving(config, use, batch or 1, gpus, weight_dtype, kv_dtype)
        if latency:
            serving = _within(serving, use.machine, prompt, latency)
        row = _infer_row(serving, use, prompt)
        if latency:
            row["batch"] = serving.batch
            if (row["used"] or 0) > UTILIZATION:
                row["fits"] = False
            if row["decode_seconds"] > latency:
                shortest = duration(row["decode_seconds"])
                row["fits"] = False
                slow.append(f"{row['gpu']}: a step of one sequence takes {shortest}")
        servings.append(serving)
        rows.append(row)
    columns = INFER_COLUMNS
    shown = {key: rows[0][key] for key in ("kv_bytes_per_token", "cache_bytes")}
    work = f"{servings[0].batch} x {prompt} tokens"
    if latency:
        columns = INFER_COLUMNS | {"batch": "batch"}
        shown = {}  # each GPU has its own batch
        work = f"{prompt} tokens each, at most {duration(latency)} a step"
    if len(rows) > 1:
        best = max(rows, key=lambda row: (row["fits"] is not False, row["tokens_per_s"]))
        shown["fastest"] = f"{best['gpu']} is the fastest: {duration(best['decode_seconds'])}"
    notes = _notes(servings, prompt)
    formula = STEPS_BY_PARAMETERS
    if not config.parameters:
        notes.append(
            f"critical batch: with {prompt} tokens per cache; `without a cache` ignores the cache"
        )
        formula = STEPS_BY_WEIGHTS
    return Answer(
        main=(
            "batch",
            "decode_seconds",
            "tokens_per_s",
            "prefill_seconds",
            "fastest",
            "cache_bytes",
        ),
        title=f"Generation with {config.name}: {work}, {count(gpus, 'device')}",
        warnings=[*fit_warnings(rows, TENSOR_PARALLEL, gpus), *slow],
        **by_machine(rows, **shown),
        steps=_infer_steps(servings[0], prompt, rows[0]),
        formula=formula,
        source=f"Pope et al. (2022); Austin et al. (2025); {uses.source}",
        assumptions=[*notes, *uses.notes],
        columns=columns,
    )


def _infer_row(serving: Serving, use: Use, prompt: int) -> Row:
    config = serving.config
    row = use.row
    works = {"prefill": serving.prefill(prompt), "decode": serving.decode(prompt)}
    for name, work in works.items():
        compute_s, memory_s = serving.times(work)
        row[f"{name}_seconds"] = max(compute_s, memory_s)
        row[f"{name}_bound"] = bound(compute=compute_s, memory=memory_s)
        row[f"{name}_flops"], row[f"{name}_bytes"] = work
    row |= {
        "tokens_per_s": serving.batch / row["decode_seconds"],
        "peak_flops_per_s": serving.peak_flops_per_s,
        "bandwidth_bytes_per_s": serving.bandwidth_bytes_per_s,
        "kv_bytes_per_token": None,
        "state_bytes": state_bytes(config, serving.kv_bytes) or None,
        "critical_batch": serving.critical_batch(prompt),
        "critical_batch_without_cache": serving.critical_batch(0),
        "weight_bytes_read": weight_bytes_read(config, serving.batch, serving.weight_dtype),
    }
    if not config.parameters:
        row["kv_bytes_per_token"] = kv_bytes_per_token(config, serving.kv_bytes)
    return row | _held(serving, use.machine, prompt)


def _infer_steps(serving: Serving, prompt: int, row: Row) -> list[Step]:
    config = serving.config
    cached = f"{serving.batch} x {prompt} tokens"
    if config.windowed_layers:
        windowed = sum(window > 0 for _, window in config.stores)
        cached += f", {windowed} layers store at most {config.window}"
    copies = cache_copies(config, serving.devices)
    if copies > 1:
        cached += f", {float(copies):g} times"
    total = count_parameters(config).total
    read = f"{quantity(row['weight_bytes_read'], 'B')} of weights"
    parts = "weights"
    without_cache = None
    if row["cache_bytes"] is not None:
        read += f" + {quantity(row['cache_bytes'], 'B')}"
        parts = "weights and cache"
        without_cache = _batch(row["critical_batch_without_cache"])
    return steps_of(
        INFER_STEPS,
        **row,
        serving=serving,
        layers=len(config.stores),
        prompt=prompt,
        total=total,
        weight_bits=8 * row["weight_bytes"] / total,
        cached=cached,
        read=read,
        critical=_batch(row["critical_batch"]),
        critical_without_cache=without_cache,
        parts=parts,
    )


def _batch(value: int | None) -> str:
    return "never" if value is None else count(value)


@question
def generate(
    model: Model = None,
    prompt: Whole = 2048,
    batch: Whole = 1,
    weight_dtype: Stored | None = None,
    kv_dtype: Cached = "bf16",
    gpus: Whole = 1,
    output_tokens: Whole = 256,
    draft: Model = None,
    draft_tokens: Whole = 4,
    accepted: Share = 0.8,
    **options: Unpack[Replying],
) -> Answer:
    """Minimum time of a reply, from the prompt to its last token, and its price.

    With a draft model, it is that of speculative decoding.
    """
    config = model_of(model, options)
    uses = uses_of(options)
    drafted = None
    if draft is not None:
        chosen = {"config": draft} if str(draft).endswith(".json") else {}
        drafted = model_of(None if chosen else draft, chosen)
    generated = batch * output_tokens
    servings = []
    rows = []
    for use in uses.uses:
        serving = _serving(config, use, batch, gpus, weight_dtype, kv_dtype)
        servings.append(serving)
        first_s = max(serving.times(serving.prefill(prompt)))
        others_s = serving.decode_seconds(prompt, output_tokens)
        cycle: Row = {}
        if drafted:
            drafting = _serving(drafted, use, batch, gpus, weight_dtype, kv_dtype)
            first_s += max(drafting.times(drafting.prefill(prompt)))
            cycle = _cycle(serving, drafting, prompt + output_tokens // 2, draft_tokens, accepted)
            alone_s = others_s
            others_s = cycle["cycle_s"] * (output_tokens - 1) / cycle["tokens_per_cycle"]
            cycle["speedup"] = alone_s / others_s if others_s else None
        seconds = first_s + others_s
        row = use.row | {"gpus": gpus, "seconds": seconds, "first_token_s": first_s} | cycle
        row |= {"tokens_per_s": generated / seconds, "price_per_million_tokens": None}
        row |= use.cost(gpus, seconds)
        if row["price"] is not None:
            row["price_per_million_tokens"] = row["price"] / generated * 1e6
        rows.append(row | _held(serving, use.machine, prompt + output_tokens - 1))
    row = rows[0]
    columns = {
        "gpu": "GPU",
        "dtype": "dtype",
        "seconds": "reply",
        "first_token_s": "first token",
        "tokens_per_s": "tokens/s",
        "used": "memory",
    }
    if "price" in options:
        columns["price_per_million_tokens"] = "price of 10^6"
    other_steps = f"{output_tokens - 1:,} steps"
    formula = f"seconds = prefill + (n - 1) decode steps; {STEPS_BY_PARAMETERS}"
    if not config.parameters:
        other_steps += ", with a growing cache"
        formula = (
            "seconds = prefill + sum over tokens 2 to n of max(FLOPs / peak, (weights + cache) / "
            "bandwidth)"
        )
    notes = _notes(servings, prompt + output_tokens)
    if draft is not None:
        other_steps = f"{(output_tokens - 1) / row['tokens_per_cycle']:.4g} cycles"
        formula = "tokens of a cycle = (1 - a^(n + 1)) / (1 - a), n drafts of which a are accepted"
        notes.append("speculative decoding: Leviathan et al. (2023); without the draft's memory")
    return Answer(
        title=f"Replies of {config.name}: {batch} x {output_tokens} tokens to prompts of "
        f"{prompt}, {count(gpus, 'device')}",
        warnings=fit_warnings(rows, TENSOR_PARALLEL, gpus),
        **by_machine(rows),
        main=("seconds", "first_token_s", "tokens_per_s", "price_per_million_tokens"),
        steps=steps_of(
            DRAFT_STEPS + REPLY_STEPS if draft is not None else REPLY_STEPS,
            **row,
            batch=batch,
            prompt=prompt,
            draft_tokens=draft_tokens,
            accepted=accepted,
            tokens=output_tokens,
            steps=other_steps,
            others_s=row["seconds"] - row["first_token_s"],
            hour=uses.uses[0].price,
        ),
        formula=formula,
        source=f"Pope et al. (2022); {uses.source}",
        assumptions=[
            *notes,
            "price per generated token; energy is the maximum by TDP",
            *uses.notes,
        ],
        columns=columns,
    )


def _cycle(serving: Serving, drafting: Serving, seen: int, drafts: int, accepted: float) -> Row:
    """Return a cycle of speculative decoding: the time of its drafts and of their check, and the
    tokens that it is expected to give.

    Source: Leviathan et al., Fast Inference from Transformers via Speculative Decoding (2023),
    equation 1.
    """
    tokens = sum(accepted**index for index in range(drafts + 1))
    draft_s = max(drafting.times(drafting.decode(seen)))
    check_s = max(serving.times(serving.decode(seen, drafts + 1)))
    return {
        "draft_s": draft_s,
        "check_s": check_s,
        "cycle_s": drafts * draft_s + check_s,
        "tokens_per_cycle": tokens,
    }


@question
def context(
    model: Model = None,
    prompt: Whole = 2048,
    batch: Whole = 1,
    weight_dtype: Stored | None = None,
    kv_dtype: Cached = "bf16",
    gpus: Whole = 1,
    utilization: Share = UTILIZATION,
    **options: Unpack[Context],
) -> Answer:
    """Longest context of a batch, and largest batch of a context, that fit beside the weights."""
    config = model_of(model, options).with_attention()
    stored_in = weight_dtype or config.quantization or "bf16"
    serving = Serving(config, batch, weight_dtype=stored_in, kv_dtype=kv_dtype, devices=gpus)
    one = serving._replace(batch=1)
    machines = machines_of(options)
    parameters = count_parameters(config).total
    weight_bytes = serving.weight_bytes
    attention = [weight for weight in weights(config) if weight.component == "attention"]
    repeated_bytes = (gpus - 1) * stored_bytes(attention, stored_in)
    copies = cache_copies(config, gpus)
    per_token = kv_bytes_per_token(config, serving.kv_bytes)
    cache_bytes = one.cache_bytes(prompt)
    rows: list[Row] = []
    warnings = []
    for machine in machines:
        memory_bytes = memory_of(machine)
        free = int(utilization * gpus * memory_bytes) - weight_bytes
        row: Row = {
            "gpu": machine.slug,
            "gpus": gpus,
            "memory_bytes": memory_bytes,
            "free_bytes": free,
            "fits": free >= 0,
            "kv_bytes_per_token": per_token,
            "context": _longest_context(serving, free),
            "batch": max(0, free) // cache_bytes,
            "data_parallel_batch": None,
        }
        if copies > 1:
            left = max(0, free - repeated_bytes)
            left //= gpus * one._replace(devices=1).cache_bytes(prompt)
            row["data_parallel_batch"] = gpus * left
        rows.append(row)
        if free < 0:
            held = f"{quantity(weight_bytes, 'B')} of weights"
            devices = f"{count(gpus, 'device')} {machine.slug}"
            warnings.append(f"does not fit: {held} on {devices}")
    row = rows[0]
    longest = "no limit" if row["context"] is None else f"{row['context']:,} tokens"
    notes = [
        "activations, workspaces and fragmentation take the memory that --utilization leaves free",
        "tensor parallelism: all devices share the weights evenly",
        storage_note(stored_in),
    ]
    if config.context and (row["context"] or MAX_EXTENT) > config.context:
        notes.append(f"{config.name} was made for {config.context:,} tokens")
    return Answer(
        main=("context", "batch"),
        title=f"Context and batch of {config.name} on {count(gpus, 'device')}",
        warnings=warnings,
        **by_machine(rows, weight_bytes=weight_bytes),
        steps=steps_of(
            CONTEXT_STEPS,
            **row,
            utilization=utilization,
            total_bytes=utilization * gpus * row["memory_bytes"],
            params=parameters,
            weight_bits=8 * weight_bytes / parameters,
            weight_bytes=weight_bytes,
            copies=float(copies),
            stored_heads=_stored_heads(config) if copies > 1 else None,
            left_bytes=max(0, row["free_bytes"]),
            layers=len(config.stores),
            state_bytes=state_bytes(config, serving.kv_bytes) or None,
            kv_dtype=kv_dtype,
            sequences=count(batch, "sequence"),
            longest=longest,
            prompt=prompt,
            cache_bytes=cache_bytes,
        ),
        formula="longest s with copies x batch x cache(s) <= devices x memory - weights; cache(s) "
        "= 2 L k d w s at most",
        source=f"Pope et al. (2022); {config.source}; {sources_of(machines)}",
        assumptions=[*notes, *_uneven(config, gpus), *config.notes_on(prompt)],
        columns={
            "gpu": "GPU",
            "gpus": "GPUs",
            "free_bytes": "left for the cache",
            "context": "longest context",
            "batch": "largest batch",
        },
    )


def _longest_context(serving: Serving, free_bytes: int) -> int | None:
    """Return the most tokens of each sequence whose caches fit, 0 if none do; None if there is no
    limit.

    A cache does not grow without limit if each layer has a window or a state.
    """
    needed = serving.cache_bytes
    if needed(MAX_EXTENT) <= free_bytes:
        return None
    return bisect_right(range(MAX_EXTENT), free_bytes, lo=1, key=needed) - 1
