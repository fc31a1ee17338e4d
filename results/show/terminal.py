"""Text to stdout and stderr: data to the one, all that is said about it to the other, nothing that a terminal obeys."""

from __future__ import annotations

import argparse
import io
import math
import os
import re
import sys
import unicodedata
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, NoReturn, TextIO

from results.show.spelling import REMOVED, did_you_mean

if TYPE_CHECKING:
    from rich.console import Console

OK, WRONG_RESULT, USAGE, NO_DEVICE, INTERRUPTED = 0, 1, 2, 3, 130
"""Exit codes, the same for all commands; 130 is 128 and the number of SIGINT, as shells report it."""

TABLE_FORMATS = ("table", "json", "csv", "md")
"""What `--format` takes: the formats of `results.show.grid.Table`, which takes longer to import."""

ADVANCED = "advanced"
"""Title of the last group of a help, after about ten usual options."""

WIDE = 400
"""Columns of a table that no terminal limits: enough for any row, so that a file or a pipe gets whole lines."""


def table_format(word: str) -> str:
    """Return the format of a word: `text` is an older word for `table`."""
    return "table" if word == "text" else word


class OutputError(RuntimeError):
    """What was found cannot be printed; the message says why, in one line."""


def printable(text: object) -> str:
    """Return a text that no terminal obeys: what cannot be printed becomes its escape in Python's notation."""
    shown = str(text)
    if shown.isprintable():
        return shown
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in shown)


def one_line(text: str, longest: int = 48) -> str:
    """Return `text` in one line without control characters, with at most `longest` characters.

    Names come from files and drivers; what steers a terminal or is no character would spoil a line.
    """
    spaced = "".join(" " if character.isspace() else character for character in text)
    shown = " ".join("".join(c for c in spaced if unicodedata.category(c)[0] != "C").split())
    return shown if len(shown) <= longest else shown[: longest - 1].rstrip() + "…"


def prepare_streams() -> None:
    """Let a character that the terminal's encoding lacks become a question mark, and a closed stderr take anything."""
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123, SIM115  # for the rest of the process
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def stdout() -> TextIO:
    if sys.stdout is None:
        raise OutputError("cannot write the output: stdout is closed")
    return sys.stdout


def print_out(text: str, kept: str = "") -> None:
    """Write `text` to stdout; a reader that has seen enough, as `head` has, is no error.

    If stdout is closed or full, the message of OutputError ends with `kept`: what was done all the same.
    """
    try:
        stream = stdout()
        try:
            stream.write(text)
        except UnicodeEncodeError:  # a terminal that knows only ASCII gets question marks
            stream.write(text.encode(stream.encoding, "replace").decode(stream.encoding))
        stream.flush()
    except OutputError as error:
        raise OutputError(f"{error}{kept}") from None
    except OSError as error:
        from results.store.runfile import reason_of

        _discard(sys.stdout)
        if not isinstance(error, BrokenPipeError):
            raise OutputError(f"cannot write the output: {reason_of(error)}{kept}") from None


def say(text: str) -> None:
    if sys.stderr is None:  # `print` would take stdout in its place
        return
    try:
        print(printable(text), file=sys.stderr, flush=True)
    except OSError:
        _discard(sys.stderr)


@contextmanager
def busy(text: str, quiet: bool = False) -> Iterator[None]:
    """Show `text` on a terminal until the block ends, if it takes long to import or to draw something."""
    is_shown = not quiet and sys.stderr is not None and sys.stderr.isatty()
    if is_shown:
        print(text, end="", file=sys.stderr, flush=True)
    try:
        yield
    finally:
        if is_shown:
            print("\r\033[K", end="", file=sys.stderr, flush=True)


def fail(prog: str, message: object) -> int:
    """Say what is wrong with a command, such as `python -m roofline gpus`, and return its exit code."""
    say(f"{prog}: error: {message}")
    return USAGE


class _Help(argparse.RawDescriptionHelpFormatter):
    """Keeps the lines of a text, and shows the value of an option that takes one list or several as one."""

    def _format_args(self, action: argparse.Action, default_metavar: str) -> str:
        if action.option_strings and action.nargs == argparse.ONE_OR_MORE and isinstance(action.metavar, str):
            return action.metavar
        return super()._format_args(action, default_metavar)


