"""A worked answer about a whole reply: its least time, and its price."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from roofline.accounting.answers.answer import Answer, Step, by_machine, devices, duration, number
from roofline.accounting.answers.budget import Use, cost_of
from roofline.accounting.answers.infer import (
    PARAMETERS_FORMULA,
    PARAMETERS_NOTES,
    does_not_fit,
    element_bytes,
    held_in,
    row_of_parameters,
    serving_notes,
    whole_bytes,
)
from roofline.accounting.config.config import ModelConfig
from roofline.accounting.reply import Serving, decode_seconds, prefill_seconds


def generate_answer(
    config: ModelConfig,
    uses: Sequence[Use],
    prompt: int,
    tokens: int,
    batch: int = 1,
    weight_dtype: str | None = None,
    kv_dtype: str = "bf16",
    gpus: int = 1,
    price: float | None = None,
    notes: Sequence[str] = (),
) -> Answer:
    """Return the least time of a reply on each machine, from the prompt to its last token, and its price.

    Args:
        config: the model.
        uses: machines and the dtypes that they compute in.
        prompt: tokens of each prompt.
        tokens: of each reply; the first comes with the prefill.
        batch: replies at once.
        weight_dtype: in which the weights lie; None: as computed.
        kv_dtype: in which the cache lies.
        gpus: devices that share the model evenly, without communication.
        price: of one device for an hour; None: no price is asked.
        notes: further assumptions.

    Raises:
        ConfigError: the cache cannot lie in that dtype.
    """
    whole_bytes(kv_dtype)
    plan = (prompt, tokens, batch, gpus, price)
    rows = [_row(config, use, weight_dtype or use[1], kv_dtype, *plan) for use in uses]
    return _answer(
        f"Replies of {config.name}",
        rows,
        uses,
        (prompt, tokens, batch, gpus, price),
        formula="seconds = prefill + sum over tokens 2 to n of max(FLOPs / peak, (weights + cache) / bandwidth)",
        assumptions=[
            f"weights in {weight_dtype or 'the computing dtype'}, cache in {kv_dtype}",
            *serving_notes(config),
            PRICE_NOTE,
            *config.notes_on(prompt + tokens),
            *notes,
        ],
    )


PRICE_NOTE = "the price is that of tokens written; energy is the most that the devices draw"


def generate_of_parameters(
    params: float,
    uses: Sequence[Use],
    prompt: int,
    tokens: int,
    batch: int = 1,
    weight_dtype: str | None = None,
    gpus: int = 1,
    price: float | None = None,
    notes: Sequence[str] = (),
) -> Answer:
    """Return the least time of a reply by the number of parameters of a dense model alone.

    Arguments as of `generate_answer`; the cache, which depends on the model, is left out.
    """
    rows = []
    for use in uses:
        one = row_of_parameters(params, use, prompt, batch, weight_dtype or use[1], gpus)
        first = one["prefill_seconds"]
        timed = _timed(use, first, first + (tokens - 1) * one["decode_seconds"], tokens, batch, gpus, price)
        held = ("weight_bytes", "cache_bytes", "memory_bytes", "used", "fits", "gpus_needed")
        rows.append(timed | {key: one[key] for key in held})
    lying = f"weights in {weight_dtype or 'the computing dtype'}"
    return _answer(
        f"Replies of {number(params)} parameters",
        rows,
        uses,
        (prompt, tokens, batch, gpus, price),
        formula=f"seconds = prefill + (n - 1) decode steps; {PARAMETERS_FORMULA}",
        assumptions=[lying, *PARAMETERS_NOTES, PRICE_NOTE, *notes],
    )


def _answer(
    whose: str,
    rows: Sequence[dict[str, Any]],
    uses: Sequence[Use],
    plan: tuple[int, int, int, int, float | None],
    formula: str,
    assumptions: Sequence[str],
) -> Answer:
    """Return the answer to rows of replies, whose plan is the prompt, tokens, batch, devices and price."""
    prompt, tokens, batch, gpus, price = plan
    row, (machine, dtype) = rows[0], uses[0]
    growing = "" if row["cache_bytes"] is None else ", the cache growing"
    steps = [
        Step("first token", f"prefill of {batch} x {prompt} tokens", duration(row["first_token_s"])),
        Step("the others", f"{tokens - 1:,} steps{growing}", duration(row["seconds"] - row["first_token_s"])),
        Step("reply", "sum", duration(row["seconds"])),
        Step("tokens/s", f"{batch} x {tokens} / {duration(row['seconds'])}", number(row["tokens_per_s"])),
    ]
    if row["price_per_million_tokens"] is not None:
        reckoned = f"{gpus:,} x {price:g} an hour / 3600 / {number(row['tokens_per_s'])} x 10^6"
        steps.append(Step("price of 10^6 tokens", reckoned, number(row["price_per_million_tokens"])))
    columns = [("gpu", "GPU"), ("dtype", "dtype"), ("seconds", "reply"), ("first_token_s", "first token")]
    columns += [("tokens_per_s", "tokens/s"), ("used", "memory")]
    return Answer(
        title=f"{whose}: {batch} x {tokens} tokens to prompts of {prompt}, {devices(gpus)}",
        warnings=[line for row in rows if (line := does_not_fit(row, gpus))],
        values=by_machine(rows),
        main=("seconds", "first_token_s", "tokens_per_s", "price_per_million_tokens"),
        steps=steps,
        formula=formula,
        source="; ".join(dict.fromkeys(["Pope et al. (2022)", *(use[0].source for use in uses)])),
        assumptions=assumptions,
        rows=rows,
        columns=columns if price is None else [*columns, ("price_per_million_tokens", "price of 10^6")],
        worked=f"{machine.slug}, {dtype}",
    )


def _row(
    config: ModelConfig,
    use: Use,
    weight_dtype: str,
    kv_dtype: str,
    prompt: int,
    tokens: int,
    batch: int,
    gpus: int,
    price: float | None,
) -> dict[str, Any]:
    machine, dtype = use
    size_of_weight, size_in_cache = element_bytes(weight_dtype), whole_bytes(kv_dtype)
    serving = Serving(gpus * machine.peak(dtype), gpus * machine.bandwidth(), size_of_weight, size_in_cache)
    first = prefill_seconds(config, prompt, batch, serving)
    seconds = first + decode_seconds(config, prompt, tokens, batch, serving)
    return {
        **_timed(use, first, seconds, tokens, batch, gpus, price),
        **held_in(config, machine, prompt + tokens - 1, batch, size_of_weight, size_in_cache, gpus),
    }


def _timed(
    use: Use, first: float, seconds: float, tokens: int, batch: int, gpus: int, price: float | None
) -> dict[str, Any]:
    machine, dtype = use
    cost = cost_of(machine, gpus, seconds, price)
    return {
        "gpu": machine.slug,
        "dtype": dtype,
        "gpus": gpus,
        "seconds": seconds,
        "first_token_s": first,
        "tokens_per_s": batch * tokens / seconds,
        "price_per_million_tokens": None if cost["price"] is None else cost["price"] / (batch * tokens) * 1e6,
        **cost,
    }
