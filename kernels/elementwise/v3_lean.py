"""Version 3 of the elementwise kernels: fewer instructions per element, and a separate program for
the tail.

Computes the operations of version 1, in fp32 with one rounding at the end, in these forms:

    gelu          max(x, 0) - |x| Q(|x|), Q(t) = erfc(t/sqrt 2)/2 = 2^(t G(t) - 1), G a polynomial
                  of degree 11
    s(v)          r^2 with r = (1 + exp(-v))^(-1/2), in silu, swiglu and gelu-tanh
    dropout       x / (1 - p) if the element's random word w >= p 2^32, else 0; p = 0.1

Sources of the formulas and of Philox: as in version 1. An error function as the exponential of a
polynomial: Press et al., "Numerical Recipes", 2nd ed., section 6.2; the coefficients of G are our
own fit. Bytes: as in version 1.

Changes from version 1, with instructions per element in bf16 on sm_90, compiled by Triton 3.9. They
matter on GPUs whose issue slots per element are few for their bandwidth, such as an H100 (about 40
at 3 TB/s):
- One mask against n rounded down to a multiple of 16, which leaves accesses wide for any n. A
  separate program computes the remaining elements, at most 15. A narrow path in each block would
  cost all blocks registers.
- 32 bytes per thread and operand: two wide accesses in flight for one address computation. Only the
  start of the block is 64 bits wide, the places in it are 32. copy 9.1 -> 2.3.
- s as the square of a reciprocal root, which is one instruction; a division by 1 + exp(-v) has to
  handle denormals. exp becomes exp2, with log2(e) folded into the constants. silu 22.8 -> 10.3,
  swiglu 27.1 -> 13.4, gelu-tanh 27.8 -> 12.4.
- GELU with one exponential instead of the two ranges of erf: gelu 43.2 -> 20.9, bias-gelu 49.6
  -> 26.6. On an H100 it is no longer bound by instruction issue.
- dropout uses all four words of Philox: element i takes word i mod 4 of counter i div 4. A word is
  compared as an integer. 7 rounds are the fewest that pass every test of Salmon et al., whose
  default of 10 has a margin. 71 -> 19. The mask differs from that of version 1.
- bias-gelu divides once per program instead of once per element, and reads the bias 16 bytes at a
  time also if a block spans two rows.

Accuracy: exp2 and the reciprocal root are accurate to 2 ulp (CUDA C++ Programming Guide). The
absolute error of GELU is below |x| 2^-22, as with erf, and its relative error below 2^-11; 1 + erf
has no digits left below x = -6. GELU of -infinity is -0, its limit, because exp2 flushes subnormal
results to zero (ex2.approx.ftz). The interpreter does not flush and is off by less than 2^-122.
relu of -0 is +0 as in version 1: one maximum of two elements costs 2.8 instructions per element in
bf16, returning -0 as torch does 2 more. silu and gelu-tanh are zero if exp(-v) leaves the range of
fp32. dropout turns what it drops into +0, also NaN and infinity.

Limits: a bias whose length is not a multiple of 16 is read element by element, from cache. triad in
16-bit dtypes is not computed in pairs, as the compiler does for add and mul. `out` may be one of
the inputs, but must not overlap one in part.
"""

import triton
import triton.language as tl

from kernels.elementwise import launchers, named, variants_of
from kernels.elementwise.v1_masked import FORMULAS as FIRST_FORMULAS
from kernels.elementwise.v1_masked import KEPT_SCALE
from kernels.launch import ALIGNMENT_BYTES, on_any_arch

WARPS = 4
ACCESSES = 2  # widest accesses per thread and operand, in flight together
BLOCK_BYTES = ACCESSES * WARPS * 32 * ALIGNMENT_BYTES

WHOLE = tl.constexpr(16)  # a mask against a multiple of this keeps accesses 16 bytes wide
LOG2_E = tl.constexpr(1.4426950408889634)
# 2 sqrt(2/pi) log2(e): of 2z, as the argument of exp2.
TANH_LINEAR = tl.constexpr(2.302208198144325)
TANH_CUBIC = tl.constexpr(2.302208198144325 * 0.044715)
ROUNDS = tl.constexpr(7)
DROP_BELOW = tl.constexpr(429496730)  # 0.1 * 2^32, rounded

GELU_LIMIT = tl.constexpr(13.2)  # from here on |x| Q(|x|) is below the normal numbers of fp32
# G from t^0 to t^11: a minimax fit on [0, 13.2] of (log2 Q(t) + 1) / t. Its error in log2 Q is
# 2^-24 in the middle and may grow as 2^-25 / Q, but not beyond 2^-14: an absolute bound on GELU
# first, a relative one in the tail.
G0_TO_5 = tl.constexpr(
    (-1.1511080, -0.45917946, -0.052586306, 0.0071802773, -1.9805701e-4, -1.8545636e-4)
)
G6_TO_11 = tl.constexpr(
    (5.1048824e-5, -7.2835169e-6, 6.4008526e-7, -3.4671231e-8, 1.0629271e-9, -1.4124174e-11)
)


# Formulas of blocks: x, y and bias in their own dtype, the result in fp32.


