"""Mutation tests of a file of two functions: one mutant is killed, another survives."""

import re
import subprocess
import sys

import pytest

from tests.validation import mutants
from tests.validation.mutants import CONCEPTS, EQUIVALENT, ROOT, mutants_of

CODE = '''"""A toy."""

LIMIT = 3  # "x" + 1


def larger(one, other):
    return one if one > other else other


def text(number: int = 3) -> str:
    return f"{number + 1}" + "more"
'''
TEST = """
from toy import LIMIT, larger, text

def test_toy():
    assert (LIMIT, larger(2, 3), larger(3, 2), text(0)) == (3, 3, 3, "1more")
"""
RUN = """
import sys
from pathlib import Path
from tests.validation import mutants
mutants.ROOT = Path(sys.argv[1])
mutants.PRELOADED = []
mutants.CONCEPTS = {"toy": mutants.Concept({"toy.py": "larger"}, ["test_toy.py"])}
sys.exit(mutants.main(sys.argv[2:]))
"""


@pytest.fixture
def toy(tmp_path, monkeypatch):
    (tmp_path / "toy.py").write_text(CODE)
    (tmp_path / "test_toy.py").write_text(TEST)
    monkeypatch.setattr(mutants, "ROOT", tmp_path)
    return tmp_path


def test_edits_of_a_file_leave_out_texts(toy):
    assert [(mutant.line, mutant.after) for mutant in mutants_of("toy", "toy.py")] == [
        (3, 'LIMIT = 4  # "x" + 1'),
        (7, "return None"),
        (7, "return one if one >= other else other"),
        (7, "return one if one <= other else other"),
        (10, "def text(number: int = 4) -> str:"),
    ]


@pytest.mark.exhaustive
def test_a_killed_mutant_and_a_survivor_are_told_apart(toy):
    ran = subprocess.run(
        [sys.executable, "-c", RUN, toy, "--jobs", "2"],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )
    assert ran.returncode == 1, ran.stderr
    assert "toy: 2 of 3 killed (67%)" in ran.stdout
    assert "toy: 66.7% killed, at least 85% expected" in ran.stdout
    line = "return one if one > other else other"
    assert f"    toy.py:7: {line}  ->  {line.replace('>', '>=')}\n" in ran.stdout
    assert ran.stderr.count(" killed toy.py:7: ") == 2
    assert (toy / "toy.py").read_text() == CODE


def test_concepts_name_code_and_tests_that_exist():
    for concept in CONCEPTS.values():
        for path, functions in concept.code.items():
            code = (ROOT / path).read_text()
            for name in functions.split():
                assert len(re.findall(rf"^ *(?:def|class) {name}\b", code, re.MULTILINE)) == 1
        assert all((ROOT / path).is_file() for path in concept.tests)


def test_equivalent_edits_are_of_lines_that_exist():
    for path, line, old, _, reason in EQUIVALENT:
        assert line in map(str.strip, (ROOT / path).read_text().splitlines())
        assert old in line
        assert reason
