"""Tests that need a GPU: streams, graphs, more than 2^31 elements, and approximated functions."""

import cross_entropy_cases
import matvec_cases
import norm_cases
import pytest
import softmax_cases
import torch
from elementwise_cases import SEED, keep_mask
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


@pytest.mark.parametrize(("op", "module"), pairs("matmul")[2:])
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


def test_matvec_split_in_graphs_on_many_streams():
    launch = versions_of("matvec")["v3"].KERNELS["matvec"]
    inputs = [tensor.cuda() for tensor in matvec_cases.draw("matvec", torch.bfloat16, 3, 400_001)]
    expected, *outs = (torch.zeros(3, dtype=torch.bfloat16, device="cuda") for _ in range(3))
    launch(*inputs, out=expected)
    for graph in [recorded(launch, *inputs, out=out) for out in outs] * 20:
        with torch.cuda.stream(torch.cuda.Stream()):
            graph.replay()
    torch.cuda.synchronize()
    assert all(torch.equal(out, expected) for out in outs)


@pytest.mark.parametrize("op", ["copy", "dropout"])
def test_elements_beyond_32_bit_offsets(op):
    skip_without(12)
    x = torch.zeros(FAR_COUNT, dtype=torch.bfloat16, device="cuda")
    x[-4099:] = torch.arange(1, 4100, device="cuda")
    out = torch.full_like(x, -77.0)
    seed = [torch.tensor([SEED], device="cuda")] if op == "dropout" else []
    versions_of("elementwise")["v3"].KERNELS[op](x, *seed, out=out)
    expected = x[-8192:].cpu()
    if op == "dropout":
        keep = keep_mask("v3", SEED, 8192, first=FAR_COUNT - 8192)
        expected = torch.where(keep, expected.float() / 0.9, 0.0).bfloat16()
    torch.testing.assert_close(out[-8192:].cpu(), expected, rtol=2**-7, atol=0)
    assert not out[:8192].any()


@each_sum
def test_sums_beyond_32_bit_offsets(op, module):
    skip_without(12)
    x = torch.zeros(FAR_COUNT, dtype=torch.bfloat16, device="cuda")
    x[-4099:] = 1.0
    x[0] = 2.0
    out = torch.empty((), dtype=torch.bfloat16, device="cuda")
    module.KERNELS[op](x, out=out)
    assert out.item() == torch.tensor(4101.0).bfloat16().item()


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


@pytest.mark.parametrize(("op", "module"), pairs("cross_entropy"))
def test_logits_beyond_32_bit_offsets(op, module):
    skip_without(8)
    values, labels = cross_entropy_cases.draw(op, torch.bfloat16, 3, 20003)
    out = torch.empty(3, device="cuda")
    module.KERNELS[op](rows_on_gpu(20003).copy_(values), labels.cuda(), out=out)
    cross_entropy_cases.compare(out, values, labels)


@pytest.mark.parametrize("n", [1024, 32768])
def test_rows_of_a_norm_beyond_32_bit_offsets(n):
    skip_without(20)
    x = torch.zeros((2**31 // n + 3, n), dtype=torch.bfloat16, device="cuda")
    weight = torch.ones(n, dtype=torch.bfloat16, device="cuda")
    last = norm_cases.draw("rmsnorm", torch.bfloat16, 3, n)[0]
    x[-3:] = last
    out = torch.full_like(x, -77.0)
    versions_of("norm")["v3"].KERNELS["rmsnorm"](x, weight, out=out)
    norm_cases.compare("rmsnorm", out[-3:].cpu(), last, weight.cpu())
    assert not out[:3].any()
