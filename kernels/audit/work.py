"""Many kernels compiled at once, in processes of their own."""

from collections.abc import Sequence
from concurrent.futures.process import BrokenProcessPool
from contextlib import nullcontext
from dataclasses import dataclass

from kernels import workers
from kernels.audit import compiling, limits, reading, rows
from kernels.audit.catalog import Choice
from kernels.audit.errors import AuditError

FEW = 6  # kernels are compiled sooner here than processes are started
CHUNK = 12  # kernels of one task: the disassembler starts once for them


@dataclass(frozen=True)
class Job:
    """One variant to audit."""

    choice: Choice
    gpu: str
    known_sizes: bool = True
    """Whether whole numbers that Triton may specialize are multiples of 16."""
    with_listing: bool = False


def audit(jobs: Sequence[Job]) -> list[rows.AuditRow]:
    """Compile variants in this process and return their rows.

    Raises:
        AuditError: One of them does not compile.
    """
    compiled = []
    for job in jobs:
        choice, variant = job.choice, job.choice.variant
        source = compiling.source_of(variant, known_sizes=job.known_sizes)
        what = f"compiling {choice.kernel} {choice.version.name} {variant.dtype} for sm_{choice.arch}"
        with workers.told_if_slow(what) if len(jobs) == 1 else nullcontext():
            compiled.append(compiling.compile_ahead(variant.kernel, source, choice.arch, variant.options))
    unique = {item.hash: item for item in compiled}  # two operations may share a kernel
    binaries = dict(zip(unique, reading.read_back(list(unique.values())), strict=True))
    found = []
    for job, item in zip(jobs, compiled, strict=True):
        choice, gpu = job.choice, limits.gpu(job.gpu)
        names = (choice.kernel, choice.version.name, choice.variant)
        found.append(rows.row(*names, binaries[item.hash], choice.arch, gpu, job.with_listing))
    return found


def audit_all(jobs: Sequence[Job]) -> list[rows.AuditRow]:
    """Compile variants on all cores of this process and return their rows in order; progress goes to stderr.

    Raises:
        AuditError: One of them does not compile, or the processes that compile are ended from outside.
    """
    if len(jobs) <= FEW:
        return rows.ordered([row for job in jobs for row in audit([job])])
    cores = workers.cores()
    size = max(1, min(CHUNK, -(-len(jobs) // cores)))
    chunks = [jobs[start : start + size] for start in range(0, len(jobs), size)]
    found = workers.in_processes(audit, chunks, min(cores, len(chunks)))
    try:
        return rows.ordered([row for rows_of_chunk in found for row in rows_of_chunk])
    except BrokenProcessPool as error:
        raise AuditError(workers.ENDED) from error
