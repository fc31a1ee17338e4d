"""The parser of an op command, and the ops, dtypes and cases that its options select."""

from __future__ import annotations

import argparse
import itertools
import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

from bench.harness.data.inputs import FILLS
from bench.harness.op import MAX_CASES, MAX_EXTENT, Case, Op, Option, parse_shapes, parse_size
from bench.harness.op import UsageError as UsageError
from bench.harness.op_file import command_of, own_families, own_file
from results.show.spelling import did_you_mean, known_as
from results.show.terminal import ADVANCED, TABLE_FORMATS, Parser
from roofline.work import DTYPE_BITS, dtype_named

DEFAULT_DTYPE = "bf16"
PICTURES = (".png", ".svg", ".pdf")

MAX_BUDGET_S = 1e9
"""Thirty years."""

MAX_SEED = 2**63 - 1
"""The largest that every random generator of torch takes."""


class Words(argparse.Action):
    """Collects the values of a list option, separated by commas or spaces; the option may be
    repeated.

    `const` parses a value.
    """

    def __call__(
        self, parser: Any, namespace: argparse.Namespace, values: Any, option_string: Any = None
    ) -> None:
        given = values if isinstance(values, list) else [values]
        words = [word.strip() for word in ",".join(given).split(",") if word.strip()]
        if not words:
            raise argparse.ArgumentError(self, "the list is empty; name at least one")
        try:
            parsed = list(map(self.const, words)) if self.const else words
        except argparse.ArgumentTypeError as error:
            raise argparse.ArgumentError(self, str(error)) from None
        setattr(namespace, self.dest, [*(getattr(namespace, self.dest) or []), *parsed])


class Output(argparse.Action):
    """Stores the path of the run file; a path with the suffix of a picture is stored as
    `--plot`.
    """

    def __call__(
        self, parser: Any, namespace: argparse.Namespace, values: Any, option_string: Any = None
    ) -> None:
        is_picture = Path(values).suffix.lower() in PICTURES
        setattr(namespace, "plot" if is_picture else self.dest, values)


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


def device_name(text: str) -> str:
    """Return a device's name in torch's spelling."""
    if not re.fullmatch(r"cpu|cuda(:[0-9]{1,3})?", text):
        raise argparse.ArgumentTypeError(f"unknown device '{text}'; write cpu, cuda or cuda:N")
    return text


def thread_count(text: str) -> int:
    """Return a number of threads, at most one for each logical CPU of this process."""
    from bench.harness.device.device import usable_cores

    maximum = len(usable_cores().allowed)
    what = f"an integer from 1 to {maximum}, the logical CPUs of this process"
    return int(number(1, maximum, what, int)(text))


def path(text: str) -> Path | str:
    """Return a path; that of a directory to create stays text, because `Path` drops the slash at
    the end.

    An empty path, such as an unset shell variable, would be the current directory.
    """
    if not text:
        raise argparse.ArgumentTypeError("the path is empty")
    return text if text.endswith("/") and not Path(text).is_dir() else Path(text)


LIST: dict[str, Any] = {"metavar": "LIST", "action": Words, "nargs": "+"}
SWITCH: dict[str, Any] = {"action": "store_true"}

OPTIONS: dict[str, dict[str, Any]] = {
    "--op": LIST | {"help": "operations to measure"},
    "--dtype": LIST | {"const": dtype_named, "help": f"data types (default: {DEFAULT_DTYPE})"},
    "--shape": LIST | {"const": lambda word: re.sub(r"[X×*]", "x", word), "help": "shapes"},
    "--size": LIST | {"help": "bytes of one operand, such as 256MiB or 1GB, instead of a shape"},
    "--provider": LIST | {"help": "implementations to measure"},
    "--baseline": {"metavar": "NAME", "help": "provider to compare the others with"},
    "--signature": SWITCH
    | {"help": "print the signature that your own function must have, then exit"},
    "--device": {"type": device_name, "help": "cpu, cuda or cuda:N (default: first GPU, else CPU)"},
    "--threads": {
        "metavar": "N",
        "type": thread_count,
        "help": "number of CPU threads (default: torch's number, limited by affinity and cgroup "
        "quota)",
    },
    "--gpu": {
        "metavar": "SLUG",
        "help": "compare with the limits of this GPU instead of the device's; `python -m roofline "
        "gpus` lists all",
    },
    "--budget": {
        "metavar": "SECONDS",
        "type": number(1e-3, MAX_BUDGET_S, "a number of seconds from 0.001 to 1e9"),
        "help": "time limit for the whole run (default: none)",
    },
    "--seed": {
        "type": number(0, MAX_SEED, "an integer from 0 to 2^63 - 1", int),
        "default": 0,
        "help": "random seed for the inputs (default: 0)",
    },
    "--fill": {
        "choices": FILLS,
        "default": "uniform",
        "help": "input values (default: uniform in [-1, 1])",
    },
    "--cache": {
        "choices": ("cold", "warm"),
        "default": "cold",
        "help": "cold: calls rotate through copies of the inputs; warm: they reuse one copy "
        "(default: cold)",
    },
    "--timeout": {
        "metavar": "SECONDS",
        "type": number(0.1, MAX_BUDGET_S, "a number of seconds from 0.1 to 1e9"),
        # The first call compiles and tunes a kernel, which may take a minute; an endless loop takes
        # longer.
        "default": 120.0,
        "help": "time limit for importing or calling your own function (default: 120)",
    },
    "--tolerance": {
        "metavar": "FACTOR",
        "type": number(1, 1e6, "a number from 1 to 1e6"),
        "default": 1.0,
        "help": "multiply the allowed rounding error; rows that pass only because of this are "
        "flagged (default: 1)",
    },
    "--kernels": SWITCH
    | {"help": "after timing on a GPU, record which kernels one call launches; -v prints them"},
    "--format": {
        "choices": TABLE_FORMATS,
        "default": "table",
        "help": "output format on stdout (default: table)",
    },
    "--output": {
        "metavar": "PATH",
        "type": path,
        "action": Output,
        "help": "save the run to this file or directory; a .png, .svg or .pdf path works like "
        "--plot",
    },
    "--no-save": SWITCH | {"help": "do not save the run"},
    "--plot": {"metavar": "PATH", "type": path, "help": "save a roofline plot: .png, .svg or .pdf"},
    "--quiet": SWITCH | {"help": "suppress progress and notes"},
    "--verbose": SWITCH | {"help": "show how each row was verified and timed"},
}
"""What argparse is told of each option that more than one command takes."""

