"""Version 2 of the reductions: a fixed number of programs, 16-byte accesses, and one launch.

Computes the same as version 1. The partial sums, 4 bytes per program, stay in cache and are not
counted.

Rounding: operands are widened to fp32, so the product of two 16-bit numbers is exact. The order of
every sum depends only on n and the number of multiprocessors, so the same call gives the same bits.
Terms are added pairwise or in short runs, except for one running sum over rounds. A term takes part
in at most

    ACCESS + LOADS + rounds + 2 log2(LANES) + SLOTS / LANES

additions in fp32 (and one product), each with an error of at most 2^-24 of its result. To first
order the error is below that count times 2^-24 sum_i |x_i y_i|. For a sum of 16-bit elements by 528
programs the count is 36 up to 2^23 elements and 284 for 2^31, where a sum from left to right has n.
s is rounded once, to the nearest even.
Source: Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed. (2002), sections 4.2 and
4.3.

Changes from version 1:
- For any n there are PROGRAMS_PER_SM programs per multiprocessor, which read the vector together,
  round by round: few partial sums, and LOADS accesses of 16 bytes in flight per thread.
- Rounds are not masked. The remainder is cut into equal pieces, one per program, masked by whole
  accesses, so it is read 16 bytes at a time too. Only fewer than ACCESS elements at the end are
  read one by one, once.
- The program that arrives last adds the partial sums in order, which saves the second launch. An
  atomic counter shows which program is last. It orders memory (acquire and release), and the last
  program resets it to 0.

Why concurrent launches do not share scratch memory: partial sums come from torch's allocator at
every launch, which gives memory that is in use by one stream or CUDA graph to no other. The counter
must start at 0, and a fill would be another launch, so counters are retained: one per stream, whose
launches run one after another, and a new one for every launch recorded in a CUDA graph, because a
graph may be replayed on any stream, concurrently with any other. The latter takes 16 bytes until
the process ends. If a stream is recorded before any launch has run outside a graph, no counter is
ready, and filling one becomes part of the graph.

Limits: an aborted launch does not reset its counter, but then CUDA ends the context.
"""

import itertools
from functools import cache

import torch
import triton
import triton.language as tl

from kernels.launch import ALIGNMENT_BYTES, DTYPES, Variant, gpu_of, on_any_arch
from kernels.reduction import launchers
from kernels.reduction.v1_two_pass import terms_of

WARPS = 8
LANES = 32 * WARPS  # adjacent accesses, one per thread
LOADS = {"sum": 8, "dot": 4}  # accesses per thread, operand and round, all in flight together
PROGRAMS_PER_SM = 4
MAX_PROGRAMS = 1024  # a power of two
COUNTERS = 4096  # per allocation


@triton.jit
def _lane_sums(
    x_ptr,  # first element of a round or piece, a multiple of 16 bytes
    y_ptr,  # the same of the other operand, or None
    left,  # elements to read, a multiple of ACCESS; None: all, without a mask
    LANES: tl.constexpr,  # adjacent accesses
    ACCESS: tl.constexpr,  # elements in 16 bytes
    LOADS: tl.constexpr,  # accesses of a thread
):
    """Return one sum for each lane, in fp32."""
    offsets = tl.arange(0, LOADS * LANES * ACCESS)
    # After `reshape` the elements of one access are adjacent, and are added in the thread that has
    # read them.
    if left is None:
        terms = tl.load(x_ptr + offsets).to(tl.float32)
        if y_ptr is not None:
            terms *= tl.load(y_ptr + offsets).to(tl.float32)
    else:
        terms = terms_of(x_ptr, y_ptr, offsets, offsets < left)
    return tl.sum(tl.sum(tl.reshape(terms, (LOADS, LANES, ACCESS)), axis=2), axis=0)


