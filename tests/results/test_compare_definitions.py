"""Rows of two definitions of an op: `results compare` refuses them or is forced, `results history`
marks them.
"""

import csv
import io
import json

import pytest
from compare_runs import NO_DRIFT, case, compared, refused

from results.__main__ import main
from results.record import DEFINITION_PREFIX

ONE, OTHER = DEFINITION_PREFIX + "1" * 64, DEFINITION_PREFIX + "2" * 64
OLDER = "2:" + "3" * 64


def test_two_definitions_are_refused_and_forced(save, measured, capsys):
    same = measured(seed=1, op_sha256=ONE, **case(64))
    before = save("a", same, measured(seed=1, op_sha256=ONE))
    after = save("b", same, measured(2.0, seed=2, op_sha256=OTHER))
    message = refused(capsys, before, after)
    assert (
        "1 row measured by two definitions of the op, such as matmul 1024x1024x1024 bf16: the "
        "time may have changed because the op did; choose other ops"
    ) in message
    code, document = compared(capsys, before, after, "--force")
    assert (code, [row["verdict"] for row in document["rows"]]) == (1, ["SAME", "SLOWER"])
    (note,) = [note for note in document["summary"]["notes"] if "definition" in note]
    assert note.startswith(
        "compared by force: 1 row measured by two definitions of the op, such as matmul"
    )
    assert main(["compare", *NO_DRIFT, before, after, "--force"]) == 1
    assert "note: compared by force: 1 row measured" in capsys.readouterr().err
    assert "definition" not in str(compared(capsys, before, after, "--case", "64x64"))


@pytest.mark.parametrize(
    "known", [(None, None), (ONE, None), (None, OTHER), (ONE, ONE), (OLDER, ONE)], ids=str
)
def test_what_does_not_tell_its_definition_is_compared_as_before(save, measured, capsys, known):
    before, after = (
        save(name, measured(seed=1, op_sha256=sha)) for name, sha in zip("ab", known, strict=True)
    )
    code, document = compared(capsys, before, after)
    assert (code, len(document["rows"])) == (0, 1)
    assert "definition" not in str(document["summary"]["notes"])


def test_other_flops_or_bytes_are_told(save, measured, capsys):
    before = save("a", measured(seed=1, flops=1000), measured(seed=1, **case(64)))
    after = save("b", measured(seed=2, flops=2000), measured(seed=2, **case(64)))
    code, document = compared(capsys, before, after)
    assert code == 0
    (note,) = [note for note in document["summary"]["notes"] if "FLOPs" in note]
    assert note.startswith(
        "1 row with other FLOPs or bytes on the two sides, such as matmul 1024x1024x1024 bf16"
    )


def test_repeated_rows_of_two_definitions_are_rejected(save, measured, capsys):
    before = save(
        "a", *[measured(seed=seed, op_sha256=sha) for seed, sha in enumerate((ONE, None, OTHER))]
    )
    assert "two definitions of the op" in refused(capsys, before, save("b", measured(seed=5)))


def test_providers_of_one_run_are_of_one_definition(save, measured, capsys):
    both = [measured(seed=1, op_sha256=ONE), measured(seed=2, provider="triton-v1", op_sha256=ONE)]
    assert compared(capsys, save("a", *both), "--by", "provider")[0] == 0
    both[1] = measured(seed=2, provider="triton-v1", op_sha256=OTHER)
    assert "1 row measured by two definitions" in refused(
        capsys, save("b", *both), "--by", "provider"
    )


@pytest.fixture
def days(keep, measured):
    """Returns a function that saves a run a day with these definitions."""

    def write(*known):
        for day, sha in enumerate(known, 1):
            keep(day, measured(seed=day, op_sha256=sha))

    return write


def history(capsys, form):
    assert main(["history", "--format", form]) == 0
    return capsys.readouterr()


def test_a_history_says_from_where_on_an_op_is_defined_otherwise(days, capsys):
    days(None, ONE, None, ONE, OTHER, OTHER, ONE)
    out, _ = history(capsys, "json")
    (series,) = json.loads(out)["series"]
    assert [place for place, point in enumerate(series["points"]) if point["is_redefined"]] == [
        4,
        6,
    ]
    assert [point["op_sha256"] for point in series["points"]][:2] == [None, ONE]
    rows = list(csv.DictReader(io.StringIO(history(capsys, "csv")[0])))
    assert [row["is_redefined"] for row in rows].count("true") == 2
    table = history(capsys, "table")[0]
    assert [
        ("the op was redefined" in line) for line in table.splitlines() if "2026-11-0" in line
    ] == [place in (4, 6) for place in range(7)]


def test_history_of_one_or_unknown_definition_marks_nothing(days, capsys):
    days(None, ONE, None, ONE)
    out, err = history(capsys, "json")
    assert "true" not in out
    assert "defined" not in err
