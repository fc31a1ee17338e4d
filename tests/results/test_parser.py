"""The parser of all commands: what it takes for a value, what it refuses, and in which words."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from results.__main__ import COMMANDS, main
from results.show.terminal import Parser

ROOT = Path(__file__).parents[2]
FULL = Path("/dev/full")


@pytest.fixture
def parser():
    made = Parser(prog="tool")
    made.add_argument("--params", type=float)
    made.add_argument("--margin")
    made.add_argument("--dtype", nargs="+", metavar="LIST")
    return made


def refused(parser, capsys, *words):
    with pytest.raises(SystemExit) as ended:
        parser.parse_args(words)
    assert ended.value.code == 2
    return capsys.readouterr().err


@pytest.mark.parametrize("text", ["-7e9", "-.5", "-3%", "-70B", "-1/2"])
def test_a_negative_number_or_what_begins_like_one_is_a_value(parser, text):
    assert parser.parse_args(["--margin", text]).margin == text


def test_an_option_without_its_value_is_told_so(parser, capsys):
    assert refused(parser, capsys, "--params", "--margin", "1") == (
        "tool: error: argument --params: expected one argument; see tool --help\n"
    )


def test_an_abbreviated_option_is_refused_and_the_whole_one_named(parser, capsys):
    line = refused(parser, capsys, "--param", "7")
    assert line == "tool: error: unrecognized arguments: --param 7; did you mean --params?\n"


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_of_each_command_of_results_says_what_it_does(name, capsys):
    with pytest.raises(SystemExit):
        main([name, "--help"])
    assert f"\n{COMMANDS[name][:40].capitalize()}" in capsys.readouterr().out


def test_a_caller_in_python_gets_an_exception(parser):
    parser.raises = LookupError
    with pytest.raises(LookupError, match=r"^unrecognized arguments: --fast$"):
        parser.parse_args(["--fast"])


def test_lines_of_a_description_are_kept(parser):
    parser.description = "one\ntwo"
    parser.add_argument("runs", nargs="+", metavar="RUN")
    text = parser.format_help()
    assert "one\ntwo\n" in text
    assert "--dtype LIST [LIST ...]\n" in text
    assert "RUN [RUN ...]" in text


def test_help_wraps_paragraphs_at_words_and_keeps_commands(parser, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    command = f"  python -m bench {'--op gelu ' * 10}"
    words = " ".join(["word"] * 24)
    parser.description = f"{words}\ngoes on\n\nTerm  {words}\n      goes on\n{command}\n{command}"
    lines = parser.format_help().splitlines()
    assert {"word word goes on", f"      {'word ' * 4}goes on", command} <= set(lines)
    assert max(len(line) for line in lines if line != command) < 60


def test_the_parser_of_a_part_keeps_these_rules(capsys):
    whole = Parser(prog="tool")
    whole.add_subparsers().add_parser("part").add_argument("--margin")
    assert whole.parse_args(["part", "--margin", "-3%"]).margin == "-3%"
    assert refused(whole, capsys, "part", "--marg", "1").startswith(
        "tool part: error: unrecognized arguments: --marg"
    )


@pytest.mark.sampled(2)
@pytest.mark.skipif(not FULL.exists(), reason="no device that is always full")
@pytest.mark.parametrize(
    "command", ["bench.matmul", "kernels", "results", "roofline", "bench", "bench suite"]
)
def test_a_help_that_cannot_be_written_is_one_line(command):
    with FULL.open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", *command.split(), "--help"],
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
        )
    assert done.returncode == 2
    assert (
        done.stderr
        == f"python -m {command}: error: cannot write the output: No space left on device\n"
    )
