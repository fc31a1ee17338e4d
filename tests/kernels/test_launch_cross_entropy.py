"""The cross-entropy launcher without a GPU: what it asks the compiler for."""

import pytest
import torch
from compiled import divisible

import kernels.launch
from kernels.cross_entropy import v1_naive, v2_online, v3_split_rows

pytestmark = [
    pytest.mark.sampled(2),
    pytest.mark.skipif(kernels.launch.INTERPRETED, reason="interpreted kernels are not compiled"),
]

VERSIONS = {"v1": v1_naive, "v2": v2_online, "v3": v3_split_rows}
POINTERS = {"x_ptr", "labels_ptr", "out_ptr"}


def launch(version, m, v, dtype=torch.float32):
    labels = torch.zeros(m, dtype=torch.int64)
    VERSIONS[version].KERNELS["cross-entropy"](torch.empty(m, v, dtype=dtype), labels, out=torch.empty(m))


@pytest.mark.parametrize("dtype", kernels.launch.DTYPES, ids=kernels.launch.DTYPES.get)
@pytest.mark.parametrize(("version", "m"), [("v1", 3), ("v2", 3), ("v3", 264)])
def test_one_launch(launches, version, m, dtype):
    launch(version, m, 8201, dtype)
    [((programs,), compiled)] = launches
    assert programs == m
    assert compiled.metadata.num_warps == 8
    assert compiled.metadata.enable_fp_fusion is True
    assert divisible(compiled) == POINTERS
    types = compiled.src.signature
    assert (types["labels_ptr"], types["out_ptr"], types["v"]) == ("*i64", "*fp32", "i32")


@pytest.mark.parametrize("dtype", kernels.launch.DTYPES, ids=kernels.launch.DTYPES.get)
def test_few_rows_are_shared_and_finished(launches, dtype):
    launch("v3", 5, 50257, dtype)
    [((partial_programs,), partial), ((finish_programs,), finish)] = launches
    pieces = -(-50257 // (16384 // dtype.itemsize))  # of one step of the loop, 16 KiB
    assert (partial_programs, finish_programs) == (5 * pieces, 5)
    assert divisible(partial) == {"x_ptr", "tops_ptr", "totals_ptr"}
    assert divisible(finish) == POINTERS | {"tops_ptr", "totals_ptr"}
    assert partial.src.signature["tops_ptr"] == finish.src.signature["totals_ptr"] == "*fp32"
    assert partial.metadata.enable_fp_fusion is finish.metadata.enable_fp_fusion is True


def test_a_launch_compiles_what_the_variants_say(launches):
    launch("v3", 264, 8201)
    launch("v3", 3, 8201)
    by_name = {compiled.metadata.name: compiled for _, compiled in launches}
    variants = [variant for variant in v3_split_rows.variants(90) if variant.dtype == "fp32"]
    assert set(by_name) == {variant.kernel.fn.__name__ for variant in variants}
    for variant in variants:
        signature = by_name[variant.kernel.fn.__name__].src.signature
        assert {name: signature[name] for name in variant.types} == dict(variant.types)


def test_odd_and_even_vocabularies_share_one_binary(launches):
    for v in (1, 16, 33, 256):
        launch("v3", 2, v)
    assert len({compiled.hash for _, compiled in launches}) == 1


@pytest.mark.parametrize("version", VERSIONS)
def test_tensors_in_host_memory_are_refused(version):
    message = rf"^cross-entropy {version}: logits is on cpu; Triton needs a GPU, device 'cuda'$"
    with pytest.raises(ValueError, match=message):
        launch(version, 2, 8)
