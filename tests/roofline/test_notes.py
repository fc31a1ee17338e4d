"""`python -m roofline notes`: the table is complete, and each value of ours is what the row's
commands give.
"""

import io
import json
import re
import shlex
import tomllib
from contextlib import redirect_stdout
from functools import cache

import pytest

from roofline.__main__ import main
from roofline.commands.notes import FILE, SECTIONS, VERDICTS

NOTES = tomllib.loads(FILE.read_text())
CLAIMS = [claim for subject in SECTIONS for claim in NOTES[subject]]


def printed(capsys, *words):
    capsys.readouterr()
    assert main([*words]) == 0
    return capsys.readouterr().out


def kept(answer):
    return sum(
        size for name, size in answer["components"].items() if name.startswith("activations_")
    )


@cache
def answer_of(command):
    with redirect_stdout(io.StringIO()) as out:
        assert (
            main([*shlex.split(command), *([] if "--format" in command else ["--format", "json"])])
            == 0
        )
    return json.loads(out.getvalue())


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim["claim"])
def test_our_value_is_the_one_that_its_commands_give(claim):
    answers = dict(zip("abcd", map(answer_of, claim["commands"]), strict=False))
    value = eval(f"f{claim['value']!r}", {"kept": kept, **answers})  # of a file of this repository
    assert claim["ours"].startswith(value.replace("e+", "e"))


def test_every_row_is_complete():
    assert len(CLAIMS) >= 100
    assert NOTES.keys() == {"course", "notes", *SECTIONS}
    for row in CLAIMS:
        assert all(
            row[key] for key in ("notes", "claim", "theirs", "ours", "formula", "verdict", "value")
        )
        assert row["verdict"].split()[0] in VERDICTS
        assert {part for word in row["notes"].split(", ") for part in word.split("-")} <= set(
            NOTES["notes"]
        )


def test_formats(capsys):
    text = printed(capsys, "notes")
    assert re.search(rf"{len(CLAIMS)} claims: \d+ holds, \d+ wrong, \d+ depends\.", text)
    assert all(row["claim"] in text for row in CLAIMS)
    data = json.loads(printed(capsys, "notes", "--format", "json"))
    assert [row["claim"] for row in data["claims"]] == [row["claim"] for row in CLAIMS]
    assert data["claims"][0]["command"].startswith("python -m roofline estimate tensor --shape 4x8")
    assert printed(capsys, "notes", "--format", "csv").count("\n") > len(CLAIMS)


def test_the_notes_are_named_before_the_first_claim_of_them(capsys):
    lines = printed(capsys, "notes").splitlines()
    assert [line.split()[0] for line in lines[:5]] == ["S0", "S1", "S2", "S3", "S4"]
    assert "https://stanford-cs336.github.io" in lines[5]
    assert lines[7].startswith("notes ")
