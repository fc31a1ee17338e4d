"""The softmax launcher without a GPU: what it asks the compiler for."""

import pytest
import torch
from compiled import divisible

import kernels.launch
from kernels.softmax import v1_naive, v2_aligned, v3_split_rows

pytestmark = [
    pytest.mark.sampled(2),
    pytest.mark.skipif(kernels.launch.INTERPRETED, reason="interpreted kernels are not compiled"),
]

VERSIONS = {"v1": v1_naive, "v2": v2_aligned, "v3": v3_split_rows}


@pytest.mark.parametrize("dtype", kernels.launch.DTYPES, ids=kernels.launch.DTYPES.get)
@pytest.mark.parametrize(
    ("n", "warps", "name"),
    [
        (7, 1, "softmax_row"),
        (1000, 1, "softmax_row"),
        (4097, 8, "softmax_row"),
        (32768, 16, "softmax_row"),
        (32769, 16, "softmax_walk"),
    ],
)
def test_newest_launch(launches, n, warps, name, dtype):
    x = torch.empty(3, n, dtype=dtype)
    v2_aligned.KERNELS["softmax"](x, out=torch.empty_like(x))
    [((programs,), compiled)] = launches
    assert programs == 3
    assert compiled.metadata.name == name
    assert compiled.metadata.num_warps == warps
    assert compiled.metadata.enable_fp_fusion is True
    assert divisible(compiled) == {"x_ptr", "out_ptr"}
    assert {compiled.src.signature[size] for size in ("n", "x_stride", "out_stride")} == {"i32"}


@pytest.mark.parametrize(("n", "known"), [(1040, {"n", "x_stride", "out_stride"}), (1041, set())])
def test_first_launch(launches, n, known):
    x = torch.empty(3, n)
    v1_naive.KERNELS["softmax"](x, out=torch.empty_like(x))
    [((programs,), compiled)] = launches
    assert programs == 3
    assert compiled.metadata.enable_fp_fusion is True
    assert divisible(compiled) == {"x_ptr", "out_ptr"} | known


def test_odd_and_even_rows_share_one_binary(launches):
    for n in (1, 16, 33, 256):
        v2_aligned.KERNELS["softmax"](torch.empty(2, n), out=torch.empty(2, n))
    assert len({compiled.hash for _, compiled in launches}) == 1


@pytest.mark.parametrize(("pads", "alike"), [((0, 0), True), ((5, 5), True), ((3, 19), True), ((0, 8), False)])
def test_only_shifted_rows_have_a_binary_of_their_own(launches, pads, alike):
    x, out = (torch.empty(3, 300 + pad)[:, :300] for pad in pads)
    v2_aligned.KERNELS["softmax"](x, out=out)
    [(_, compiled)] = launches
    [alike_index] = [index for index, name in enumerate(compiled.src.fn.arg_names) if name == "ALIKE"]
    assert compiled.src.constants[(alike_index,)] is alike


def test_every_launch_is_a_variant(launches):
    for n in (1, 257, 2000, 3000, 5000, 9000, 17000, 40000):
        v2_aligned.KERNELS["softmax"](torch.empty(2, n), out=torch.empty(2, n))
    assert len({compiled.hash for _, compiled in launches}) == len(launches) == 8


def test_few_rows_are_shared_by_programs_on_every_processor(launches, monkeypatch):
    monkeypatch.setattr(kernels.launch, "stand_in", kernels.launch.Gpu(90, 132, 50 * 2**20))
    for m, wanted in ((4, [64, 64]), (132, [132])):
        x = torch.empty(m, 65536, dtype=torch.bfloat16)
        v3_split_rows.KERNELS["softmax"](x, out=torch.empty_like(x))
        assert [programs for (programs,), _ in launches] == wanted
        del launches[:]


@pytest.mark.parametrize("version", VERSIONS)
def test_tensors_in_host_memory_are_refused(version):
    x = torch.ones(2, 8)
    with pytest.raises(ValueError, match=rf"^softmax {version}: x is on cpu; Triton needs a GPU, device 'cuda'$"):
        VERSIONS[version].KERNELS["softmax"](x, out=torch.empty_like(x))
