"""Launchers of the matrix-vector kernels without a GPU: what they ask the compiler for."""

import matvec_cases as cases
import pytest
import torch
from compiled import divisible

import kernels.launch

pytestmark = [
    pytest.mark.sampled(2),
    pytest.mark.skipif(kernels.launch.INTERPRETED, reason="interpreted kernels are not compiled"),
]

VERSIONS = cases.versions()
V3 = VERSIONS["v3"]


@pytest.mark.parametrize("dtype", kernels.launch.DTYPES, ids=kernels.launch.DTYPES.get)
@pytest.mark.parametrize("op", V3.KERNELS)
@pytest.mark.parametrize(
    "shape", [(101, 1040), (101, 1041), (1, 40000), (3, 40001), (101, 40)], ids="{0[0]}x{0[1]}".format
)
def test_newest_launch(launches, op, dtype, shape):
    inputs = cases.draw(op, dtype, *shape)
    V3.KERNELS[op](*inputs, out=torch.empty(shape[0], dtype=dtype))
    width = inputs[0].element_size()
    plan = V3.plan(*shape, width, inputs[0].stride(0), kernels.launch.stand_in.processors)
    assert launches[0][0] == (plan.programs,)
    assert len(launches) == (2 if plan.splits > 1 else 1)
    expected = [V3.variant(op, dtype, plan.shape_class)] + [V3.finish_variant(op, dtype)] * (len(launches) - 1)
    for (_, compiled), variant in zip(launches, expected, strict=True):
        assert compiled.metadata.num_warps == variant.options["num_warps"]
        assert compiled.metadata.enable_fp_fusion is True
        given = {name: kind for name, kind in compiled.src.signature.items() if kind != "constexpr"}
        assert divisible(compiled) == {name for name in given if name.endswith("_ptr")}
        own = {name: f"*{variant.dtype}" if name.endswith("_ptr") else "i32" for name in given}
        assert given == own | dict(variant.types)  # as an audit compiles it


@pytest.mark.parametrize(("version", "programs"), [("v1", 9), ("v2", 3)])
@pytest.mark.parametrize(("n", "aligned"), [(1040, True), (1041, False), (1, False)])
def test_older_launch(launches, version, programs, n, aligned):
    VERSIONS[version].KERNELS["matvec"](torch.ones(9, n), torch.ones(n), out=torch.empty(9))
    [(grid, compiled)] = launches
    assert grid == (programs,)
    assert compiled.metadata.enable_fp_fusion is True
    assert ("row_stride" in divisible(compiled)) is aligned


def test_all_shapes_share_the_binaries_of_their_class(launches):
    for m, n in ((100, 1040), (101, 2064), (116, 1044)):
        V3.KERNELS["matvec"](torch.ones(m, n), torch.ones(n), out=torch.empty(m))
    assert len({compiled.hash for _, compiled in launches}) == 1


@pytest.mark.parametrize("sm_count", [108, 132, 148])
@pytest.mark.parametrize("width", [1, 2, 4])
def test_plans_cover_every_row_and_column(sm_count, width):
    for m in (1, 2, 7, 100, 527, 4096, 70000):
        for n in (1, 33, 513, 4096, 8209, 65536, 3_000_001):
            plan = V3.plan(m, n, width, n, sm_count)
            config, access = V3.CONFIGS[plan.shape_class], 16 // width
            assert plan.splits * plan.steps * config.lanes * config.loads * access >= n
            assert (plan.splits - 1) * plan.steps * config.lanes * config.loads * access < n  # none has nothing
            assert plan.programs * config.rows >= m * plan.splits
            assert plan.programs % plan.splits == 0
            if plan.splits > 1:
                assert m < 2 * V3.PROGRAMS_PER_SM * sm_count * config.rows * access


def test_few_rows_give_every_multiprocessor_work():
    assert V3.plan(1, 2**24, 2, 2**24, 132).programs >= 2 * 132
    assert V3.plan(64, 16384, 2, 16384, 132).programs >= 132
    assert V3.plan(8192, 8192, 2, 8192, 132).splits == 1


@pytest.mark.parametrize("version", VERSIONS)
def test_matrix_in_host_memory_is_refused(version):
    with pytest.raises(ValueError, match=rf"^matvec {version}: a is on cpu; Triton needs a GPU, device 'cuda'$"):
        VERSIONS[version].KERNELS["matvec"](torch.ones(2, 2), torch.ones(2), out=torch.ones(2))
