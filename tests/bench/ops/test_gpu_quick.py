"""First GPU checks: every version of every kernel once in each dtype."""

import functools
import importlib

import pytest

from bench.harness.device import device
from bench.harness.measure.isolated import compile_rows
from bench.harness.measure.measure_row import measure_row
from bench.harness.measure.rows import Settings, plan
from bench.harness.op import Case
from bench.harness.op_file import options_of
from bench.harness.providers.registry import AUTOTUNE, default_providers, kernel_versions
from tests.bench.commands import QUICK

pytestmark = pytest.mark.gpu

SHAPES = {
    "adamw": {"n": 4099},
    "matmul": {"m": 129, "n": 272, "k": 144},  # tensor descriptors and fp8 take multiples of 16
    "elementwise": {"n": 4099},
    "matvec": {"m": 129, "n": 1000},
    "reduction": {"n": 16385},
    "norm": {"m": 33, "n": 1128},
    "softmax": {"m": 33, "n": 4099},
    "cross_entropy": {"m": 33, "n": 8193},
    "quantize": {"m": 33, "n": 1152},
    "rope": {"t": 33},
}
SETTINGS = Settings(cache="warm")
OP = {"elementwise": "gelu", "matvec": "matvec", "reduction": "sum", "norm": "rmsnorm"}
"""The op to run of families that have several."""


def op_of(family):
    ops = {op.name: op for op in importlib.import_module(f"bench.{family}").OPS}
    return ops[OP.get(family, next(iter(ops)))]


def cases():
    """Return family, dtype and provider of each row: torch, and the versions without autotuning."""
    found = []
    for family in SHAPES:
        names = [name for name in kernel_versions(family) if not name.endswith(AUTOTUNE)]
        for dtype in op_of(family).dtypes:
            for name in ("torch", *(names if dtype != "fp64" else ())):  # no version has fp64
                found.append(pytest.param(family, dtype, name, id=f"{family}-{dtype}-{name}"))
    return found


@functools.cache
def gpu():
    return device.detect("cuda")


def row_of(family, dtype, provider):
    op = op_of(family)
    layout = {option.name: option.default(dtype) for option in options_of(family)}
    case = Case(op.name, dtype, dict(zip(op.axes, SHAPES[family].values(), strict=True)), layout)
    [row] = plan(op, case, [provider], gpu(), SETTINGS, family=family)
    return row


def measured(family, dtype, provider):
    return measure_row(row_of(family, dtype, provider), gpu(), None, QUICK)


@pytest.fixture(autouse=True, scope="module")
def compiled_beforehand():
    """Compile all kernels in parallel: one after the other they take minutes."""
    compile_rows([row_of(*case.values) for case in cases()], gpu())


@pytest.mark.parametrize(("family", "dtype", "provider"), cases())
def test_every_row_is_right_and_timed_by_a_graph_unless_in_place(family, dtype, provider):
    record = measured(family, dtype, provider)
    if record.status == "skipped":
        # If the default version rejected the usual dtype, only a line on stderr would say so.
        assert dtype != "fp16" or not default_providers(family, gpu()).get(provider), record.reason
        pytest.skip(record.reason)
    assert record.status == "ok", record.reason
    assert record.method == ("events" if op_of(family).in_place else "graph")
    assert record.verified["after"]["checked_elements"] > 0
