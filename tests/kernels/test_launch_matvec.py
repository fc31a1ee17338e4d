"""Launchers of the matrix-vector kernels without a GPU: what they ask the compiler for."""

import matvec_cases as cases
import pytest
import torch

import kernels.launch

pytestmark = [
    pytest.mark.sampled(2),
    pytest.mark.skipif(kernels.launch.INTERPRETED, reason="interpreted kernels are not compiled"),
]

VERSIONS = cases.versions()
V3 = VERSIONS["v3"]


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
