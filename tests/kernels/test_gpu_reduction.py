"""The reductions on a real GPU, in every dtype, against fp64; alone, in graphs, and on streams side by side."""

import math

import pytest
import reduction_cases as cases
import torch

from kernels.launch import DTYPES

pytestmark = pytest.mark.gpu

VERSIONS = cases.versions()
PAIRS = [pytest.param(op, module, id=f"{op}-{name}") for name, module in VERSIONS.items() for op in module.KERNELS]
FAR_COUNT = 2**31 + 4099  # elements, 4.3 GB in a 16-bit dtype
FREE_BYTES_NEEDED = 12 * 10**9


@pytest.mark.parametrize("n", [1, 7, 127, 1023, 2049, 16385, 1_000_003, 20_000_001])
@pytest.mark.parametrize("dtype", DTYPES, ids=DTYPES.get)
@pytest.mark.parametrize(("op", "module"), PAIRS)
def test_sizes(op, module, dtype, n):
    cases.check(op, module.KERNELS[op], *cases.draw(op, dtype, n), device="cuda")
    cases.check_exact(op, module.KERNELS[op], *cases.draw_integers(op, dtype, min(n, 10**6)), device="cuda")


@pytest.mark.parametrize("special", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("dtype", DTYPES, ids=DTYPES.get)
@pytest.mark.parametrize(("op", "module"), PAIRS)
def test_special_values(op, module, dtype, special):
    for place in (0, 50_000, 100_002):
        inputs = cases.draw(op, dtype, 100_003)
        inputs[0][place] = special
        cases.check(op, module.KERNELS[op], *inputs, device="cuda")


def integers_on_gpu(seed):
    return torch.randint(-3, 4, (3_000_001,), generator=torch.Generator().manual_seed(seed)).float().cuda()


@pytest.mark.parametrize("version", VERSIONS)
def test_a_thousand_launches_on_two_streams_at_once(version):
    launch = VERSIONS[version].KERNELS["sum"]
    streams = [torch.cuda.Stream() for _ in range(2)]
    vectors = [integers_on_gpu(seed) for seed in range(2)]
    outs = torch.zeros(2, 500, 4, device="cuda")  # 16 bytes for each result
    torch.cuda.synchronize()
    for number in range(500):
        for stream, vector, out in zip(streams, vectors, outs, strict=True):
            with torch.cuda.stream(stream):
                launch(vector, out=out[number, 0])
    torch.cuda.synchronize()
    for vector, out in zip(vectors, outs, strict=True):
        assert (out[:, 0] == vector.double().sum()).all()


@pytest.mark.parametrize("version", VERSIONS)
def test_graphs_replayed_beside_each_other_and_beside_eager_launches(version):
    launch = VERSIONS[version].KERNELS["sum"]
    vectors = [integers_on_gpu(seed) for seed in range(3)]
    outs = torch.zeros(3, 4, device="cuda")
    launch(vectors[0], out=outs[0, 0])
    graphs, streams = [], [torch.cuda.Stream() for _ in range(3)]
    for vector, out in zip(vectors[:2], outs[:2], strict=True):
        graphs.append(torch.cuda.CUDAGraph())
        with torch.cuda.graph(graphs[-1]):
            for _ in range(10):
                launch(vector, out=out[0])
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


@pytest.mark.parametrize("version", VERSIONS)
def test_beyond_32_bit_offsets(version):
    free_bytes, _ = torch.cuda.mem_get_info()
    if free_bytes < FREE_BYTES_NEEDED:
        pytest.skip(f"needs {FREE_BYTES_NEEDED / 1e9:.0f} GB of free GPU memory, {free_bytes / 1e9:.0f} GB are free")
    x = torch.zeros(FAR_COUNT, dtype=torch.bfloat16, device="cuda")
    x[-4099:] = 1.0
    x[0] = 2.0
    out = torch.empty((), dtype=torch.bfloat16, device="cuda")
    VERSIONS[version].KERNELS["sum"](x, out=out)
    assert out.item() == torch.tensor(4101.0).bfloat16().item()