class Parser(argparse.ArgumentParser):
    """A parser that says in one line what is wrong, and prints its help as all output is printed."""

    raises: type[Exception] | None = None
    """What an error raises, for a caller in Python; it ends the process where this is None."""

    def __init__(self, *args: Any, **options: Any) -> None:
        # An abbreviated option would break with the next option that begins like it.
        super().__init__(*args, **{"formatter_class": _Help, "allow_abbrev": False, **options})
        # argparse takes `-7e9` and `-3%` for options, so that its error would not tell what is wrong with the number.
        self._negative_number_matcher = re.compile(r"-\.?\d")
        self.late_help: dict[str, Callable[[], str]] = {}
        """By option, returns a help text that is slow to make; only --help needs it."""

    def group(self, title: str) -> argparse._ArgumentGroup:
        """Return the group of options with this title; --help shows `output` and `advanced` last."""
        found = [group for group in self._action_groups if group.title == title]
        return found[0] if found else self.add_argument_group(title)

    def error(self, message: str) -> NoReturn:
        said = one_line(printable(message), 1000)
        if self.raises:
            raise self.raises(said)
        sys.exit(fail(self.prog, said if said.endswith("?") else f"{said}; see {self.prog} --help"))

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Refuse unknown arguments here: argparse leaves that to the parser above, whose name the error would have."""
        found, unknown = super().parse_known_args(args, namespace)
        if unknown:
            options = [word.partition("=")[0] for word in unknown if word.startswith("--")]
            command = self.prog.rpartition(" ")[2]
            for word in options:
                if replacement := REMOVED.get(word) or REMOVED.get(f"{command} {word}"):
                    self.error(f"{word} was removed: {replacement}")
            known = [word for word in self._option_string_actions if word.startswith("--")]
            hints = [did_you_mean(word, known, 1) for word in options]
            self.error("; ".join([f"unrecognized arguments: {' '.join(unknown)}", *filter(None, hints)]))
        return found, unknown

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Name the replacement of a removed command or value, or the nearest; argparse lists all for the others."""
        if action.choices is not None and value not in action.choices:
            named = None if isinstance(action, argparse._SubParsersAction) else action
            if value in REMOVED:
                raise argparse.ArgumentError(named, f"'{value}' was removed: {REMOVED[value]}")
            if hint := did_you_mean(value, action.choices):
                raise argparse.ArgumentError(named, f"unknown {'value' if named else 'command'} '{value}'; {hint}")
        super()._check_value(action, value)

    def format_help(self) -> str:
        for name, text in self.late_help.items():
            self._option_string_actions[name].help = text()
        self._action_groups.sort(key=lambda group: (group.title == ADVANCED, group.title == "output"))
        return super().format_help()

    def print_help(self, file: Any = None) -> None:
        if file is not None:
            super().print_help(file)
            return
        try:
            print_out(self.format_help())
        except OutputError as error:
            sys.exit(fail(self.prog, error))


def margin(text: str) -> float:
    """Return a margin as a fraction: `1%` and `0.01` are alike."""
    shown = text.strip()
    try:
        value = float(shown.removesuffix("%")) / (100 if shown.endswith("%") else 1)
    except ValueError:
        value = math.nan
    if not 0 <= value < 1:
        raise argparse.ArgumentTypeError(
            f"'{text}' is not a share of the time from 0 to below 100 %, such as 1% or 0.01"
        )
    return value


def add_format(parser: Parser) -> None:
    text = "output format on stdout (default: table)"
    group = parser.group("output")
    group.add_argument("--format", choices=TABLE_FORMATS, type=table_format, default="table", help=text)


def add_margin(parser: argparse._ActionsContainer) -> None:
    from results.stats.comparison import DEFAULT_MARGIN

    what = f"largest change of the time that does not matter (default: {100 * DEFAULT_MARGIN:g}%%)"
    parser.add_argument("--margin", type=margin, default=DEFAULT_MARGIN, metavar="SHARE", help=what)


def table_console(file: TextIO) -> Console:
    """Return a console for `file`; where that is no terminal, lines are as wide as the table needs."""
    from rich.console import Console

    return Console(file=file, width=None if file.isatty() else WIDE, emoji=False)


def drawn(draw: Callable[[Console], object]) -> str:
    """Return what `draw` prints to a console like stdout: rich itself would end the process if the reader is gone."""
    console = table_console(stdout())
    try:
        with console.capture() as captured:
            draw(console)
    except OSError as error:
        from results.store.runfile import reason_of

        raise OutputError(f"cannot write the output: {reason_of(error)}") from None
    return captured.get()


def _discard(stream: TextIO) -> None:
    """Let what is still in a stream's buffer go nowhere, so that leaving does not fail on it once more."""
    with suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
