"""Launchers of all families without a GPU: they start what an audit compiles, and refuse tensors in host memory.

The launcher runs up to the point where the finished binary would go to the device.
"""

import elementwise_cases
import matvec_cases
import norm_cases
import pytest
import reduction_cases
import torch
from compiled import divisible

import kernels.launch
from kernels.audit import catalog
from kernels.cross_entropy import v3_split_rows as cross_entropy
from kernels.softmax import v2_aligned, v3_split_rows

pytestmark = [
    pytest.mark.sampled(6),
    pytest.mark.skipif(kernels.launch.INTERPRETED, reason="interpreted kernels are not compiled"),
]

H100 = kernels.launch.Gpu(90, 132, 50 * 2**20)


def operands(family, op, dtype):
    """Return inputs and output of an operation, both small."""
    if family == "elementwise":
        inputs = elementwise_cases.draw(op, dtype, 3 * 1040, 1040)
        return inputs, torch.empty_like(inputs[0])
    if family == "norm":
        return norm_cases.draw(op, dtype, 3, 1040), torch.empty((2, 3, 1040) if "residual" in op else (3, 1040)).to(
            dtype
        )
    if family == "matvec":
        return matvec_cases.draw(op, dtype, 101, 1040), torch.empty(101, dtype=dtype)
    if family == "reduction":
        return reduction_cases.draw(op, dtype, 100_003), torch.empty((), dtype=dtype)
    x = torch.empty(3, 8201, dtype=dtype)
    if family == "softmax":
        return (x,), torch.empty_like(x)
    return (x, torch.zeros(3, dtype=torch.int64)), torch.empty(3)


CASES = [
    pytest.param(version, op, dtype, id=f"{op}-{version.name}-{name}")
    for version in catalog.shipped()
    if version.family not in ("bandwidth", "fma", "launch_floor", "matmul")
    for op in version.module.KERNELS
    for dtype, name in kernels.launch.DTYPES.items()
]


def told(compiled):
    """Return the kernel, its types and constants, and its warps."""
    names = compiled.src.fn.arg_names
    constants = {names[path[0]]: value for path, value in compiled.src.constants.items()}
    types = {name: kind for name, kind in compiled.src.signature.items() if kind != "constexpr"}
    return compiled.src.fn.fn, constants, types, compiled.metadata.num_warps


@pytest.mark.parametrize(("version", "op", "dtype"), CASES)
def test_a_launch_is_what_an_audit_compiles(launches, version, op, dtype):
    inputs, out = operands(version.family, op, dtype)
    version.module.KERNELS[op](*inputs, out=out)
    assert launches
    variants = [v for v in version.variants(90) if (v.op, v.dtype) == (op, kernels.launch.DTYPES[dtype])]
    for _, compiled in launches:
        kernel, constants, types, warps = told(compiled)
        assert compiled.metadata.enable_fp_fusion is True
        assert divisible(compiled) >= {name for name in types if name.endswith("_ptr")}
        [variant] = [
            v
            for v in variants
            if v.kernel.fn is kernel
            and v.options["num_warps"] == warps
            and all(constants.get(name) == value for name, value in v.constants.items())
        ]
        own = {name: f"*{variant.dtype}" if name.endswith("_ptr") else "i32" for name in types}
        assert types == own | {name: kind for name, kind in variant.types.items() if name in types}


@pytest.mark.parametrize(("version", "op", "dtype"), [case for case in CASES if case.id.endswith("fp32")])
def test_tensors_in_host_memory_are_refused(version, op, dtype):
    inputs, out = operands(version.family, op, dtype)
    with pytest.raises(ValueError, match=rf"^{op} {version.name}: \w+ is on cpu; Triton needs a GPU, device 'cuda'$"):
        version.module.KERNELS[op](*inputs, out=out)


@pytest.mark.parametrize(
    ("n", "warps", "name"),
    [(7, 1, "softmax_row"), (4097, 8, "softmax_row"), (32768, 16, "softmax_row"), (32769, 16, "softmax_walk")],
)
def test_the_width_of_softmax_picks_the_configuration(launches, n, warps, name):
    x = torch.empty(3, n)
    v2_aligned.KERNELS["softmax"](x, out=torch.empty_like(x))
    [((programs,), compiled)] = launches
    assert (programs, compiled.metadata.name, compiled.metadata.num_warps) == (3, name, warps)


@pytest.mark.parametrize("family", ["elementwise", "softmax", "cross_entropy", "reduction"])
def test_odd_and_even_sizes_share_one_binary(launches, family):
    for n in (17, 32, 33, 256):
        if family == "elementwise":
            elementwise_cases.MODULES["v3"].KERNELS["relu"](torch.ones(n), out=torch.empty(n))
        elif family == "reduction":
            reduction_cases.versions()["v2"].KERNELS["sum"](torch.ones(n), out=torch.empty(()))
        elif family == "softmax":
            v2_aligned.KERNELS["softmax"](torch.empty(2, n), out=torch.empty(2, n))
        else:
            labels = torch.zeros(2, dtype=torch.int64)
            cross_entropy.KERNELS["cross-entropy"](torch.empty(2, n), labels, out=torch.empty(2))
    assert len({compiled.hash for _, compiled in launches}) == 1


@pytest.mark.parametrize(
    ("m", "n", "shared"),
    [(1, 16384, True), (131, 16384, True), (132, 16384, False), (1, 16383, False), (999, 2**17, True)],
)
def test_rows_are_shared_if_they_are_few_or_wide(m, n, shared):
    assert bool(kernels.launch.pieces_of(m, n, 2 * n, 4096, 16, H100)) is shared


@pytest.mark.parametrize("unit", [16, 4096])
@pytest.mark.parametrize(("rows", "n"), [(1, 262144), (3, 50257), (100, 16384), (40, 131075)])
def test_pieces_cover_a_row_and_keep_every_processor_busy(rows, n, unit):
    pieces = kernels.launch.pieces_of(rows, n, 2 * n, 4096, unit, H100)
    assert (pieces.count - 1) * pieces.elements < n <= pieces.count * pieces.elements
    assert pieces.elements % unit == 0
    assert pieces.count <= 128
    assert rows * pieces.count >= 132 or pieces.count == 128 or pieces.elements <= 4096 + 16


def test_few_rows_are_shared_by_programs_on_every_processor(launches, monkeypatch):
    monkeypatch.setattr(kernels.launch, "stand_in", H100)
    for m, wanted in ((4, [64, 64]), (132, [132])):
        x = torch.empty(m, 65536, dtype=torch.bfloat16)
        v3_split_rows.KERNELS["softmax"](x, out=torch.empty_like(x))
        assert [programs for (programs,), _ in launches] == wanted
        del launches[:]
    labels = torch.zeros(5, dtype=torch.int64)
    cross_entropy.KERNELS["cross-entropy"](torch.empty(5, 50257), labels, out=torch.empty(5))
    assert [programs for (programs,), _ in launches] == [5 * 13, 5]
