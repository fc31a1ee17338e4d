"""The parser of an op command, and the ops, dtypes and cases that its options name."""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from bench.harness.cli.options import DEFAULT_DTYPE, INPUTS, MACHINE, OUTPUT, add, add_list
from bench.harness.op import Case, Op, Option
from bench.harness.op_file import OpFileError, command_of, own_families, own_file
from bench.harness.providers.registry import USER_KERNEL, kernel_versions, provider_names
from bench.harness.shapes import MAX_CASES, MAX_EXTENT, parse_shapes, parse_size
from results.show.spelling import did_you_mean, known_as
from results.show.terminal import Parser
from roofline.work import DTYPE_BITS

SHORT_LIST = 8
"""Most known words that a message lists beside the nearest ones."""

EXIT_CODES = "exit codes: 0 ok; 1 a wrong result; 2 usage; 3 no such device; 130 interrupted, what was finished is kept"

NOTES = f"`python -m bench explain COLUMN` says what a column of the table means\n\n{EXIT_CODES}"

COLUMNS = f"""\
columns:
  median      seconds per launch, with the half width of its 95 % confidence interval
  TFLOP/s     declared FLOPs per second, in 10^12 (GFLOP/s: 10^9); an FMA counts as 2
  GB/s        compulsory bytes per second, in 10^9: each input read once, each output written once
  FLOP/B      arithmetic intensity, FLOPs over compulsory bytes
  bound       what limits at this intensity: memory, compute, mixed (within 10 %) or launch; `memory side` and
              `compute side` where less than 30 % of every ceiling is reached, so that something else holds it back
  MFU, MBU    share of the dense peak of the dtype, and of the memory bandwidth
  % roof      share of min(peak, intensity x bandwidth), with the peak of vector units for ops without a product
  first call  the first call's seconds: loading, compiling, tuning

{EXIT_CODES}"""


class UsageError(ValueError):
    """A request that cannot be met; the message is the one line that the user sees."""


def chosen(what: str, given: Sequence[str] | None, known: Collection[str], default: Iterable[str]) -> list[str]:
    """Return the words of a list option, each once, or the default ones.

    Raises:
        UsageError: a word that is not known; the message names the nearest, or lists those that are.
    """
    return list(dict.fromkeys(one_of(what, word, known) for word in given or default))


def one_of(what: str, word: str, known: Collection[str]) -> str:
    """Return the known name that a word stands for.

    Raises:
        UsageError: it stands for none; the message names the nearest, or lists those that are.
    """
    found = word if word in known else known_as(word, known)
    if found not in known:
        hint, listed = did_you_mean(word, known), f"there are: {', '.join(known)}"
        said = f"{hint} {listed}" if hint and len(known) <= SHORT_LIST else hint or listed
        raise UsageError(f"unknown {what} '{word}'; {said}")
    return found


def build_parser(
    family: str, doc: str, examples: Sequence[tuple[str, str]], ops: Sequence[Op], options: Sequence[Option]
) -> Parser:
    """Return the parser of one family's command."""
    usage = "[--dtype LIST] [--shape LIST] [--provider LIST] [options]"
    parser = command_parser(command_of(family), usage, doc, examples, COLUMNS)
    what = parser.add_argument_group("what to measure")
    all_ops = " (default: all)" if len(ops) > 1 else ""
    add(what, "--op", help=f"operations: {', '.join(op.name for op in ops)}{all_ops}")
    dtypes = list(dict.fromkeys(dtype for op in ops for dtype in op.dtypes))
    add(what, "--dtype", help=f"dtypes: {', '.join(dtypes)} (default: {DEFAULT_DTYPE})")
    axes = " or ".join(dict.fromkeys("x".join(op.axes) for op in ops))
    text = f"shapes {axes}, a single number, or a range start:stop:step in place of any number"
    add(what, "--shape", help=text)
    if all(op.is_sized for op in ops):
        add(what, "--size")
    for option in options:
        text = f"{option.help} (default: {option.default_text(DEFAULT_DTYPE, dtypes)})"
        add_list(what, f"--{option.name}", text.replace("%", "%%"))
    add(what, "--provider")
    parser.late_help["--provider"] = partial(provider_help, family)
    add(what, "--baseline", "--signature")
    add(parser.add_argument_group("how to measure"), *MACHINE, *INPUTS, "--kernels")
    add(parser.add_argument_group("what to do with it"), *OUTPUT)
    return parser


def provider_help(family: str) -> str:
    """Return the help of --provider, which names the versions of the family's kernels."""
    usual = "torch, newest triton" if kernel_versions(family) else "torch"
    names = ", ".join((*provider_names(family), USER_KERNEL, "package.module:function"))
    return f"who computes: {names} (default: {usual})"


