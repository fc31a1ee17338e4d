"""The matrix-vector kernels on a real GPU, in every dtype, against fp64; the sizes are odd on purpose."""

import math

import matvec_cases as cases
import pytest
import torch

from kernels.launch import DTYPES

pytestmark = pytest.mark.gpu

VERSIONS = cases.versions()
PAIRS = [pytest.param(op, module, id=f"{op}-{name}") for name, module in VERSIONS.items() for op in module.KERNELS]
SHAPES = [(1, 1), (3, 5), (129, 1000), (4, 16), (1, 4099), (1001, 513), (4096, 4096), (1, 1_000_003), (7, 65536)]
FREE_BYTES_NEEDED = 12 * 10**9


@pytest.mark.parametrize("shape", SHAPES, ids="{0[0]}x{0[1]}".format)
@pytest.mark.parametrize("dtype", DTYPES, ids=DTYPES.get)
@pytest.mark.parametrize(("op", "module"), PAIRS)
def test_sizes(op, module, dtype, shape):
    cases.check(op, module.KERNELS[op], *cases.draw(op, dtype, *shape), device="cuda")


@pytest.mark.parametrize("dtype", DTYPES, ids=DTYPES.get)
@pytest.mark.parametrize(("op", "module"), PAIRS)
def test_integers_are_exact(op, module, dtype):
    for m, n in ((37, 45), (515, 1041), (5, 100_001), (64, 16384)):
        cases.check_exact(op, module.KERNELS[op], *cases.draw_integers(op, dtype, m, n), device="cuda")


@pytest.mark.parametrize("stride", [1200, 1201])
@pytest.mark.parametrize("dtype", DTYPES, ids=DTYPES.get)
@pytest.mark.parametrize(("op", "module"), PAIRS)
def test_padded_rows(op, module, dtype, stride):
    a, *others = (tensor.cuda() for tensor in cases.draw(op, dtype, 300, 1111))
    storage = torch.full((300, stride), 113 if op == "matvec-int8" else math.nan, dtype=a.dtype, device="cuda")
    storage[:, :1111] = a
    cases.check(
        op,
        lambda _, *rest, out: module.KERNELS[op](storage[:, :1111], *rest, out=out),
        *(tensor.cpu() for tensor in (a, *others)),
        device="cuda",
    )


def test_split_columns_in_a_graph_on_two_streams():
    op, module = "matvec", VERSIONS["v3"]
    inputs = [tensor.cuda() for tensor in cases.draw(op, torch.bfloat16, 3, 400_001)]
    expected, outs = torch.empty(3, dtype=torch.bfloat16, device="cuda"), []
    module.KERNELS[op](*inputs, out=expected)
    graphs = []
    for _ in range(2):
        outs.append(torch.zeros_like(expected))
        graphs.append(torch.cuda.CUDAGraph())
        with torch.cuda.graph(graphs[-1]):
            module.KERNELS[op](*inputs, out=outs[-1])
    for graph in graphs * 20:
        with torch.cuda.stream(torch.cuda.Stream()):
            graph.replay()
    torch.cuda.synchronize()
    assert all(torch.equal(out, expected) for out in outs)


@pytest.fixture
def roomy_gpu():
    free_bytes, _ = torch.cuda.mem_get_info()
    if free_bytes < FREE_BYTES_NEEDED:
        pytest.skip(f"needs {FREE_BYTES_NEEDED / 1e9:.0f} GB of free GPU memory, {free_bytes / 1e9:.0f} GB are free")


@pytest.mark.usefixtures("roomy_gpu")
@pytest.mark.parametrize("n", [2**29 + 8, 2**29 + 5])
@pytest.mark.parametrize("version", VERSIONS)
def test_beyond_32_bit_offsets(version, n):
    a = torch.zeros((5, n), dtype=torch.bfloat16, device="cuda")
    a[:, -3:] = torch.arange(1.0, 6.0, device="cuda")[:, None]
    out = torch.empty(5, dtype=torch.bfloat16, device="cuda")
    VERSIONS[version].KERNELS["matvec"](a, torch.ones_like(a[0, :]).contiguous(), out=out)
    assert out.tolist() == [3.0, 6.0, 9.0, 12.0, 15.0]
