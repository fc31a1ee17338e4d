"""Softmax, cross-entropy and row norms on a real GPU, in every dtype, against fp64; most widths are odd on purpose."""

import cross_entropy_cases
import norm_cases
import pytest
import softmax_cases
import torch
from families import ON_A_GPU, cases_of, pairs, skip_without, versions_of, ways

pytestmark = pytest.mark.gpu

COLUMNS = (1, 7, 192, 256, 760, 1000, 1024, 1128, 4096, 4099, 8192, 8193, 16385, 32768, 50257, 65536, 128256, 262144)
MOST_COLUMNS = {("softmax", "v1"): 65536, ("norm", "v1"): 65536, ("norm", "v2"): 32768}
SIZES = [
    pytest.param(family, *way.values, n, id=f"{family}-{way.id}-{n}")
    for family in ("softmax", "cross_entropy", "norm")
    for way in ways(family, ON_A_GPU)
    for n in COLUMNS
    if n <= MOST_COLUMNS.get((family, way.id.split("-")[-2]), 2**30)
]
FAR_STRIDE = 2**30 + 16  # of rows


@pytest.mark.parametrize(("family", "op", "module", "dtype", "n"), SIZES)
def test_sizes(family, op, module, dtype, n):
    for m in (1, 17, 199):
        if m * n <= 2**23:  # the reference takes its time on the host
            cases_of(family).check(op, module, *cases_of(family).draw(op, dtype, m, n), device="cuda")


def each_way(family):
    return pytest.mark.parametrize(("op", "module", "dtype"), ways(family, ON_A_GPU))


@pytest.mark.parametrize("n", [5, 1000, 4099, 33001])
@each_way("softmax")
def test_rows_of_softmax_apart(op, module, dtype, n):
    for pads in ((5, 5), (3, 19), (16, 32)):
        softmax_cases.check_apart(module, softmax_cases.normal(37, n, dtype), pads, device="cuda")


@pytest.mark.parametrize("v", [5, 1000, 20003])
@each_way("cross_entropy")
def test_rows_of_logits_apart(op, module, dtype, v):
    for pad in (8, 16, 5):
        cross_entropy_cases.check_apart(module, *cross_entropy_cases.draw(op, dtype, 37, v), pad, device="cuda")


@pytest.mark.parametrize("n", [200, 1000, 4099, 20001])
@each_way("norm")
def test_rows_of_norms_apart(op, module, dtype, n):
    for extra in ((-n % 16, -n % 16 + 16, -n % 16 + 32), (3, 11, 19)):
        norm_cases.check_apart(op, module, dtype, 33, n, extra, device="cuda")


@pytest.mark.parametrize("n", [19, 1029, 33005])
@each_way("softmax")
def test_special_values_of_softmax(op, module, dtype, n):
    softmax_cases.check(op, module, softmax_cases.special_rows(n, dtype), device="cuda")


@pytest.mark.parametrize("v", [19, 1029, 20005])
@each_way("cross_entropy")
def test_special_logits_and_labels(op, module, dtype, v):
    cross_entropy_cases.check(op, module, *cross_entropy_cases.special_logits(v, dtype), device="cuda")
    cross_entropy_cases.check(op, module, *cross_entropy_cases.special_labels(v, dtype), device="cuda")


@pytest.mark.parametrize("n", [1000, 20001])
@each_way("norm")
def test_special_values_stay_in_their_row(op, module, dtype, n):
    x, *others = norm_cases.draw(op, dtype, 9, n, norm_cases.SCALES)
    for row, (column, value) in enumerate([(0, torch.nan), (n - 1, torch.inf), (n // 2, -torch.inf)]):
        x[2 * row, column] = value
    x[1], x[3] = 0.0, -0.0
    norm_cases.check(op, module, x, *others, device="cuda")


@pytest.mark.parametrize("n", [40, 4099, 20001])
def test_a_large_mean_costs_the_newest_layernorm_nothing(n):
    inputs = norm_cases.draw("layernorm", torch.float32, 33, n, shift=1e4)
    norm_cases.check("layernorm", versions_of("norm")["v3"], *inputs, device="cuda")


@pytest.mark.parametrize(("scale", "offset"), [(1.0, 1e4), (60.0, 0.0), (0.0, 3.0)])
@pytest.mark.parametrize("n", [1000, 40001])
@pytest.mark.parametrize("family", ["softmax", "cross_entropy"])
def test_large_offsets_and_wide_ranges(family, n, scale, offset):
    for way in ways(family, ON_A_GPU):
        op, module, dtype = way.values
        cases_of(family).check(op, module, *cases_of(family).draw(op, dtype, 5, n, scale, offset), device="cuda")


@pytest.mark.parametrize("m", [3, 300])
def test_the_same_bits_in_every_run(m):
    inputs = [tensor.cuda() for tensor in cross_entropy_cases.draw("cross-entropy", torch.bfloat16, m, 30011)]
    runs = [torch.empty(m, device="cuda") for _ in range(5)]
    for out in runs:
        versions_of("cross_entropy")["v3"].KERNELS["cross-entropy"](*inputs, out=out)
    assert all(torch.equal(out, runs[0]) for out in runs)


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
