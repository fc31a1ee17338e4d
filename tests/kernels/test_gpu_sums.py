"""Reductions and matrix-vector products on a real GPU, against fp64; alone, in graphs, and on streams side by side."""

import matvec_cases
import pytest
import reduction_cases
import torch
from families import ON_A_GPU, cases_of, pairs, skip_without, versions_of, ways

pytestmark = pytest.mark.gpu

FAR_COUNT = 2**31 + 4099  # elements, 4.3 GB in a 16-bit dtype
SHAPES = {
    "matvec": [(1, 1), (3, 5), (129, 1000), (4, 16), (1, 4099), (1001, 513), (4096, 4096), (1, 1_000_003), (7, 65536)],
    "reduction": [(n,) for n in (1, 7, 127, 1023, 2049, 16385, 1_000_003, 20_000_001)],
}
SIZES = [
    pytest.param(family, *way.values, shape, id=f"{way.id}-{'x'.join(map(str, shape))}")
    for family, shapes in SHAPES.items()
    for way in ways(family, ON_A_GPU)
    for shape in shapes
]
each_sum = pytest.mark.parametrize(("op", "module"), [pair for pair in pairs("reduction") if "sum" in pair.id])


def each_way(family):
    return pytest.mark.parametrize(("op", "module", "dtype"), ways(family, ON_A_GPU))


@pytest.mark.parametrize(("family", "op", "module", "dtype", "shape"), SIZES)
def test_sizes(family, op, module, dtype, shape):
    cases_of(family).check(op, module, *cases_of(family).draw(op, dtype, *shape), device="cuda")


@pytest.mark.parametrize("stride", [1200, 1201])
@each_way("matvec")
def test_rows_of_a_matrix_apart(op, module, dtype, stride):
    matvec_cases.check_apart(op, module, dtype, 300, 1111, stride, device="cuda")


@each_way("matvec")
def test_integers_of_matvec_are_exact(op, module, dtype):
    for m, n in ((37, 45), (515, 1041), (5, 100_001), (64, 16384)):
        matvec_cases.check_exact(op, module, *matvec_cases.draw_integers(op, dtype, m, n), device="cuda")


@each_way("reduction")
def test_integers_and_special_values_of_reductions(op, module, dtype):
    for n in (1, 127, 16385, 10**6):
        reduction_cases.check_exact(op, module, *reduction_cases.draw_integers(op, dtype, n), device="cuda")
    for special in (torch.nan, torch.inf, -torch.inf):
        for place in (0, 50_000, 100_002):
            inputs = reduction_cases.draw(op, dtype, 100_003)
            inputs[0][place] = special
            reduction_cases.check(op, module, *inputs, device="cuda")


def integers_on_gpu(seed):
    return torch.randint(-3, 4, (3_000_001,), generator=torch.Generator().manual_seed(seed)).float().cuda()


def recorded(launch, *operands, out, times=1):
    """Return launches as a CUDA graph."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(times):
            launch(*operands, out=out)
    return graph


@each_sum
def test_a_thousand_sums_on_two_streams_at_once(op, module):
    streams = [torch.cuda.Stream() for _ in range(2)]
    vectors = [integers_on_gpu(seed) for seed in range(2)]
    outs = torch.zeros(2, 500, 4, device="cuda")  # 16 bytes for each result
    torch.cuda.synchronize()
    for number in range(500):
        for stream, vector, out in zip(streams, vectors, outs, strict=True):
            with torch.cuda.stream(stream):
                module.KERNELS[op](vector, out=out[number, 0])
    torch.cuda.synchronize()
    for vector, out in zip(vectors, outs, strict=True):
        assert (out[:, 0] == vector.double().sum()).all()


@each_sum
def test_graphs_replayed_beside_each_other_and_beside_eager_launches(op, module):
    launch = module.KERNELS[op]
    vectors = [integers_on_gpu(seed) for seed in range(3)]
    outs = torch.zeros(3, 4, device="cuda")
    launch(vectors[0], out=outs[0, 0])
    streams = [torch.cuda.Stream() for _ in range(3)]
    graphs = [recorded(launch, vectors[number], out=outs[number, 0], times=10) for number in range(2)]
    outs.zero_()
    torch.cuda.synchronize()
    for _ in range(50):
        for graph, stream in zip(graphs, streams[:2], strict=True):
            with torch.cuda.stream(stream):
                graph.replay()
        with torch.cuda.stream(streams[2]):
            launch(vectors[2], out=outs[2, 0])
    torch.cuda.synchronize()
    assert outs[:, 0].tolist() == [vector.double().sum().item() for vector in vectors]


def test_split_columns_in_a_graph_on_two_streams():
    launch = versions_of("matvec")["v3"].KERNELS["matvec"]
    inputs = [tensor.cuda() for tensor in matvec_cases.draw("matvec", torch.bfloat16, 3, 400_001)]
    expected, *outs = (torch.zeros(3, dtype=torch.bfloat16, device="cuda") for _ in range(3))
    launch(*inputs, out=expected)
    for graph in [recorded(launch, *inputs, out=out) for out in outs] * 20:
        with torch.cuda.stream(torch.cuda.Stream()):
            graph.replay()
    torch.cuda.synchronize()
    assert all(torch.equal(out, expected) for out in outs)


@each_sum
def test_sums_beyond_32_bit_offsets(op, module):
    skip_without(12)
    x = torch.zeros(FAR_COUNT, dtype=torch.bfloat16, device="cuda")
    x[-4099:] = 1.0
    x[0] = 2.0
    out = torch.empty((), dtype=torch.bfloat16, device="cuda")
    module.KERNELS[op](x, out=out)
    assert out.item() == torch.tensor(4101.0).bfloat16().item()


@pytest.mark.parametrize("n", [2**29 + 8, 2**29 + 5])
@pytest.mark.parametrize(("op", "module"), [pair for pair in pairs("matvec") if "int8" not in pair.id])
def test_matrices_beyond_32_bit_offsets(op, module, n):
    skip_without(12)
    a = torch.zeros((5, n), dtype=torch.bfloat16, device="cuda")
    a[:, -3:] = torch.arange(1.0, 6.0, device="cuda")[:, None]
    out = torch.empty(5, dtype=torch.bfloat16, device="cuda")
    module.KERNELS[op](a, torch.ones_like(a[0, :]).contiguous(), out=out)
    assert out.tolist() == [3.0, 6.0, 9.0, 12.0, 15.0]
