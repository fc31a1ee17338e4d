"""Cross-entropy on a real GPU, in every dtype, against fp64; the vocabularies are odd on purpose."""

import pytest
import torch
from cross_entropy_cases import (
    assert_cross_entropy,
    check_cross_entropy,
    check_padded_logits,
    labels_for,
    special_labels,
    special_logits,
)
from softmax_cases import normal

from kernels.cross_entropy import v1_naive, v2_online, v3_split_rows
from kernels.launch import DTYPES

pytestmark = pytest.mark.gpu

VERSIONS = {"v1": v1_naive, "v2": v2_online, "v3": v3_split_rows}
VOCABULARIES = [1, 7, 192, 1000, 1024, 4099, 8192, 8193, 32000, 50257, 128256, 262144]


def cross_entropy(version):
    return VERSIONS[version].KERNELS["cross-entropy"]


@pytest.mark.parametrize("m", [1, 17, 300])
@pytest.mark.parametrize("v", VOCABULARIES)
@pytest.mark.parametrize("dtype", DTYPES, ids=DTYPES.get)
@pytest.mark.parametrize("version", VERSIONS)
def test_sizes(version, dtype, v, m):
    if m * v > 2**24:
        pytest.skip("the reference takes its time on the host")
    check_cross_entropy(cross_entropy(version), normal(m, v, dtype), labels_for(m, v), f"{version} {m}x{v}", "cuda")


@pytest.mark.parametrize("pad", [8, 16, 5])
@pytest.mark.parametrize("v", [5, 1000, 20003])
@pytest.mark.parametrize("dtype", DTYPES, ids=DTYPES.get)
@pytest.mark.parametrize("version", VERSIONS)
def test_rows_apart(version, dtype, v, pad):
    check_padded_logits(cross_entropy(version), normal(37, v, dtype), labels_for(37, v), pad, device="cuda")


@pytest.mark.parametrize("v", [19, 1029, 20005])
@pytest.mark.parametrize("dtype", DTYPES, ids=DTYPES.get)
@pytest.mark.parametrize("version", VERSIONS)
def test_special_values_and_labels(version, dtype, v):
    check_cross_entropy(cross_entropy(version), *special_logits(v, dtype), version, device="cuda")
    check_cross_entropy(cross_entropy(version), *special_labels(v, dtype), version, device="cuda")


@pytest.mark.parametrize(("scale", "offset"), [(1.0, 1e4), (60.0, 0.0), (0.0, 3.0)])
@pytest.mark.parametrize("v", [1000, 40001])
@pytest.mark.parametrize("dtype", DTYPES, ids=DTYPES.get)
@pytest.mark.parametrize("version", VERSIONS)
def test_large_offsets_and_wide_ranges(version, dtype, v, scale, offset):
    check_cross_entropy(cross_entropy(version), normal(5, v, dtype, scale, offset), labels_for(5, v), version, "cuda")


@pytest.mark.parametrize("m", [3, 300])
def test_the_same_bits_in_every_run(m):
    x, labels = normal(m, 30011, torch.bfloat16).cuda(), labels_for(m, 30011).cuda()
    runs = [torch.empty(m, device="cuda") for _ in range(5)]
    for out in runs:
        cross_entropy("v3")(x, labels, out=out)
    assert all(torch.equal(out, runs[0]) for out in runs)


@pytest.mark.parametrize("version", VERSIONS)
def test_rows_beyond_32_bit_offsets(version):
    stride, v = 2**30 + 16, 20003
    free_bytes, _ = torch.cuda.mem_get_info()
    if free_bytes < 8 * 10**9:
        pytest.skip(f"needs 8 GB of free GPU memory, {free_bytes / 1e9:.0f} GB are free")
    x = torch.empty(2 * stride + v, dtype=torch.bfloat16, device="cuda").as_strided((3, v), (stride, 1))
    x.copy_(normal(3, v, torch.bfloat16))
    labels, out = labels_for(3, v).cuda(), torch.empty(3, device="cuda")
    cross_entropy(version)(x, labels, out=out)
    assert_cross_entropy(out, x, labels, version)
