"""Many kernels compiled at once, in processes of their own."""

import os
import random
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import as_completed
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass

from kernels.audit import compiling, limits, output, reading, rows, workers
from kernels.audit.catalog import Choice

FEW = 6  # kernels are compiled sooner here than processes are started
CHUNK = 12  # kernels of one task: the disassembler starts once for them
QUIET_S = 2.0
REPORT_EVERY_S = 10.0


@dataclass(frozen=True)
class Job:
    """One variant to audit."""

    choice: Choice
    gpu: str
    known_sizes: bool = True
    """Whether whole numbers that Triton may specialize are multiples of 16."""
    with_listing: bool = False


def audit(jobs: Sequence[Job], step: Callable[[int], None] | None = None) -> list[rows.AuditRow]:
    """Compile variants in this process and return their rows.

    Args:
        jobs: The variants.
        step: Is told how many are compiled, after each; stderr is then told of each that takes long as well.

    Raises:
        AuditError: One of them does not compile.
    """
    compiled = []
    for job in jobs:
        choice, variant = job.choice, job.choice.variant
        source = compiling.source_of(variant, known_sizes=job.known_sizes)
        what = f"compiling {choice.kernel} {choice.version.name} {variant.dtype} for sm_{choice.arch}"
        with told_if_slow(what) if step else nullcontext():
            compiled.append(compiling.compile_ahead(variant.kernel, source, choice.arch, variant.options))
        if step:
            step(len(compiled))
    unique = {item.hash: item for item in compiled}  # two operations may share a kernel
    binaries = dict(zip(unique, reading.read_back(list(unique.values())), strict=True))
    return [_row(job, binaries[item.hash]) for job, item in zip(jobs, compiled, strict=True)]


def _row(job: Job, binary: reading.Binary) -> rows.AuditRow:
    choice = job.choice
    return rows.row(
        choice.kernel,
        choice.version.name,
        choice.variant,
        binary,
        choice.arch,
        limits.gpu(job.gpu),
        with_listing=job.with_listing,
    )


def audit_all(jobs: Sequence[Job]) -> list[rows.AuditRow]:
    """Compile variants on all cores of this process and return their rows in order; progress goes to stderr.

    Raises:
        AuditError: One of them does not compile.
    """
    if len(jobs) <= FEW:
        with _progress(len(jobs)) as step:
            return rows.ordered(audit(jobs, step))
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    size = max(1, min(CHUNK, -(-len(jobs) // cores)))
    chunks = [jobs[start : start + size] for start in range(0, len(jobs), size)]
    random.Random(0).shuffle(chunks)  # kernels of one kind lie together: now what is done tells how long the rest takes
    processes = min(cores, len(chunks))
    beginning = told_if_slow(f"compiling {len(jobs)} kernels in {processes} process{'es' * (processes > 1)}")
    found: list[rows.AuditRow] = []
    with beginning, _progress(len(jobs)) as step, workers.pool_of(processes) as pool:
        with workers.interrupts_held():  # processes start with the tasks
            tasks = [pool.submit(audit, chunk) for chunk in chunks]
        for done in as_completed(tasks):
            found += done.result()
            step(len(found))
    return rows.ordered(found)


@contextmanager
def told_if_slow(what: str) -> Iterator[None]:
    """Say on stderr what is being done, once it takes longer than two seconds."""
    timer = threading.Timer(QUIET_S, output.say, (what,))
    timer.daemon = True  # Ctrl-C need not wait for it
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


@contextmanager
def _progress(total: int) -> Iterator[Callable[[int], None]]:
    """Say on stderr how far it is and how long the rest will take, once it takes longer than two seconds."""
    started = time.monotonic()
    said = started + QUIET_S - REPORT_EVERY_S
    is_terminal = sys.stderr is not None and sys.stderr.isatty()

    def step(count: int) -> None:
        nonlocal said
        now = time.monotonic()
        if sys.stderr is None or now - said < (0.2 if is_terminal and now - started > QUIET_S else REPORT_EVERY_S):
            return
        said = now
        line = f"compiled {count} of {total} kernels{_left((now - started) * (total - count) / max(count, 1))}"
        end = "\x1b[K\r" if is_terminal else "\n"
        print(line, end=end, file=sys.stderr, flush=True)

    try:
        yield step
    finally:
        if is_terminal:
            print("\x1b[2K", end="\r", file=sys.stderr, flush=True)


def _left(seconds: float) -> str:
    """Return a time that is left, in words; nothing where none is."""
    if seconds < 1:
        return ""
    return f", about {seconds:.0f} s left" if seconds < 90 else f", about {seconds / 60:.0f} min left"
