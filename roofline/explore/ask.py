"""What a page asks: the words of a command of `roofline estimate`, read and answered by that command itself."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Mapping, Sequence
from typing import NamedTuple, NoReturn

from results.show.terminal import OutputError, one_line, printable
from results.store.runs import StoreError
from roofline.accounting.answers.answer import Answer
from roofline.accounting.config.config import ConfigError, ModelConfig
from roofline.ceilings import CeilingError
from roofline.commands.estimate_parts import PARTS
from roofline.commands.estimate_relevance import ignored
from roofline.hardware.files import GpuFileError
from roofline.hardware.gpu import UnknownGpuError

REFUSALS = (ConfigError, CeilingError, GpuFileError, OutputError, OverflowError, StoreError, UnknownGpuError)
"""What is answered in words: as of the command."""

Options = Mapping[str, str | bool]
"""By name, without the dashes: what is typed, or whether a switch is on. An empty text is left out."""


class Asked(NamedTuple):
    """An answer, and the command that gives it."""

    answer: Answer
    words: list[str]
    """After `python -m roofline estimate`: no option that is at its default or that does not matter."""
    ignored: list[str]
    """Options that do not matter to this answer, so that the command refuses them."""

    @property
    def command(self) -> str:
        """The line to type."""
        return command_line(self.words)


def command_line(words: Sequence[str]) -> str:
    """Return the line to type for some words after `estimate`."""
    return shlex.join(["python", "-m", "roofline", "estimate", *words])


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ConfigError(one_line(printable(message), 400))


def ask(command: str, options: Options, config: ModelConfig | None = None) -> Asked:
    """Return the answer of a command to some options.

    Args:
        command: of `roofline estimate`, such as `train`.
        options: those that are typed.
        config: the model of a file that is not on this machine's disk, in place of the one that `--config` names.

    Raises:
        ConfigError: a value is none that the option takes, or the question has no answer.
        CeilingError, GpuFileError, OverflowError, StoreError, UnknownGpuError: as of the command.
    """
    part = next(part for part in PARTS if part.name == command)
    parser = _Parser(prog=f"python -m roofline estimate {command}", add_help=False, allow_abbrev=False)
    part.add_options(parser)

    def read(words: Sequence[str]) -> argparse.Namespace:
        args = parser.parse_args(words)
        args.parser, args.answer = parser, part.answer
        if config is not None:
            args.config = config
        return args

    given = {name: words for name, value in options.items() if (words := _words(name, value))}
    args = read([word for words in given.values() for word in words])
    kept = {name: words for name, words in given.items() if not _is_default(parser, args, name)}
    answer = part.answer(args)
    unused = [name.removeprefix("--") for name in ignored(args, answer)]
    words = [word for name, words in kept.items() if name not in unused for word in words]
    if unused:
        answer = part.answer(read(words))
    return Asked(answer, [command, *words], [name for name in unused if name in kept])


def _words(name: str, value: str | bool) -> list[str]:
    """Return an option as it is typed; a value that begins with a dash would be taken for an option of its own."""
    if isinstance(value, bool):
        return [f"--{name}"] if value else []
    text = value.strip()
    if text.startswith("-"):
        return [f"--{name}={text}"]
    return [f"--{name}", text] if text else []


def _is_default(parser: argparse.ArgumentParser, args: argparse.Namespace, name: str) -> bool:
    action = parser._option_string_actions[f"--{name}"]
    return not action.required and bool(getattr(args, action.dest) == action.default)