@triton.jit
def gelu(x):
    v = x.to(tl.float32)
    t = tl.minimum(tl.abs(v), GELU_LIMIT)
    g = G6_TO_11[5] * t + G6_TO_11[4]
    for i in tl.static_range(4):
        g = g * t + G6_TO_11[3 - i]
    for i in tl.static_range(6):
        g = g * t + G0_TO_5[5 - i]
    # Not a maximum with 0, which may return either zero for -0: GELU(-0) is -0.
    return tl.where(v < 0.0, -0.0, v) - t * tl.exp2(g * t - 1.0)


@triton.jit
def logistic_product(
    v,  # fp32 block
    exponent,  # fp32 block, minus the argument of the logistic function in units of ln 2
):
    """Multiply a block by a logistic function."""
    root = tl.rsqrt(1.0 + tl.exp2(exponent))
    return v * root * root


@triton.jit
def gelu_tanh(x):
    v = x.to(tl.float32)
    return logistic_product(v, v * (v * v * -TANH_CUBIC - TANH_LINEAR))


@triton.jit
def silu(x):
    v = x.to(tl.float32)
    return logistic_product(v, v * -LOG2_E)


@triton.jit
def swiglu(x, y):
    return silu(x) * y.to(tl.float32)


@triton.jit
def bias_gelu(x, bias):
    return gelu(x.to(tl.float32) + bias.to(tl.float32))


@triton.jit
def dropout(
    x,  # block in its own dtype
    words,  # random unsigned 32-bit integer of each element
):
    return tl.where(words >= DROP_BELOW, x.to(tl.float32) * KEPT_SCALE, 0.0)


@triton.jit
def random_words(
    seed,  # key, 64-bit integer
    first,  # index of the first element, a multiple of 4
    COUNT: tl.constexpr,  # number of elements, a power of two
):
    """Return a word for each of COUNT consecutive elements, four per counter, in order."""
    counters = first // 4 + tl.arange(0, COUNT // 4)
    word0, word1, word2, word3 = tl.randint4x(seed, counters, ROUNDS)
    return tl.join(tl.join(word0, word2), tl.join(word1, word3)).reshape(COUNT)


@triton.jit
def write(
    x_ptr,  # first input
    out_ptr,  # output, as many elements
    y_ptr,  # as of `map_kernel`
    cols,  # as of `map_kernel`
    start,  # index of the first element to write, a multiple of 4
    end,  # index behind the last one
    FORMULA: tl.constexpr,  # as of `map_kernel`
    COUNT: tl.constexpr,  # elements to write at most, a power of two
    RANDOM: tl.constexpr,  # whether there is a seed
):
    lanes = tl.arange(0, COUNT)
    inside = start + lanes < end
    x = tl.load(x_ptr + start + lanes, mask=inside)
    if RANDOM:
        result = FORMULA(x, random_words(tl.load(y_ptr), start.to(tl.int64), COUNT))
    elif y_ptr is None:
        result = FORMULA(x)
    elif cols is None:
        result = FORMULA(x, tl.load(y_ptr + start + lanes, mask=inside))
    else:
        # start < n, so it fits the integer type of n; a 64-bit division costs several times a
        # 32-bit one. No `%`: Triton 3.6 loses its divisibility by 16 and reads element by element.
        first = start.to(end.dtype)
        column = (first - first // cols * cols).to(tl.int32) + lanes
        column = tl.where(column >= cols, column - cols, column) if cols >= COUNT else column % cols
        result = FORMULA(x, tl.load(y_ptr + column))
    tl.store(out_ptr + start + lanes, result, mask=inside)


@triton.jit(do_not_specialize=["n"], repr=named("lean"))
def map_kernel(
    x_ptr,  # first input, n elements
    out_ptr,  # output, n elements
    n,  # number of elements, not specialized: one binary serves every n
    y_ptr,  # second input, n elements, or the bias, cols elements, or a 64-bit seed, or None
    cols,  # elements per row if there is a bias, else None; a multiple of 16 makes its loads wide
    FORMULA: tl.constexpr,  # block of x, or blocks of x and of y or random numbers -> block of out
    BLOCK: tl.constexpr,  # elements per program, a power of two
    RANDOM: tl.constexpr,  # whether there is a seed
):
    start = tl.program_id(0).to(tl.int64) * BLOCK
    whole = n // WHOLE * WHOLE
    if start < whole:
        write(x_ptr, out_ptr, y_ptr, cols, start, whole, FORMULA, BLOCK, RANDOM)
    else:
        write(x_ptr, out_ptr, y_ptr, cols, whole, n, FORMULA, WHOLE, RANDOM)


FORMULAS = FIRST_FORMULAS | {
    "gelu": gelu,
    "gelu-tanh": gelu_tanh,
    "silu": silu,
    "swiglu": swiglu,
    "bias-gelu": bias_gelu,
    "dropout": dropout,
}
VARIANTS = variants_of(FORMULAS, map_kernel, WARPS, BLOCK_BYTES)
variants = on_any_arch(VARIANTS)


def _programs(n: int, block: int) -> int:
    return triton.cdiv(n // WHOLE.value * WHOLE.value, block) + (n % WHOLE.value > 0)


KERNELS = launchers("v3", VARIANTS, _programs)
