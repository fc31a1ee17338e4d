"""Tests that need a GPU: tf32 and fp8, streams and graphs, more than 2^31 elements."""

import pytest
import softmax_cases
import torch
from families import pairs, skip_without, versions_of
from matmul_cases import LAYOUTS, check_case

pytestmark = pytest.mark.gpu

FAR_COUNT = 2**31 + 4099  # elements, 4.3 GB in a 16-bit dtype
FAR_STRIDE = 2**30 + 16  # of rows
each_sum = pytest.mark.parametrize(
    ("op", "module"), [pair for pair in pairs("reduction") if "sum" in pair.id]
)


@pytest.fixture
def tf32():
    setting = torch.backends.cuda.matmul
    before, setting.fp32_precision = setting.fp32_precision, "tf32"
    yield
    setting.fp32_precision = before


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("op", "module"), pairs("matmul")[1:])
def test_tf32_matmul_of_small_integers_is_exact(op, module, layout, tf32):
    check_case(module, torch.float32, layout, (300, 520, 131), kind="integers")


@pytest.mark.parametrize(("op", "module"), pairs("matmul")[1:])
def test_long_fp8_sums_keep_more_than_14_bits(op, module):
    if torch.cuda.get_device_capability()[0] >= 9:
        check_case(module, torch.float8_e4m3fn, "nt", (256, 256, 8192), scales=(1.0, 1.0))


def test_autotuned_matmul():
    if torch.cuda.get_device_capability()[0] >= 9:
        for shape in ((300, 200, 130), (2048, 2048, 130)):
            check_case(
                versions_of("matmul")["v5"], torch.bfloat16, "nt", shape, launchers="AUTOTUNED"
            )


def integers_on_gpu(seed):
    return (
        torch.randint(-3, 4, (3_000_001,), generator=torch.Generator().manual_seed(seed))
        .float()
        .cuda()
    )


def recorded(launch, *operands, out, times=1):
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(times):
            launch(*operands, out=out)
    return graph


@each_sum
def test_concurrent_graphs_and_eager_launches(op, module):
    launch = module.KERNELS[op]
    vectors = [integers_on_gpu(seed) for seed in range(3)]
    outs = torch.zeros(3, 4, device="cuda")
    launch(vectors[0], out=outs[0, 0])
    streams = [torch.cuda.Stream() for _ in range(3)]
    graphs = [
        recorded(launch, vectors[number], out=outs[number, 0], times=10) for number in range(2)
    ]
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


def test_elements_beyond_32_bit_offsets():
    skip_without(12)
    x = torch.zeros(FAR_COUNT, dtype=torch.bfloat16, device="cuda")
    x[-4099:] = torch.arange(1, 4100, device="cuda")
    out = torch.full_like(x, -77.0)
    versions_of("elementwise")["v3"].KERNELS["copy"](x, out=out)
    assert torch.equal(out[-8192:], x[-8192:])
    assert not out[:8192].any()


def rows_on_gpu(n):
    memory = torch.zeros(2 * FAR_STRIDE + n, dtype=torch.bfloat16, device="cuda")
    return memory.as_strided((3, n), (FAR_STRIDE, 1))


@pytest.mark.parametrize("n", [1000, 33001])
@pytest.mark.parametrize(("op", "module"), pairs("softmax"))
def test_rows_of_softmax_beyond_32_bit_offsets(op, module, n):
    skip_without(12)
    values = softmax_cases.normal(3, n, torch.bfloat16)
    out = rows_on_gpu(n)
    module.KERNELS[op](rows_on_gpu(n).copy_(values), out=out)
    softmax_cases.compare(out, values)
