"""The list of dishonest functions is complete, their outcomes are told apart, and ten of them are
caught while their honest twins are measured.
"""

import json
import os
import subprocess
import sys
from collections import Counter

import pytest

from bench.harness.device.device import cpu_device
from tests.bench.commands import keep_ceilings
from tests.validation.adversary import __main__ as adversary
from tests.validation.adversary.catalog import FILES, FOLDER, PATHS, ROOT, subjects

CAUGHT = {
    "op": (
        "gelu_of_tanh",
        "gelu_tail",
        "gelu_of_the_neighbour",
        "gelu_in_fp64",
        "gelu_not_returned",
        "gelu_by_pointer",
        "gelu_by_shape",
        "gelu_default_dtype",
    ),
    "bench.measure": ("gelu_unspeakable", "gelu_fatal"),
}


def test_there_are_many_functions_of_many_causes():
    found = subjects()
    names = Counter(each.name for each in found)
    assert len(found) >= 60
    assert max(names.values()) == 1
    assert len({each.cause for each in found}) >= 30
    assert {each.kind for each in found} == {"mistake", "cheat", "listed"}
    assert all(each.cause for each in found)


def test_every_function_has_a_twin_in_its_file_or_in_honest_py():
    for each in subjects():
        file, _, name = each.twin.partition(":")
        text = (ROOT / file).read_text()
        assert f"def {name}(" in text or f"\n{name} = " in text, each.twin


def test_all_files_are_listed():
    files = {f"{path.parent.name}/{path.name}" for path in (ROOT / FOLDER).glob("*/*.py")}
    assert files == set(FILES)


OK = {"status": "ok", "flags": ["preempted", "l2-suspect"], "median_s": 0.01}


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (OK, "PASSED"),
        (OK | {"flags": ["preempted", "bimodal"]}, "PASSED"),
        (OK | {"flags": ["l2-suspect", "above-roof"]}, "flagged: above-roof"),
        (OK | {"status": "invalid"}, "caught: invalid"),
        (OK | {"status": "failed", "median_s": None}, "caught: failed"),
        (OK | {"status": "skipped"}, "lost: skipped"),
        (OK | {"left": "a process"}, "PASSED: leaves a process"),
        ({"status": "lost", "reason": "exit code 1"}, "lost: lost"),
    ],
)
def test_the_outcome_is_told_from_the_row_and_the_twin(answer, expected):
    assert adversary.outcome(answer, OK) == expected


@pytest.mark.parametrize(("median_s", "expected"), [(0.1, "caught: right time"), (0.001, "PASSED")])
def test_a_replaced_clock_is_caught_if_the_time_is_right(median_s, expected):
    assert adversary.outcome(OK | {"median_s": median_s}, OK, "clocks.py") == expected


def test_an_orphan_is_caught_if_nothing_is_left():
    assert adversary.outcome(OK, OK, "orphans.py") == "caught: nothing left"
    left = OK | {"left": "a process"}
    assert adversary.outcome(left, OK, "orphans.py") == "PASSED: leaves a process"


def test_unknown_names_are_a_usage_error(capsys):
    for words in (["--only", "nothing"], ["--path", "nowhere"]):
        with pytest.raises(SystemExit) as error:
            adversary.main(words)
        assert error.value.code == 2
        assert "that --list does not print" in capsys.readouterr().err


def test_the_list_has_paths_and_an_estimate(capsys):
    assert adversary.main(["--list", "--only", "future,stream"]) == 0
    *rows, total = capsys.readouterr().out.splitlines()
    assert rows[0].endswith(", ".join(PATHS))
    assert rows[1].endswith("needs a GPU")
    assert total.startswith("2 functions, about ")


@pytest.mark.exhaustive
@pytest.mark.parametrize("path", CAUGHT)
def test_functions_are_caught_and_their_twins_measured(runs, path):
    keep_ceilings(runs, cpu_device(1))
    words = ["--path", path, "--only", ",".join(CAUGHT[path]), "--format", "json"]
    ran = subprocess.run(
        [sys.executable, "-m", "tests.validation.adversary", *words],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    rows = json.loads(ran.stdout)
    assert {row["name"] for row in rows} == set(CAUGHT[path])
    for row in rows:
        assert row["outcome"].startswith("caught: "), row
        assert row["twin"] == "ok", row
