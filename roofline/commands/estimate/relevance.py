"""No option is ignored in silence: one that changes nothing in the answer asked is an error that names it."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import redirect_stderr
from io import StringIO
from typing import Any

from results.compare.selection import LATEST
from results.store.runs import StoreError
from roofline.accounting.answers.answer import Answer
from roofline.accounting.config.config import ConfigError
from roofline.work import DTYPES


def refuse_ignored(args: argparse.Namespace, answer: Answer) -> None:
    """Refuse an option that was given and does not matter: whatever else it said, the answer would be the same.

    Raises:
        ConfigError: there is such an option; the message names it.
    """
    for option in ignored(args, answer):
        raise ConfigError(f"{option} does not matter to this answer: leave it out")


def ignored(args: argparse.Namespace, answer: Answer) -> Iterator[str]:
    """Yield each option that was given and does not matter, as it is typed.

    The answer is asked for again with the option's default, and where that is the same with its other values. What an
    answer takes for granted is no part of it: a note may repeat an option that nothing is reckoned with.

    Args:
        args: as read by `args.parser` and answered by `args.answer`.
        answer: to them.
    """
    chosen = LATEST if getattr(args, "measured", None) is not None else ()  # whatever run they choose, they chose it
    for action in args.parser._actions:
        value = getattr(args, action.dest, action.default)
        if value == action.default or action.dest in (*chosen, "help", "format", "output", "plot", "theme"):
            continue
        if not any(_differs(args, answer, action.dest, other) for other in _others(action, value)):
            yield action.option_strings[0]


def _others(action: argparse.Action, value: Any) -> Iterator[Any]:
    """Yield the default of an option and some of its other values."""
    yield action.default
    yield from action.choices or ()
    if action.dest == "dtype":
        yield from ([[dtype]] for dtype in DTYPES)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield value / 2 if isinstance(value, float) else 2 * value


def _differs(args: argparse.Namespace, answer: Answer, name: str, value: Any) -> bool:
    """Return whether another value of an option gives another answer, or none."""
    with redirect_stderr(StringIO()):
        try:
            other: Answer = args.answer(argparse.Namespace(**{**vars(args), name: value}))
        except (
            ArithmeticError,
            OSError,
            StoreError,
            TypeError,
            ValueError,
        ):  # an answer needs the option, or cannot do with that value
            return True
    return _reckoned(other) != _reckoned(answer)


def _reckoned(answer: Answer) -> tuple[Any, ...]:
    return answer.values, list(answer.rows), list(answer.steps), list(answer.warnings)
