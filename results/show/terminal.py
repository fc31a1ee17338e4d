"""Argument parsing, and output without control sequences: data to stdout, messages to stderr."""

from __future__ import annotations

import argparse
import io
import os
import re
import sys
import unicodedata
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any, NoReturn, TextIO

from results.show.spelling import did_you_mean

if TYPE_CHECKING:
    from rich.console import Console

# Exit codes of all commands.
OK = 0
WRONG_RESULT = 1
USAGE = 2
NO_DEVICE = 3
INTERRUPTED = 130
"""128 plus the number of SIGINT, as in shells."""

TABLE_FORMATS = ("table", "json", "csv", "md")
"""Formats of `results.show.grid.Table`, which takes longer to import."""
FORMAT_HELP = "output format on stdout (default: table)"

THEMES = ("light", "dark")
"""Colors of plots."""

ADVANCED = "advanced"
"""Title of the last group of a help, after about ten usual options."""

MIN_WRAPPED = 70
"""Characters; after a longer line of a help text, the next one continues its paragraph."""

NEW_ENTRY = r"\s|$|- |exit codes"
"""Starts of lines of a help text that never continue a paragraph."""

WIDE = 400
"""Characters per line in a pipe or a file: enough for any row."""


class OutputError(RuntimeError):
    """The output cannot be written; the message is one line."""


class PlotError(ValueError):
    """The plot cannot be drawn; the message is one line."""


def printable(text: object) -> str:
    """Return a text whose unprintable characters are escaped as in Python."""
    shown = str(text)
    if shown.isprintable():
        return shown
    return "".join(
        c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in shown
    )


def reason_of(error: OSError) -> str:
    return error.strerror or os.strerror(error.errno or 0)


def one_line(text: str, longest: int = 48) -> str:
    """Return `text` in one line without control characters, with at most `longest` characters."""
    spaced = "".join(" " if character.isspace() else character for character in text)
    shown = " ".join("".join(c for c in spaced if unicodedata.category(c)[0] != "C").split())
    return shown if len(shown) <= longest else shown[: longest - 1].rstrip() + "…"


def prepare_streams() -> None:
    """Print unencodable characters as question marks, and ignore writes to a closed stderr."""
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
    """Write `text` to stdout; a reader that stops early, such as `head`, is not an error.

    Raises:
        OutputError: stdout is closed or full; the message ends with `kept`.
    """
    try:
        stream = stdout()
        stream.write(text)
        stream.flush()
    except OutputError as error:
        raise OutputError(f"{error}{kept}") from None
    except OSError as error:
        _discard(sys.stdout)
        if not isinstance(error, BrokenPipeError):
            raise OutputError(f"cannot write the output: {reason_of(error)}{kept}") from None


def say(text: str) -> None:
    if sys.stderr is None:  # `print` would use stdout
        return
    try:
        print(as_typed(printable(text)), file=sys.stderr, flush=True)
    except OSError:
        _discard(sys.stderr)


@contextmanager
def busy(text: str, quiet: bool = False) -> Iterator[None]:
    """Show `text` on a terminal until the block ends, if it takes long to import or to draw
    something.
    """
    is_shown = not quiet and sys.stderr is not None and sys.stderr.isatty()
    if is_shown:
        print(text, end="", file=sys.stderr, flush=True)
    try:
        yield
    finally:
        if is_shown:
            print("\r\033[K", end="", file=sys.stderr, flush=True)


def fail(prog: str, message: object, code: int = USAGE) -> int:
    say(f"{prog}: error: {' '.join(str(message).split())}")
    return code


def _hang(line: str) -> str:
    """Return the indentation of the lines that continue a line, which may start with a bullet, or
    with a term and two spaces.
    """
    return " " * re.match(r"\s*(?=\S)(- |.{1,16}?\s{2,}(?=\S))?|", line).end()  # type: ignore[union-attr]


def _is_command(line: str) -> bool:
    return line.lstrip().startswith(("python", "torchrun", "#"))