SHORT = {"--output": "-o", "--quiet": "-q", "--verbose": "-v"}

MACHINE = ("--device", "--threads", "--gpu", "--budget", "--seed")
INPUTS = ("--fill", "--cache", "--timeout", "--tolerance")
OUTPUT = ("--format", "--output", "--no-save", "--plot", "--quiet", "--verbose")


GROUPS = {
    "how to measure": ("--device", "--cache", "--budget"),
    "output": ("--format", "--output", "--plot"),
    ADVANCED: (
        "--signature",
        "--threads",
        "--gpu",
        "--seed",
        "--fill",
        "--timeout",
        "--tolerance",
        "--kernels",
        "--no-save",
        "--quiet",
        "--verbose",
        "--micro-batches",
        "--optimizer",
    ),
}
"""Options by their group in --help; all others say what to measure."""


def add(parser: Parser, *names: str, **changes: Any) -> None:
    """Add options by name, each to its group; `changes` replace what the table says of them.

    An option that is not in the table, but of one command alone, takes a list.
    """
    for name in names:
        title = next(
            (title for title, members in GROUPS.items() if name in members), "what to measure"
        )
        short = [SHORT[name]] if name in SHORT else []
        parser.group(title).add_argument(*short, name, **{**OPTIONS.get(name, LIST), **changes})


SHORT_LIST = 8
"""Maximum number of known names that a message lists besides suggestions."""

EXIT_CODES = (
    "exit codes: 0 ok; 1 a wrong result; 2 usage; 3 no such device; 130 interrupted, "
    "finished rows are saved"
)

NOTES = f"`python -m bench explain COLUMN` explains a column of the table\n\n{EXIT_CODES}"


def chosen(
    what: str, given: Sequence[str] | None, known: Collection[str], default: Iterable[str]
) -> list[str]:
    """Return the known names in a list option without duplicates, or the default."""
    return list(dict.fromkeys(one_of(what, word, known) for word in given or default))


def one_of(what: str, word: str, known: Collection[str]) -> str:
    """Return the known name that a word stands for."""
    found = word if word in known else known_as(word, known)
    if found not in known:
        hint = did_you_mean(word, known)
        listed = f"choose from {', '.join(known)}"
        said = f"{hint} {listed}" if hint and len(known) <= SHORT_LIST else hint or listed
        raise UsageError(f"unknown {what} '{word}'; {said}")
    return found


def build_parser(
    family: str,
    doc: str,
    examples: Sequence[tuple[str, str]],
    ops: Sequence[Op],
    options: Sequence[Option],
) -> Parser:
    """Return the parser of one family's command."""
    usage = "[--dtype LIST] [--shape LIST] [--provider LIST] [options]"
    parser = command_parser(command_of(family), usage, doc, examples)
    all_ops = " (default: all)" if len(ops) > 1 else ""
    add(parser, "--op", help=f"operations to measure: {', '.join(op.name for op in ops)}{all_ops}")
    dtypes = list(dict.fromkeys(itertools.chain.from_iterable(op.dtypes for op in ops)))
    add(parser, "--dtype", help=f"data types: {', '.join(dtypes)} (default: {DEFAULT_DTYPE})")
    axes = " or ".join(dict.fromkeys("x".join(op.axes) for op in ops))
    text = (
        f"shapes {axes}, or one number for all dimensions; any number may be a range "
        f"start:stop:step, stop included"
    )
    add(parser, "--shape", help=text)
    if all(op.is_sized for op in ops):
        add(parser, "--size")
    for option in options:
        add(parser, f"--{option.name}", dest=option.name)
        parser.late_help[f"--{option.name}"] = partial(option_help, option, dtypes)
    add(parser, "--provider")
    parser.late_help["--provider"] = partial(provider_help, family)
    add(parser, "--signature")
    add(parser, *MACHINE, *INPUTS, "--kernels", *OUTPUT)
    return parser


