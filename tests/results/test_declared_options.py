"""Options that are declared once, as fields of a dataclass."""

import argparse
from dataclasses import dataclass
from typing import Annotated

import pytest

from results.show.options import Names, Parameter, add, given, number, parameters
from results.show.terminal import Parser


def percent(text):
    return f"{100 * float(text):g} %"


@dataclass(frozen=True)
class Options:
    layers: Annotated[int | None, "number of layers", number(1, 9, "from 1 to 9", int)] = None
    shape: Annotated[Names, "shapes"] = None
    share: Annotated[list[str] | None, "shares, at most 100%", percent] = None
    kind: Annotated[str, "kind of step", ("whole", "half"), "advanced", "KIND"] = "whole"
    is_dry: Annotated[bool, "only check"] = False
    time_s: Annotated[float, Parameter("seconds", float, flags=("-t", "--time"))] = 1.5
    runs: Annotated[tuple[str, ...], Parameter("runs", flags=("runs",), told={"nargs": "*"})] = ()


@pytest.fixture
def parser():
    made = Parser(prog="tool")
    add(made, parameters(Options), time_s="time limit")
    return made


def test_a_command_without_arguments_has_the_defaults(parser):
    assert given(Options, parser.parse_args([])) == Options()


def test_options_are_read_as_their_fields_say(parser):
    words = "a --layers 3 --kind half --is-dry -t 2 --share 0.5,1 --share 0.25 --shape 1x2 3"
    assert given(Options, parser.parse_args(words.split())) == Options(
        layers=3,
        shape=["1x2", "3"],
        share=["50 %", "100 %", "25 %"],
        kind="half",
        is_dry=True,
        time_s=2.0,
        runs=["a"],
    )


def test_help_has_the_declared_texts_and_those_of_the_command(parser):
    text = " ".join(parser.format_help().split())
    for said in ("--layers LAYERS number of layers", "--share LIST shares, at most 100%"):
        assert said in text
    assert "--time TIME_S time limit" in text
    assert text.index("advanced:") > text.index("what to measure:")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--layers 10", "argument --layers: '10' must be from 1 to 9"),
        ("--shape , --is-dry", "argument --shape: the list is empty; name at least one"),
        ("--kind hlaf", "argument --kind: unknown value 'hlaf'; did you mean half?"),
    ],
)
def test_a_wrong_value_is_one_line(parser, capsys, words, said):
    with pytest.raises(SystemExit):
        parser.parse_args(words.split())
    assert said in capsys.readouterr().err


def test_raw_options_are_texts_and_none_by_default():
    parser = Parser(prog="tool")
    add(parser, parameters(Options), ["layers", "shape", "kind", "is_dry"], is_raw=True)
    parsed = vars(parser.parse_args(["--layers", "70B", "--shape", "a,b", "--shape", "c"]))
    assert parsed == {"layers": "70B", "shape": ["a,b", "c"], "kind": None, "is_dry": False}


def test_a_command_may_have_some_of_the_options():
    parser = Parser(prog="tool")
    add(parser, parameters(Options), ["kind"])
    assert given(Options, parser.parse_args(["--kind", "half"])) == Options(kind="half")
    assert given(Options, argparse.Namespace(other=1)) == Options()