class _Help(argparse.RawDescriptionHelpFormatter):
    """Keeps line breaks, and wraps paragraphs."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        """Wrap paragraphs at words. Commands stay as they are, because users copy them."""
        lines: list[str] = []
        before = hang = ""
        for line in text.splitlines():
            goes_on = line.startswith(hang) and re.match(NEW_ENTRY, line[len(hang) :]) is None
            if goes_on and len(before) > MIN_WRAPPED and not _is_command(before):
                lines[-1] += f" {line.strip()}"
            else:
                lines.append(line)
                hang = _hang(line)
            before = line
        filled = [
            line
            if _is_command(line)
            else fill(line, width, subsequent_indent=_hang(line), break_on_hyphens=False)
            for line in lines
        ]
        return "".join(f"{indent}{line}\n" for line in filled)


_MODULE = re.compile(
    r"python\s+-m\s+(bench|roofline|results|kernels)\b(?:(?:\.|\s+)(?!-)([\w<>-]+))?"
)
_is_short = False


def use_short_commands() -> None:
    """From now on, print commands as `roofmark gpus`, not as `python -m roofline gpus`."""
    global _is_short
    _is_short = True


def as_typed(text: str) -> str:
    """Return `text` with commands in the form that the user started with."""
    return _MODULE.sub(_short_command, text) if _is_short else text


def _short_command(match: re.Match[str]) -> str:
    package, name = match.groups(default="")
    if name == "list" and package != "bench":  # `roofmark list` lists operations
        name = "runs" if package == "results" else package
    return f"roofmark {name}".rstrip()


def install_command(extra: str) -> str:
    """Return the command that installs an extra of this project into the running Python."""
    root = Path(__file__).resolve().parents[2]
    is_clone = (root / "pyproject.toml").is_file()
    return f"{sys.executable} -m pip install " + (
        f"-e '{root}[{extra}]'" if is_clone else f"'roofmark[{extra}]'"
    )


class Parser(argparse.ArgumentParser):
    """A parser with one-line errors."""

    raises: type[Exception] | None = None
    """Exception of an error for callers in Python; None ends the process."""

    def __init__(self, *args: Any, **options: Any) -> None:
        # An abbreviation would break with the next option of the same start.
        options.setdefault("allow_abbrev", False)
        options.setdefault("formatter_class", _Help)
        super().__init__(*args, **options)
        # Else argparse takes `-7e9` and `-3%` for options.
        self._negative_number_matcher = re.compile(r"-\.?\d")
        self.late_help: dict[str, Callable[[], str]] = {}
        """Functions that return slow help texts, by option; only --help calls them."""

    def group(self, title: str) -> argparse._ArgumentGroup:
        """Return the group of options with this title; --help shows `output` and `advanced`
        last.
        """
        found = [group for group in self._action_groups if group.title == title]
        return found[0] if found else self.add_argument_group(title)

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse arguments. Print the help if a command with subcommands has no argument, and
        completions if a shell asks for them.
        """
        if "_ARGCOMPLETE" in os.environ:
            import argcomplete

            argcomplete.autocomplete(self)
        if self._subparsers is not None and not (sys.argv[1:] if args is None else args):
            self.print_help()
            sys.exit(OK)
        parsed = super().parse_args(args, namespace)
        if hasattr(parsed, "theme"):
            self.choose_theme(parsed)
        return parsed

    def choose_theme(self, options: Any) -> None:
        """Set the theme of a picture if none is given, and refuse one without a picture."""
        if options.theme is None:
            options.theme = "light"
        elif getattr(options, "output", "") is None:
            self.error("--theme has no effect without -o PATH")

    def error(self, message: str) -> NoReturn:
        said = one_line(printable(message), 1000)
        if self.raises:
            raise self.raises(said)
        sys.exit(fail(self.prog, said if said.endswith("?") else f"{said}; see {self.prog} --help"))

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Reject unknown arguments: argparse would use the name of the parent parser."""
        options_found, unknown = super().parse_known_args(args, namespace)
        if unknown:
            options = [word.partition("=")[0] for word in unknown if word.startswith("--")]
            known = [word for word in self._option_string_actions if word.startswith("--")]
            hints = [did_you_mean(word, known, 1) for word in options]
            self.error(
                "; ".join([f"unrecognized arguments: {' '.join(unknown)}", *filter(None, hints)])
            )
        return options_found, unknown

    def format_help(self) -> str:
        for name, text in self.late_help.items():
            self._option_string_actions[name].help = text()
        self._action_groups.sort(
            key=lambda group: (group.title == ADVANCED, group.title == "output")
        )
        return as_typed(super().format_help())

    def print_help(self, file: Any = None) -> None:
        try:
            print_out(self.format_help())
        except OutputError as error:
            sys.exit(fail(self.prog, error))


def add_format(parser: Parser) -> None:
    parser.group("output").add_argument(
        "--format", choices=TABLE_FORMATS, default="table", help=FORMAT_HELP
    )


def add_picture(parser: Parser, text: str = "save a plot: .png, .svg or .pdf") -> None:
    """Add the options of a plot, the one file that a command writes: its path and its colors."""
    parser.group("output").add_argument(
        "-o", "--output", "--plot", metavar="PATH", type=Path, help=text
    )
    text = "colors of the plot (default: light)"
    parser.group(ADVANCED).add_argument("--theme", choices=THEMES, help=text)


def drawn(draw: Callable[[Console], object]) -> str:
    """Return what `draw` prints; printing by rich would end the process if the reader is gone."""
    from rich.console import Console

    file = stdout()
    width = None if file.isatty() else WIDE
    console = Console(file=file, width=width, emoji=False, force_jupyter=False)
    try:
        with console.capture() as captured:
            draw(console)
    except OSError as error:
        raise OutputError(f"cannot write the output: {reason_of(error)}") from None
    lines = captured.get().split("\n")  # a line that starts with a command is that of a saved run
    return "\n".join(line if line.startswith("python -m") else as_typed(line) for line in lines)


def _discard(stream: TextIO) -> None:
    """Redirect a stream to nowhere, so that its buffer does not fail again at exit."""
    with suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
