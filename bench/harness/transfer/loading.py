"""Measures a loop on random batches of a token file, and how long its steps wait for their batch."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bench.harness.cli.once import share_s
from bench.harness.device.device import Device
from bench.harness.measure.samples import sample_steps
from bench.harness.run import Run
from bench.harness.transfer.copies import Matmuls, finished_row, finished_s
from bench.harness.transfer.tokens import TokenFileError, open_tokens, write_random_tokens
from results.record import Record

Batch = tuple[Tensor, Tensor]
"""Inputs (b, s), and labels (b, s), which are one token further on."""

FILE_BYTES = 64 * 2**20
"""Of the file of random tokens."""

ROUNDS_ALONE = 5
"""Rounds of a step's work that are timed alone."""


def measure_load(work: Callable[[Device, int], Matmuls], blank: Record, run: Run, rows: int) -> Record:
    """Return the record of a loop on batches of the token file, by default one of random tokens.

    A batch is compared with the file first. `work` makes the work of a step, from the device and a seed; `rows` share
    the budget that is left.
    """
    device, args, dtype = run.device, run.args, run.args.token_dtype
    with tempfile.TemporaryDirectory() as directory:
        file = Path(args.tokens or f"{directory}/random")
        if args.tokens is None:
            write_random_tokens(file, FILE_BYTES, dtype, args.vocabulary, args.seed)
        ids = open_tokens(file, dtype)
        batches = random_batches(ids, blank.shape["b"], blank.shape["s"], device, args.seed)
        if problem := problem_of(next(batches), args.vocabulary):
            return replace(blank, status="invalid", reason=problem)
        matmuls = work(device, args.seed)
        alone_s, waits_s = tuple(finished_s(matmuls, device) for _ in range(ROUNDS_ALONE)), list[float]()
        with prefetched(batches) if blank.options["prefetch"] else nullcontext(batches) as loaded:
            step = loop_step(loaded, matmuls, device, waits_s)
            samples = sample_steps(step, "warm", device, share_s(run, rows))
    return replace(
        finished_row(replace(blank, flops=matmuls.flops), samples, run),
        compute_s=alone_s,
        waits_s=tuple(waits_s[-len(samples.samples_s) :]),
        file_bytes=ids.nbytes,
    )


def random_batches(ids: Any, batch: int, sequence: int, device: Device, seed: int) -> Iterator[Batch]:
    """Yield random batches of token ids in int64 on the device; on a GPU through pinned memory, without waiting.

    Raises:
        TokenFileError: there are too few tokens for one sequence and its next token.
    """
    if len(ids) < sequence + 1:
        raise TokenFileError(f"the file has {len(ids)} tokens, fewer than the {sequence + 1} of a sequence")
    generator = np.random.default_rng(seed)
    while True:
        starts = generator.integers(0, len(ids) - sequence, batch)
        rows = torch.from_numpy(np.stack([ids[at : at + sequence + 1] for at in starts]).astype(np.int64))
        if device.is_gpu:
            rows = rows.pin_memory().to(device.torch_name, non_blocking=True)
        yield rows[:, :-1], rows[:, 1:]


def problem_of(batch: Batch, vocabulary: int) -> str | None:
    """Return what is wrong with a batch, or None: labels that are not the next tokens, ids past the vocabulary."""
    inputs, labels = (part.cpu() for part in batch)
    if not torch.equal(inputs[:, 1:], labels[:, :-1]):
        return "the labels are not the next tokens of the inputs"
    if int(inputs.max()) >= vocabulary:
        return f"the file holds token {int(inputs.max()):,}, past a vocabulary of {vocabulary:,}; see --vocabulary"
    return None


@contextmanager
def prefetched(batches: Iterator[Batch]) -> Iterator[Iterator[Batch]]:
    """Make the next batch in a thread while the last one is used."""
    with ThreadPoolExecutor(1) as thread:

        def ahead() -> Iterator[Batch]:
            coming = thread.submit(next, batches)
            while True:
                batch = coming.result()
                coming = thread.submit(next, batches)
                yield batch

        yield ahead()


def loop_step(batches: Iterator[Batch], work: Callable[[], None], device: Device, waits_s: list[float]) -> Any:
    """Return a step that takes a batch, reads its ids, computes, and waits until all is done."""

    def step() -> None:
        start = time.perf_counter()
        inputs, labels = next(batches)
        waits_s.append(time.perf_counter() - start)
        inputs.sum().add_(labels.sum())
        work()
        device.synchronize()

    return step
