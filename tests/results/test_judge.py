"""The judged keys come from the floor above, found by name; without it, or with ceilings of no use, they are null."""

import ast
from pathlib import Path

import pytest

from results.show import judge
from results.show.judge import JUDGED_KEYS, judged

PACKAGE = Path(judge.__file__).parent


def test_a_record_is_judged_by_the_ceilings_of_its_environment(make_environment, make_record):
    (score,) = judged(make_environment(), [make_record()])
    assert score["flops_per_s"] == pytest.approx(500e12)
    assert score["bytes_per_s"] == pytest.approx((2**22 + 2**21) / 4.294967296e-6)
    assert score["intensity"] == pytest.approx(341.33, abs=0.01)
    assert score["mfu"] == pytest.approx(0.5)
    assert score["mbu"] == pytest.approx(0.7324, abs=1e-4)
    # At 341 FLOP/byte the memory allows 683 TFLOP/s, less than the peak.
    assert score["bound"] == "memory"
    assert score["roofline_pct"] == pytest.approx(73.24, abs=0.01)
    assert (score["peak_kind"], score["bandwidth_kind"], score["excess"]) == ("datasheet", "datasheet", None)


def test_what_the_ceilings_do_not_tell_is_null(make_environment, make_record):
    (score,) = judged(make_environment(hardware={}), [make_record()])
    assert score["flops_per_s"] == pytest.approx(500e12)
    assert [score[key] for key in ("mfu", "mbu", "bound", "roofline_pct", "peak_kind")] == [None] * 5


def entry(**changes):
    values = {"quantity": "flops", "name": "bf16", "value": 1e15, "kind": "datasheet", "source": "a test"}
    return {"entries": [values | changes]}


@pytest.mark.parametrize(
    "hardware",
    [
        {"entries": "many"},
        {"entries": [17]},
        {"entries": [{}]},
        {"slug": 3},
        entry(value="fast"),
        entry(value=-1.0),
        entry(value=0),
        entry(value=10**400),
        entry(quantity=["flops"]),
        entry(kind="rumored"),
    ],
    ids=lambda hardware: f"{hardware!r:.60}",
)
def test_ceilings_of_no_use_are_reported_once_and_judge_nothing(make_environment, make_record, hardware):
    reported = []
    scores = judged(make_environment(hardware=hardware), [make_record()] * 3, reported.append)
    assert scores == [dict.fromkeys(JUDGED_KEYS)] * 3
    assert len(reported) == 1
    assert reported[0].startswith("the ceilings of the run cannot be used")
    assert "\n" not in reported[0]


def test_this_package_imports_nothing_of_the_floors_above():
    above = {"roofline", "bench", "kernels", "torch", "triton"}
    for path in PACKAGE.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module] if isinstance(node, ast.ImportFrom) and node.module else []
            assert not {name.partition(".")[0] for name in names} & above, f"{path.name} imports {names}"
