"""What a page asks: the words of a command of `roofline estimate`, read and answered by that command itself."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from results.show.spelling import words_of
from results.show.terminal import OutputError, Parser
from results.store.runs import StoreError
from roofline.accounting.answers.answer import Answer
from roofline.accounting.config.config import ConfigError, ModelConfig
from roofline.ceilings import CeilingError
from roofline.commands.estimate.parts import PARTS
from roofline.commands.estimate.sweep import swept
from roofline.hardware.gpu import UnknownGpuError

REFUSALS = (ConfigError, CeilingError, OutputError, OverflowError, StoreError, UnknownGpuError)
"""What is answered in words: as of the command."""

Options = Mapping[str, str | bool]
"""By name, without the dashes: what is typed, or whether a switch is on. An empty text is left out."""


class Asked(NamedTuple):
    """An answer, and the command that gives it."""

    answer: Answer
    words: list[str]
    """After `python -m roofline estimate`: no option that is at its default."""

    @property
    def command(self) -> str:
        """The line to type."""
        return command_line(self.words)


def command_line(words: Sequence[str]) -> str:
    """Return the line to type for some words after `estimate`."""
    return shlex.join(["python", "-m", "roofline", "estimate", *words])


def ask(command: str, options: Options, config: ModelConfig | None = None) -> Asked:
    """Return the answer of a command to some options.

    Args:
        command: of `roofline estimate`, such as `train`.
        options: those that are typed.
        config: the model of a file that is not on this machine's disk, in place of the one that `--config` names.

    Raises:
        ConfigError: a value is none that the option takes, or the question has no answer.
        CeilingError, OverflowError, StoreError, UnknownGpuError: as of the command.
    """
    args = read(command, options, config)
    kept = {name: value for name, value in options.items() if value and not _is_default(args, name)}
    return Asked(args.answer(args), [command, *words_of(kept)])


def read(command: str, options: Options, config: ModelConfig | None = None) -> argparse.Namespace:
    """Return options as the command reads them; its `answer` answers them. Arguments as of `ask`.

    Raises:
        ConfigError: a value is none that the option takes.
    """
    part = next(part for part in PARTS if part.name == command)
    parser = Parser(prog=f"python -m roofline estimate {command}", add_help=False)
    parser.raises = ConfigError
    part.add_options(parser)
    args = parser.parse_args(words_of(options))
    args.parser, args.answer = parser, part.answer
    if config is not None:
        args.config = config
    return args


def sweep(asked: Asked, over: str) -> tuple[list[str], list[dict[str, Any]]]:
    """Return the words of the command that asks the same along an option, such as `batch=1:64:x2`, and its rows.

    Raises:
        ConfigError: as of `ask`.
    """
    command, *words = asked.words
    option = over.partition("=")[0]
    if f"--{option}" in words:
        place = words.index(f"--{option}")
        words = [*words[:place], *words[place + 2 :]]
    words = [command, *words, "--over", over]
    return ["sweep", *words], swept(words, PARTS).rows


def _is_default(args: argparse.Namespace, name: str) -> bool:
    action = args.parser._option_string_actions[f"--{name}"]
    return not action.required and bool(getattr(args, action.dest) == action.default)