@triton.jit(do_not_specialize=["n", "rounds", "piece"])
def reduce_vector(
    x_ptr,  # n elements
    partial_ptr,  # fp32, one element per program
    arrived_ptr,  # int32, programs that have written theirs; 0 before and after
    out_ptr,  # one element
    n,  # elements, not specialized: one binary serves every n
    rounds,  # blocks for each program
    piece,  # accesses for each program after that, at most LANES * LOADS
    y_ptr,  # n elements to multiply x with, or None
    LANES: tl.constexpr,  # adjacent accesses, a power of two
    ACCESS: tl.constexpr,  # elements in 16 bytes
    LOADS: tl.constexpr,  # accesses of a thread in a round
    SLOTS: tl.constexpr,  # at least as many as programs, a power of two
):
    BLOCK: tl.constexpr = LANES * LOADS * ACCESS
    program = tl.program_id(0).to(tl.int64)
    programs = tl.num_programs(0)
    # The remainder comes first, when few registers are in use. It is counted in accesses and
    # multiplied last, so that the compiler knows that no access is partly masked.
    accesses = n // ACCESS
    begin = rounds.to(tl.int64) * programs * (LANES * LOADS) + program * piece
    left = tl.maximum(tl.minimum(accesses - begin, piece), 0) * ACCESS
    y_begin = None if y_ptr is None else y_ptr + begin * ACCESS
    total = _lane_sums(x_ptr + begin * ACCESS, y_begin, left, LANES, ACCESS, LOADS)
    lanes = tl.arange(0, LANES)
    edge = accesses.to(tl.int64) * ACCESS + lanes
    total += terms_of(x_ptr, y_ptr, edge, edge < tl.where(program == 0, n, 0))

    at = program * BLOCK
    for _ in range(rounds):
        y_at = None if y_ptr is None else y_ptr + at
        total += _lane_sums(x_ptr + at, y_at, None, LANES, ACCESS, LOADS)
        at += programs.to(tl.int64) * BLOCK

    tl.store(partial_ptr + program, tl.sum(total))
    if tl.atomic_add(arrived_ptr, 1, sem="acq_rel", scope="gpu") == programs - 1:
        slots = tl.arange(0, SLOTS)
        # From L2: an L1 does not see the writes of other multiprocessors.
        partials = tl.load(
            partial_ptr + slots, mask=slots < programs, other=0.0, cache_modifier=".cg"
        )
        tl.store(out_ptr, tl.sum(partials))
        tl.store(arrived_ptr, 0)


class Counters:
    """The arrival counters of one device, each 0 if no launch uses it; see the docstring of this
    file.
    """

    def __init__(self, device: torch.device):
        self.device = device
        self._fresh: list[torch.Tensor] = []
        self._blocks: list[torch.Tensor] = []  # retained, because a graph stores only an address
        self._of_stream: dict[int, torch.Tensor] = {}

    def take(self) -> torch.Tensor:
        is_gpu = self.device.type == "cuda"
        if is_gpu and torch.cuda.is_current_stream_capturing():
            return (
                self._fresh.pop()
                if self._fresh
                else torch.zeros(1, dtype=torch.int32, device=self.device)
            )
        if len(self._fresh) < COUNTERS // 2:
            # A copy from the host is complete when the call returns, a fill only on its own stream.
            # 16 bytes each: for another alignment Triton would compile again during a recording.
            block = torch.zeros((COUNTERS, ALIGNMENT_BYTES // 4), dtype=torch.int32).to(self.device)
            self._blocks.append(block)
            self._fresh.extend(block)
        stream = torch.cuda.current_stream(self.device).cuda_stream if is_gpu else 0
        if stream not in self._of_stream:
            self._of_stream[stream] = self._fresh.pop()
        return self._of_stream[stream]


_counters = cache(Counters)


def _variant(op: str, dtype: torch.dtype) -> Variant:
    vectors = 1 if op == "sum" else 2
    access = ALIGNMENT_BYTES // dtype.itemsize
    constants = {"LANES": LANES, "ACCESS": access, "LOADS": LOADS[op], "SLOTS": MAX_PROGRAMS}
    return Variant(
        kernel=reduce_vector,
        constants=constants | ({"y_ptr": None} if op == "sum" else {}),
        warps=WARPS,
        op=op,
        dtype=DTYPES[dtype],
        types={"partial_ptr": "*fp32", "arrived_ptr": "*i32"},
        elements=LANES * LOADS[op] * access,
        bytes=LANES * LOADS[op] * ALIGNMENT_BYTES * vectors,
    )


VARIANTS = {(op, dtype): _variant(op, dtype) for op, dtype in itertools.product(LOADS, DTYPES)}
variants = on_any_arch(VARIANTS)


def plan(n: int, variant: Variant, max_programs: int) -> tuple[int, int, int]:
    """Return the number of programs, the rounds of each, and the accesses of each to the
    remainder.
    """
    lanes, access, loads = (variant.constants[name] for name in ("LANES", "ACCESS", "LOADS"))
    accesses = n // access
    # One if n is 0: the sum is 0.
    programs = max(min(max_programs, triton.cdiv(accesses, lanes)), 1)
    rounds, left = divmod(accesses, programs * lanes * loads)
    # Multiples of `lanes`, so that neighboring threads read neighboring accesses.
    return programs, rounds, triton.cdiv(triton.cdiv(left, lanes), programs) * lanes


def _reduce(op: str, x: torch.Tensor, others: tuple[torch.Tensor, ...], out: torch.Tensor) -> None:
    n = x.numel()
    variant = VARIANTS[op, x.dtype]
    max_programs = min(PROGRAMS_PER_SM * gpu_of(x.device).processors, MAX_PROGRAMS)
    programs, rounds, piece = plan(n, variant, max_programs)
    partial = torch.empty(programs, dtype=torch.float32, device=x.device)
    with torch.cuda.device_of(x):  # stream capture is a property of the current device
        arrived = _counters(x.device).take()
    variant.launch(programs, x, partial, arrived, out, n, rounds, piece, *others)


KERNELS = launchers("v2", _reduce)
