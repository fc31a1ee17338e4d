"""Options of a command, each declared once: a field of a dataclass or a parameter of a function,
annotated with the first values of its `Parameter`.

    @dataclass(frozen=True)
    class Options:
        layers: Annotated[int | None, "number of layers", count] = None

`add` gives a parser the options of `parameters(Options)`, and `given` returns the dataclass of what
was parsed.
"""

from __future__ import annotations

import argparse
import inspect
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from results.show.terminal import Parser

WHAT = "what to measure"
HOW = "how to measure"
OUTPUT = "output"

Kind = TypeVar("Kind")
Names = list[str] | None
"""Type of a list option; None if it is not given."""


@dataclass(frozen=True)
class Parameter:
    """How an option is written, read and explained; `parameters` adds what the field says."""

    help: str | Callable[[], str] = ""
    """A function returns a slow text; only --help calls it."""
    read: Callable[[Any], Any] | tuple[str, ...] = str
    """Parses a value, or has the allowed ones."""
    group: str = WHAT
    """Title of its group in --help; empty: that of all options or positional arguments."""
    metavar: str | None = None
    flags: tuple[str, ...] = ()
    """Spellings; by default, `--` and the key with dashes."""
    told: Mapping[str, Any] = field(default_factory=dict)
    """What argparse is told besides."""
    key: str = ""
    default: Any = None
    is_required: bool = False
    is_flag: bool = False
    is_list: bool = False
    """Whether it has several values, separated by commas or spaces."""

    @property
    def name(self) -> str:
        return self.key.replace("_", "-")

    @property
    def spellings(self) -> tuple[str, ...]:
        return self.flags or (f"--{self.name}",)


def parameters(kind: Callable[..., Any]) -> dict[str, Parameter]:
    """Return the parameters of a dataclass or function, also those of its `**options`, by key."""
    bound = inspect.signature(kind).parameters
    hints = get_type_hints(kind, include_extras=True)
    hints.pop("return", None)
    if "options" in hints:
        (options,) = get_args(hints.pop("options"))
        hints |= get_type_hints(options, include_extras=True)
    known = {}
    for key, hint in hints.items():
        parts = _parts_of(hint)
        said = next((part.__metadata__ for part in parts if hasattr(part, "__metadata__")), ())
        if said and not isinstance(said[0], str | Parameter):
            said = ("", *said)  # without a help
        option = said[0] if said and isinstance(said[0], Parameter) else Parameter(*said)
        default = bound[key].default if key in bound else None
        is_required = default is inspect.Parameter.empty
        known[key] = replace(
            option,
            key=key,
            default=None if is_required else default,
            is_required=is_required,
            is_flag=bool in parts,
            is_list=any(get_origin(part) is list for part in parts),
        )
    return known


def _parts_of(hint: Any) -> list[Any]:
    return [hint, *chain.from_iterable(map(_parts_of, get_args(hint)))]


class Words(argparse.Action):
    """Collects the values of a list option, which may be repeated."""

    def __call__(
        self, parser: Any, namespace: argparse.Namespace, values: Any, option_string: Any = None
    ) -> None:
        words = list(chain.from_iterable(values))
        if not words:
            raise argparse.ArgumentError(self, "the list is empty; name at least one")
        setattr(namespace, self.dest, [*(getattr(namespace, self.dest) or []), *words])


def _words(read: Callable[[str], Any], text: str) -> list[Any]:
    return [read(word.strip()) for word in text.split(",") if word.strip()]


def add(
    parser: Parser,
    known: Mapping[str, Parameter],
    only: Iterable[str] = (),
    is_raw: bool = False,
    **helps: str | Callable[[], str],
) -> None:
    """Add options to a parser, those in `only` if there are any; `helps` replace help texts.

    Values that `is_raw` stay texts, and are None by default.
    """
    for key in only or known:
        option = known[key]
        flags = option.spellings
        told = {"default": option.default}
        if flags[0].startswith("-"):
            told["dest"] = key
        if option.is_flag:
            told["action"] = "store_true"
        elif is_raw:
            told |= {"action": "append" if option.is_list else "store", "default": None}
        elif isinstance(option.read, tuple):
            told["choices"] = option.read
        elif option.is_list:
            told |= {"action": Words, "nargs": "+", "metavar": option.metavar or "LIST"}
            told["type"] = partial(_words, option.read)
        else:
            told |= {"metavar": option.metavar, "type": option.read}
        text = helps.get(key, option.help)
        if callable(text):
            parser.late_help[flags[-1]] = text
            text = ""
        place = parser.group(option.group) if option.group else parser
        place.add_argument(*flags, help=text.replace("%", "%%"), **{**told, **option.told})


def given(kind: type[Kind], args: argparse.Namespace) -> Kind:
    """Return a dataclass of the parsed options; a command without one has its default."""
    names = inspect.signature(kind).parameters
    return kind(**{name: value for name, value in vars(args).items() if name in names})


def number(minimum: float, maximum: float, what: str, kind: type = float) -> Callable[[str], Any]:
    """Return a parser of a number from `minimum` to `maximum`, written in ASCII digits."""

    def parse(text: str) -> Any:
        try:
            value = kind(text) if text.isascii() and "_" not in text else math.nan
        except ValueError:
            value = math.nan
        if not minimum <= value <= maximum:  # also if it is NaN
            raise argparse.ArgumentTypeError(f"'{text}' must be {what}")
        return value

    return parse


def path(text: str) -> Path | str:
    """Return a path; that of a directory to create stays text, because `Path` drops the slash at
    the end.

    An empty path, such as an unset shell variable, would be the current directory.
    """
    if not text:
        raise argparse.ArgumentTypeError("the path is empty")
    return text if text.endswith("/") and not Path(text).is_dir() else Path(text)


def margin(text: str) -> float:
    shown = text.strip()
    try:
        value = float(shown.removesuffix("%")) / (100 if shown.endswith("%") else 1)
    except ValueError:
        value = math.nan
    if not 0 <= value < 1:
        raise argparse.ArgumentTypeError(
            f"expected a fraction of the time from 0 to below 100 %, such as 1% or 0.01, got "
            f"'{text}'"
        )
    return value
