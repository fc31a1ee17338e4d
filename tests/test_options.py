"""Options of all commands: one meaning for each name, about ten of them first, none hidden."""

import argparse
from importlib import import_module

import pytest

from bench import __main__ as bench
from bench.harness.cli.arguments import build_parser
from bench.harness.op_file import module_of, options_of
from kernels import __main__ as kernels
from results import __main__ as results
from results.show.terminal import ADVANCED, Parser
from roofline import __main__ as roofline


def commands_of(parser):
    (choices,) = [
        action.choices
        for action in parser._actions
        if isinstance(action, argparse._SubParsersAction)
    ]
    return choices


def every_parser():
    for name in bench.COMMANDS:
        parser = Parser(prog="python -m bench")
        bench.add_commands(parser, [name, "--help"], bench.catalog_of([name]))
        yield f"bench {name}", commands_of(parser)[name]
    for family, ops in bench.families().items():
        yield f"bench.{family}", build_parser(family, "", (), ops, options_of(family))
    for name in ("train_step", "transfer"):
        yield f"bench.{name}", import_module(f"bench.{name}").build_parser()
    for name, parser in commands_of(results._parser(results.COMMANDS)).items():
        yield f"results {name}", parser
    for name, parser in commands_of(kernels._parser()).items():
        yield f"kernels {name}", parser
    for name in roofline.COMMANDS:
        yield f"roofline {name}", commands_of(roofline._parser(name))[name]
    for name, parser in commands_of(commands_of(roofline._parser("estimate"))["estimate"]).items():
        if name != "sweep":
            parser.parse_known_args([])  # adds its options
        yield f"estimate {name}", parser


PARSERS = dict(every_parser())
FAMILIES = [
    name for name in PARSERS if name.startswith("bench.") and hasattr(module_of(name[6:]), "OPS")
]


def options(name, *, advanced=True):
    others = () if advanced else PARSERS[name].group(ADVANCED)._group_actions
    actions = [
        action
        for action in PARSERS[name]._actions
        if action.option_strings and action.dest != "help"
    ]
    return [action for action in actions if action not in others]


def meanings(option):
    """Return the destination and the placeholder of an option in each command that has it."""
    return {
        name: action
        for name in PARSERS
        for action in options(name)
        if option in action.option_strings
    }


@pytest.mark.parametrize("name", PARSERS)
def test_help_shows_every_option_and_about_ten_first(name):
    text = PARSERS[name].format_help()
    assert all(action.option_strings[-1] in text for action in options(name))
    own = len(options_of(name[6:])) if name in FAMILIES else 0
    # The dimensions of a model stand in for its name.
    first = [
        action
        for action in options(name, advanced=False)
        if action.dest not in ("layers", "width", "heads", "ffn", "vocab")
    ]
    assert len(first) <= (11 if name in FAMILIES else 14) + own
    titles = [group.title for group in PARSERS[name]._action_groups if group._group_actions]
    assert ADVANCED not in titles[:-1]


@pytest.mark.parametrize("name", PARSERS)
def test_percent_signs_of_a_help_are_text(name):
    assert "option_strings" not in PARSERS[name].format_help()


def test_each_option_name_has_one_meaning():
    assert {name.partition(" ")[0].partition(".")[0] for name in meanings("--device")} == {"bench"}
    machines = meanings("--machine")
    assert {name.partition(" ")[0] for name in machines} == {"results", "roofline"}
    assert all("`python -m results list`" in action.help for action in machines.values())
    assert not any(name.startswith("results") for name in meanings("--gpu"))
    outputs = meanings("--output")
    assert all(action.option_strings[:2] == ["-o", "--output"] for action in outputs.values())
    assert meanings("--plot").keys() <= outputs.keys()
