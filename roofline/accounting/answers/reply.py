"""A worked answer about a whole reply: its least time, and its price."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from roofline.accounting.answers.answer import Answer, Step, by_machine, devices, duration, number
from roofline.accounting.answers.budget import Use, cost_of
from roofline.accounting.answers.infer import (
    PARAMETERS_FORMULA,
    Model,
    does_not_fit,
    element_bytes,
    held_in,
    name_of,
    row_of,
    serving_notes,
    whole_bytes,
)
from roofline.accounting.config.config import ModelConfig
from roofline.accounting.reply import Serving, decode_seconds, prefill_seconds

FORMULA = "seconds = prefill + sum over tokens 2 to n of max(FLOPs / peak, (weights + cache) / bandwidth)"
HELD = ("weight_bytes", "cache_bytes", "memory_bytes", "used", "fits", "gpus_needed")


def generate_answer(
    model: Model,
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
        model: what generates.
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
    rows = [_row(model, use, weight_dtype or use[1], kv_dtype, *plan) for use in uses]
    row, (machine, dtype) = rows[0], uses[0]
    growing = "" if row["cache_bytes"] is None else ", the cache growing"
    steps = [
        Step("first token", f"prefill of {batch} x {prompt} tokens", duration(row["first_token_s"])),
        Step("the others", f"{tokens - 1:,} steps{growing}", duration(row["seconds"] - row["first_token_s"])),
        Step("reply", "sum", duration(row["seconds"])),
        Step("tokens/s", f"{batch} x {tokens} / {duration(row['seconds'])}", number(row["tokens_per_s"])),
    ]
    columns = [("gpu", "GPU"), ("dtype", "dtype"), ("seconds", "reply"), ("first_token_s", "first token")]
    columns += [("tokens_per_s", "tokens/s"), ("used", "memory")]
    if price is not None:
        reckoned = f"{gpus:,} x {price:g} an hour / 3600 / {number(row['tokens_per_s'])} x 10^6"
        steps.append(Step("price of 10^6 tokens", reckoned, number(row["price_per_million_tokens"])))
        columns.append(("price_per_million_tokens", "price of 10^6"))
    by_steps = f"seconds = prefill + (n - 1) decode steps; {PARAMETERS_FORMULA}"
    return Answer(
        title=f"Replies of {name_of(model)}: {batch} x {tokens} tokens to prompts of {prompt}, {devices(gpus)}",
        warnings=[line for row in rows if (line := does_not_fit(row, gpus))],
        values=by_machine(rows),
        main=("seconds", "first_token_s", "tokens_per_s", "price_per_million_tokens"),
        steps=steps,
        formula=FORMULA if isinstance(model, ModelConfig) else by_steps,
        source="; ".join(dict.fromkeys(["Pope et al. (2022)", *(use[0].source for use in uses)])),
        assumptions=[
            *serving_notes(model, prompt + tokens, weight_dtype, kv_dtype),
            "the price is that of tokens written; energy is the most that the devices draw",
            *notes,
        ],
        rows=rows,
        columns=columns,
        worked=f"{machine.slug}, {dtype}",
    )


def _row(
    model: Model,
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
    if isinstance(model, ModelConfig):
        size_of_weight, size_in_cache = element_bytes(weight_dtype), whole_bytes(kv_dtype)
        serving = Serving(gpus * machine.peak(dtype), gpus * machine.bandwidth(), size_of_weight, size_in_cache)
        first = prefill_seconds(model, prompt, batch, serving)
        seconds = first + decode_seconds(model, prompt, tokens, batch, serving)
        held = held_in(model, machine, prompt + tokens - 1, batch, size_of_weight, size_in_cache, gpus)
    else:
        one = row_of(model, use, prompt, batch, weight_dtype, kv_dtype, gpus)
        first = one["prefill_seconds"]
        seconds = first + (tokens - 1) * one["decode_seconds"]
        held = {key: one[key] for key in HELD}
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
        **held,
    }