def command_parser(prog: str, usage: str, doc: str, examples: Sequence[tuple[str, str]], notes: str = NOTES) -> Parser:
    """Return a parser without options; `notes`, then `examples` with their meanings, follow the options of --help."""
    width = max((len(arguments) for arguments, _ in examples), default=0)
    lines = [f"  {prog} {arguments:<{width}}  {meaning}" for arguments, meaning in examples]
    epilog = "\n".join([notes, *(["", "examples:", *lines] if lines else [])])
    return Parser(prog=prog, usage=f"{prog} {usage}", description=doc, epilog=epilog)


@dataclass(frozen=True)
class CaseWords:
    """The words of the options that name cases; None where an option is not given."""

    dtypes: Sequence[str] | None = None
    shapes: Sequence[str] | None = None
    sizes: Sequence[str] | None = None
    options: Mapping[str, Sequence[str] | None] = field(default_factory=dict)
    """By `Option.dest`."""

    @classmethod
    def of(cls, args: argparse.Namespace, options: Sequence[Option]) -> CaseWords:
        """Read the options of a command line; a family whose ops take no bytes has no `--size`."""
        own = {option.dest: getattr(args, option.dest, None) for option in options}
        return cls(args.dtype, args.shape, getattr(args, "size", None), own)


def make_cases(
    ops: Sequence[Op], options: Sequence[Option], asked: CaseWords, device_type: str
) -> list[tuple[Op, Case]]:
    """Return the cases that are asked for, op by op, dtype by dtype.

    Raises:
        UsageError: a dtype, a shape, a size or an option's value that does not exist.
    """
    cases: list[tuple[Op, Case]] = []
    try:
        for op in ops:
            for dtype in chosen_dtypes(asked.dtypes, op):
                shapes = _shapes(asked, op, dtype, device_type)
                values = [_values(asked.options.get(option.dest), option, dtype) for option in options]
                for shape, one in itertools.product(shapes, itertools.product(*values)):
                    cases.append((op, Case.of(op.name, dtype, shape, options, dict(one))))
                    if len(cases) > MAX_CASES:
                        raise UsageError(f"more than {MAX_CASES} cases are asked for; use fewer sizes")
    except ValueError as error:
        raise UsageError(str(error)) from None
    return cases


def chosen_ops(given: Sequence[str] | None, families: Mapping[str, Sequence[Op]]) -> list[tuple[str, Op]]:
    """Return the ops asked for, each with its family, by default all of `families`.

    A word is the name of an op, or the path of a file with ops of one's own: `mine_op.py`, `mine_op.py:name`.

    Raises:
        UsageError: an op does not exist, or a file cannot be used.
    """
    if not given:
        return [(family, op) for family, ops in families.items() for op in ops]
    try:
        own = own_families(given, families)
    except OpFileError as error:
        raise UsageError(str(error)) from None
    known = {op.name: (family, op) for family, ops in {**families, **own}.items() for op in ops}
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
    """Return the dtypes asked for.

    Raises:
        UsageError: one of them is unknown, or the op does not have it.
    """
    for name in given or ():
        if name in DTYPE_BITS and name not in op.dtypes:
            raise UsageError(f"{op.name} has no dtype '{name}'; {op.name} has: {', '.join(op.dtypes)}")
        one_of("dtype", name, op.dtypes)
    return list(dict.fromkeys(given or [DEFAULT_DTYPE]))


def _values(given: Sequence[str] | None, option: Option, dtype: str) -> list[tuple[str, Any]]:
    values = dict.fromkeys(option.parse(word) for word in given or ()) or [option.default(dtype)]
    return [(option.name, value) for value in values]


def _shapes(asked: CaseWords, op: Op, dtype: str, device_type: str) -> list[dict[str, int]]:
    if asked.sizes is None:
        default = op.default_shapes.get("cpu" if device_type == "cpu" else "cuda", ())
        return parse_shapes(asked.shapes or default, op)
    if asked.shapes is not None:
        raise UsageError("--shape and --size exclude each other; give one of them")
    return parse_shapes([_elements(text, dtype) for text in asked.sizes], op)


def _elements(text: str, dtype: str) -> str:
    """Return the count of elements that fill a size given in bytes."""
    bits, size_bytes = DTYPE_BITS[dtype], parse_size(text)
    if size_bytes * 8 % bits:
        raise UsageError(f"size '{text}' is no whole number of {dtype} elements of {bits // 8} bytes")
    if size_bytes > MAX_EXTENT:
        raise UsageError(f"size '{text}' is more than 10^18 - 1 bytes; use a smaller one")
    return str(size_bytes * 8 // bits)