def option_help(option: Option, dtypes: Sequence[str]) -> str:
    """Return the help of a family's option, with its defaults by dtype."""
    others: dict[Any, list[str]] = {option.default(DEFAULT_DTYPE): []}
    for dtype in dtypes:
        others.setdefault(option.default(dtype), []).append(dtype)
    common, *rest = others
    usual = "; ".join([str(common), *(f"{value} for {', '.join(others[value])}" for value in rest)])
    return f"{option.help} (default: {usual})".replace("%", "%%")


def provider_help(family: str) -> str:
    """Return the help of --provider with the versions of the family's kernels."""
    from bench.harness.providers.registry import USER_KERNEL, kernel_versions, provider_names

    usual = "torch, newest triton" if kernel_versions(family) else "torch"
    names = ", ".join((*provider_names(family), USER_KERNEL, "package.module:function"))
    return f"implementations to measure: {names} (default: {usual})"


def command_parser(prog: str, usage: str, doc: str, examples: Sequence[tuple[str, str]]) -> Parser:
    """Return a parser without options; `examples` with their meanings follow the options of
    --help.
    """
    lines = [f"  # {meaning}\n  {prog} {arguments}" for arguments, meaning in examples]
    epilog = "\n".join([NOTES, *(["", "examples:", *lines] if lines else [])])
    return Parser(prog=prog, usage=f"{prog} {usage}", description=doc, epilog=epilog)


def make_cases(
    op: Op,
    options: Sequence[Option],
    device_type: str,
    dtypes: Sequence[str] | None = None,
    shapes: Sequence[str] | None = None,
    sizes: Sequence[str] | None = None,
    values: Mapping[str, Sequence[str] | None] = MappingProxyType({}),
) -> list[Case]:
    """Return the requested cases of an op, by dtype.

    Args:
        op: the op.
        options: the options of its family.
        device_type: selects the default shapes.
        dtypes: `--dtype`, None if not given.
        shapes: `--shape`, None if not given.
        sizes: `--size`, None if not given.
        values: values of the family's options by name.
    """
    if shapes is not None and sizes is not None:
        raise UsageError("--shape and --size are mutually exclusive")
    cases: list[Case] = []
    try:
        for dtype in chosen_dtypes(dtypes, op):
            words = shapes or op.default_shapes.get("cpu" if device_type == "cpu" else "cuda", ())
            if sizes is not None:
                words = [_elements(text, dtype) for text in sizes]
            extents = parse_shapes(words, op)
            values_by_option = [
                dict.fromkeys(option.parse(word) for word in values.get(option.name) or ())
                or [option.default(dtype)]
                for option in options
            ]
            for shape, picked in itertools.product(extents, itertools.product(*values_by_option)):
                named = {option.name: value for option, value in zip(options, picked, strict=True)}
                cases.append(Case.of(op.name, dtype, shape, options, named))
                if len(cases) > MAX_CASES:
                    raise UsageError(f"more than {MAX_CASES} cases requested; use fewer sizes")
    except ValueError as error:
        raise UsageError(str(error)) from None
    return cases


def chosen_ops(
    given: Sequence[str] | None, families: Mapping[str, Sequence[Op]]
) -> list[tuple[str, Op]]:
    """Return the ops asked for, each with its family, by default all of `families`.

    A word is the name of an op, or the path of a file with ops of one's own: `mine_op.py`,
    `mine_op.py:name`.
    """
    own = own_families(given or (), families)
    pairs = [(family, op) for family, ops in {**families, **own}.items() for op in ops]
    if not given:
        return pairs
    known = {op.name: (family, op) for family, op in pairs}
    names: list[str] = []
    for word in given:
        file = own_file(word)
        if file is None:
            names.append(one_of("op", word, known))
        else:
            there = [op.name for op in own[str(file[0])]]
            names += there if file[1] is None else [one_of(f"op of {file[0].name}", file[1], there)]
    return [known[name] for name in dict.fromkeys(names)]


def chosen_dtypes(given: Sequence[str] | None, op: Op) -> list[str]:
    for name in given or ():
        if name not in op.dtypes:
            if name in DTYPE_BITS:
                raise UsageError(
                    f"{op.name} has no dtype '{name}'; {op.name} has: {', '.join(op.dtypes)}"
                )
            one_of("dtype", name, op.dtypes)
    return list(dict.fromkeys(given or [DEFAULT_DTYPE]))


def _elements(text: str, dtype: str) -> str:
    bits = DTYPE_BITS[dtype]
    size_bytes = parse_size(text)
    if size_bytes * 8 % bits:
        raise UsageError(
            f"size '{text}' is not a multiple of the {dtype} element size ({bits // 8} bytes)"
        )
    if size_bytes > MAX_EXTENT:
        raise UsageError(f"size '{text}' exceeds 10^18 - 1 bytes")
    return str(size_bytes * 8 // bits)
