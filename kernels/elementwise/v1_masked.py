"""Version 1 of the elementwise kernels: textbook formulas, with one mask for every access.

Computes, element by element (b is the bias of the element's column, w the random word of its
index):

    copy          x                                 add, residual-add   x + y
    relu          max(x, 0)                         mul                 x * y
    gelu          g(x) = x/2 * (1 + erf(x/sqrt 2))  triad               x + 3 y
    gelu-tanh     x * s(2z)                         bias-gelu           g(x + b)
    silu          x * s(x)                          swiglu              gate * s(gate) * up
    dropout       x / (1 - p) if w, scaled to [0, 1), is at least p, else 0; p = 0.1

    s(v) = 1 / (1 + exp(-v)), z = sqrt(2/pi) * (x + 0.044715 x^3)

Source: Hendrycks and Gimpel, "Gaussian Error Linear Units" (2016), for both forms of GELU; Shazeer,
"GLU Variants Improve Transformer" (2020), for SwiGLU; McCalpin's STREAM, `stream.c`, for triad and
its scalar 3; Srivastava et al., "Dropout" (2014), with the scaling done in training; Salmon et al.,
"Parallel Random Numbers: As Easy as 1, 2, 3" (2011), for Philox. The tanh form of GELU is x/2 * (1
+ tanh z), and 1 + tanh z = 2 s(2z). Written with s, nothing cancels, so the negative tail keeps its
digits.

Bytes moved, for n elements of e bytes: read n e for one input, 2 n e for two, n e + cols e for
bias-gelu, n e + 8 for dropout; written n e.

Rounding: operands are widened to fp32, the whole formula is fp32, and the result is rounded once,
to the nearest even. copy moves the bits unchanged. relu of NaN is NaN. relu of -0 is +0, which the
maximum instruction returns; torch returns -0. The two are equal, and returning -0 would take a
comparison and a selection.

dropout takes word 0 of Philox4x32-10 with the element's index as counter and the seed as key, so
the mask depends only on seed and index. Dropped elements become +0, also if x is NaN or infinite.

What is slow:
- The compiler knows nothing about n, which is not specialized so that one binary serves every n. A
  mask against such an n makes every access one element wide. A specialized n would do so only if it
  is not a multiple of 16.
- Instruction issue: a division that is accurate to 2 ulp over the whole range, an error function in
  two ranges, four random words of which three are discarded, and a 64-bit remainder for each
  element of bias-gelu.

Limits of the formulas: 1 + erf cancels in the negative tail. The absolute error of GELU is below
|x| 2^-22, but below x = -5 few digits of the result are right. GELU of -infinity is NaN. If exp
leaves the range of fp32, at 2^-126, silu and gelu-tanh return zero. `out` may be one of the inputs,
but must not overlap one in part.
"""

import triton
import triton.language as tl

from kernels.elementwise import launchers, named, variants_of
from kernels.launch import ALIGNMENT_BYTES, on_any_arch

WARPS = 4
BLOCK_BYTES = WARPS * 32 * ALIGNMENT_BYTES  # one widest access per thread, if accesses were wide

SQRT_HALF = tl.constexpr(0.7071067811865476)  # 1 / sqrt(2)
SQRT_2_OVER_PI = tl.constexpr(0.7978845608028654)  # sqrt(2 / pi)
CUBIC = tl.constexpr(0.044715)  # of the tanh form, as published
TRIAD_SCALAR = tl.constexpr(3.0)
DROPPED = tl.constexpr(0.1)  # probability of dropping an element
KEPT_SCALE = tl.constexpr(1.0 / 0.9)  # keeps the expected value


# Formulas of blocks: x, y and bias in their own dtype, the result in fp32.


@triton.jit
def copy(x):
    return x


@triton.jit
def add(x, y):
    return x.to(tl.float32) + y.to(tl.float32)


@triton.jit
def mul(x, y):
    return x.to(tl.float32) * y.to(tl.float32)


@triton.jit
def triad(x, y):
    return x.to(tl.float32) + TRIAD_SCALAR * y.to(tl.float32)


@triton.jit
def relu(x):
    # tl.maximum(NaN, 0) is 0 by default; torch.relu returns NaN.
    return tl.maximum(x.to(tl.float32), 0.0, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def gelu(x):
    v = x.to(tl.float32)
    return 0.5 * v * (1.0 + tl.erf(v * SQRT_HALF))


@triton.jit
def gelu_tanh(x):
    v = x.to(tl.float32)
    z = SQRT_2_OVER_PI * (v + CUBIC * v * v * v)
    return v * tl.sigmoid(2.0 * z)


@triton.jit
def silu(x):
    v = x.to(tl.float32)
    return v * tl.sigmoid(v)


@triton.jit
def swiglu(x, y):
    return silu(x) * y.to(tl.float32)


@triton.jit
def bias_gelu(x, bias):
    return gelu(x.to(tl.float32) + bias.to(tl.float32))


@triton.jit
def dropout(
    x,  # block in its own dtype
    uniform,  # fp32 number in [0, 1) for each element
):
    return tl.where(uniform >= DROPPED, x.to(tl.float32) * KEPT_SCALE, 0.0)


@triton.jit(do_not_specialize=["n"], repr=named("masked"))
def map_kernel(
    x_ptr,  # first input, n elements
    out_ptr,  # output, n elements
    n,  # number of elements, not specialized: one binary serves every n
    y_ptr,  # second input, n elements, or the bias, cols elements, or a 64-bit seed, or None
    cols,  # elements per row if there is a bias, else None
    FORMULA: tl.constexpr,  # block of x, or blocks of x and of y or random numbers -> block of out
    BLOCK: tl.constexpr,  # elements per program, a power of two
    RANDOM: tl.constexpr,  # whether there is a seed
):
    offsets = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = offsets < n
    x = tl.load(x_ptr + offsets, mask=inside)
    if RANDOM:
        result = FORMULA(x, tl.rand(tl.load(y_ptr), offsets))
    elif y_ptr is None:
        result = FORMULA(x)
    else:
        places = offsets if cols is None else offsets % cols
        result = FORMULA(x, tl.load(y_ptr + places, mask=inside))
    tl.store(out_ptr + offsets, result, mask=inside)


FORMULAS = {
    "copy": copy,
    "add": add,
    "mul": mul,
    "triad": triad,
    "relu": relu,
    "gelu": gelu,
    "gelu-tanh": gelu_tanh,
    "silu": silu,
    "swiglu": swiglu,
    "bias-gelu": bias_gelu,
    "residual-add": add,
    "dropout": dropout,
}

VARIANTS = variants_of(FORMULAS, map_kernel, WARPS, BLOCK_BYTES)
variants = on_any_arch(VARIANTS)

KERNELS = launchers("v1", VARIANTS, triton.cdiv)
