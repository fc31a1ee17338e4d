"""What the opening of a kernel file says of its machine code, version by version, where no recorded figure holds it."""

import re
from dataclasses import dataclass

import pytest
from compiled import ARCHES, TENSOR_CORES, compile_ahead, read_back
from families import ON_A_GPU, versions_of

from kernels.audit import hot_path
from kernels.launch import INTERPRETED

pytestmark = [pytest.mark.exhaustive, pytest.mark.skipif(INTERPRETED, reason="interpreted kernels are not compiled")]


@dataclass(frozen=True)
class Promise:
    """A pattern in a compiled kernel, found `times` times; None: at least once."""

    version: str
    op: str
    form: str
    """`ptx`, `ttgir`, `sass`, or `hot`, the hot path of the machine code."""
    pattern: str
    times: int | None = None
    dtype: str = "bf16"
    arch: int = 90
    shapes: str = ""
    """How the shape class begins."""
    known_sizes: bool = True

    def __str__(self):
        return f"{self.version}-{self.op}-{self.dtype}-sm_{self.arch}-{self.form}-{self.pattern}"


ELEMENTWISE = ("elementwise/v1", "elementwise/v2", "elementwise/v3")
MMA = {arch: rf"\b{names['bf16']}\b" for arch, names in TENSOR_CORES.items()}
SPILL = r"\b(?:STL|LDL)\b"
LOAD_BY_THREADS = r"\bLDG"
WIDER_THAN_2_BYTES = r"\bLDG\.E(?!\.U16)"
PROMISES = [
    # One maximum that keeps NaN, and no comparison. Source: CUDA Math API, `__hmax2_nan`.
    *[Promise(name, "relu", "ptx", r"\bmax\.NaN\.", dtype=dtype) for name in ELEMENTWISE for dtype in ON_A_GPU],
    *[Promise(name, "relu", "ptx", r"\b(?:selp|setp\.\w+)\.b?f\d", 0) for name in ELEMENTWISE],
    # A profiler shows the formula.
    Promise("elementwise/v1", "bias-gelu", "ptx", r"\.entry bias_gelu_masked\("),
    Promise("elementwise/v2", "bias-gelu", "ptx", r"\.entry bias_gelu_split\("),
    Promise("elementwise/v3", "bias-gelu", "ptx", r"\.entry bias_gelu_lean\("),
    # Version 3 has no division in the logistic function.
    Promise("elementwise/v2", "silu", "hot", r"\bMUFU\.RCP\b", 8),
    Promise("elementwise/v3", "silu", "hot", r"\bMUFU\.RCP\b", 0),
    Promise("elementwise/v3", "silu", "hot", r"\bMUFU\.RSQ\b", 16),
    # Its exponential flushes to zero, so that GELU of -infinity is -0.
    *[Promise("elementwise/v3", "gelu", "ptx", r"\bex2\.approx\.ftz\.f32\b", arch=arch) for arch in ARCHES],
    *[Promise("elementwise/v3", "gelu", "ptx", r"\bex2\.(?!approx\.ftz\.f32\b)", 0, arch=arch) for arch in ARCHES],
    # The first versions read odd sizes element by element, and spill the widest rows.
    Promise("elementwise/v1", "copy", "sass", WIDER_THAN_2_BYTES, 0, known_sizes=False),
    Promise("softmax/v1", "softmax", "sass", WIDER_THAN_2_BYTES, 0, known_sizes=False),
    Promise("softmax/v1", "softmax", "sass", SPILL, shapes="n <= 65536"),
    Promise("norm/v1", "layernorm", "sass", SPILL, shapes="n <= 65536"),
    # Loops of loads are pipelined: of 2 or 3 steps in flight, 4 rows each.
    Promise("softmax/v2", "softmax", "ttgir", r"ttg\.local_alloc.*memdesc<2x4x", 2, shapes="n > 32768"),
    Promise("matvec/v2", "matvec", "ttgir", r"memdesc<3x4x"),
    # Every version of the matrix product feeds tensor cores; fp32 does not spill.
    *[Promise("matmul/v1", "matmul", "sass", MMA[arch], arch=arch) for arch in ARCHES],
    *[Promise("matmul/v2", "matmul", "sass", MMA[arch], arch=arch) for arch in ARCHES],
    *[Promise("matmul/v3", "matmul", "sass", MMA[arch], arch=arch) for arch in (90, 100)],
    *[Promise("matmul/v4", "matmul", "sass", MMA[arch], arch=arch) for arch in (90, 100)],
    *[Promise("matmul/v3", "matmul", "sass", SPILL, 0, "fp32", arch) for arch in ARCHES],
    *[Promise("matmul/v5", "matmul", "sass", SPILL, 0, "fp32", arch) for arch in (90, 100)],
    # Descriptors cost nothing where sizes are odd; int8 with its terms side by side is loaded 16 bytes at a time.
    Promise("matmul/v5", "matmul", "sass", r"\bUTMALDG\b", known_sizes=False),
    Promise("matmul/v5", "matmul", "sass", r"\bUTMASTG\b", known_sizes=False),
    Promise("matmul/v5", "matmul", "sass", LOAD_BY_THREADS, 0, known_sizes=False),
    Promise("matmul/v3", "matmul", "sass", r"\bLDGSTS\.\S*\b128\b", dtype="int8", arch=80, shapes="nt, any"),
]


@pytest.mark.parametrize("promise", PROMISES, ids=str)
def test_a_version_keeps_its_promise(promise):
    family, _, version = promise.version.partition("/")
    variant = next(
        variant
        for variant in versions_of(family)[version].variants(promise.arch)
        if (variant.op, variant.dtype) == (promise.op, promise.dtype) and variant.shape_class.startswith(promise.shapes)
    )
    compiled = compile_ahead(variant, promise.arch, known_sizes=promise.known_sizes)
    if promise.form in ("sass", "hot"):
        instructions = read_back(compiled).instructions
        kept = instructions if promise.form == "sass" else hot_path.find(instructions).instructions
        text = "\n".join(map(str, kept))
    else:
        text = compiled.asm[promise.form]
    found = re.findall(promise.pattern, text)
    assert len(found) == promise.times or (found and promise.times is None), found[:5]


MOST_INSTRUCTIONS = {"copy": 3, "relu": 5, "silu": 11, "gelu-tanh": 13, "swiglu": 15, "gelu": 22, "dropout": 21}
"""Of an element in bf16 on sm_90. An H100 has issue slots for about 40 at 3.0 TB/s, for 59 where two are read."""


@pytest.mark.parametrize("op", MOST_INSTRUCTIONS)
def test_each_elementwise_version_needs_fewer_instructions(op):
    needed = []
    for module in versions_of("elementwise").values():
        variant = module.VARIANTS[op, ON_A_GPU["bf16"]]
        path = hot_path.find(read_back(compile_ahead(variant, 90)).instructions)
        needed.append(path.count * 32 * variant.options["num_warps"] / variant.elements)
    assert needed == sorted(needed, reverse=True)
    assert round(needed[-1]) <= MOST_INSTRUCTIONS[op]


def test_warps_by_width_save_registers_of_a_norm():
    first, second = (
        read_back(compile_ahead(module.VARIANTS["layernorm", ON_A_GPU["bf16"], 16384], 90)).registers
        for module in (versions_of("norm")["v1"], versions_of("norm")["v2"])
    )
    assert second <= 0.6 * first
