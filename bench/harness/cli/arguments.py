"""The parser of an op command, and the ops, dtypes and cases that its options select."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any

from bench.harness.op import MAX_CASES, MAX_EXTENT, Case, Op, Option, parse_shapes, parse_size
from bench.harness.op import UsageError as UsageError
from bench.harness.op_file import command_of, options_of, own_families, own_file
from bench.harness.settings import MACHINE, SAVING, Settings
from kernels.versions import is_interpreted
from results.show.options import Names, Parameter, add, parameters
from results.show.spelling import did_you_mean, known_as
from results.show.terminal import ADVANCED, Parser
from roofline.work import DTYPE_BITS, dtype_named

DEFAULT_DTYPE = "bf16"


@dataclass(frozen=True)
class Request:
    """The rows of ops that a command measures; each command has its own help texts."""

    op: Names = None
    dtype: Annotated[Names, dtype_named] = None
    shape: Names = None
    size: Annotated[Names, "bytes of one operand, such as 256MiB or 1GB, instead of a shape"] = None
    provider: Names = None
    signature: Annotated[
        bool, "print the signature that your own function must have, then exit", bool, ADVANCED
    ] = False
    own: Mapping[str, Any] = field(default_factory=dict)
    """Parsed values by name, among them those of options that only some families have."""


EXIT_CODES = (
    "exit codes: 0 ok; 1 a wrong result; 2 usage; 3 no such device, or a busy one; "
    "130 interrupted, finished rows are saved"
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
        hint = did_you_mean(word, known) or f"choose from {', '.join(known)}"
        raise UsageError(f"unknown {what} '{word}'; {hint}")
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
    dtypes = list(dict.fromkeys(itertools.chain.from_iterable(op.dtypes for op in ops)))
    axes = " or ".join(dict.fromkeys("x".join(op.axes) for op in ops))
    names = ["op", "dtype", "shape"]
    if all(op.is_sized for op in ops):
        names.append("size")
    own = {
        option.name: Parameter(partial(option_help, option, dtypes), is_list=True, key=option.name)
        for option in options
    }
    add(
        parser,
        parameters(Request) | own,
        [*names, *own, "provider", "signature"],
        op=f"operations to measure: {', '.join(op.name for op in ops)}{all_ops}",
        dtype=f"data types: {', '.join(dtypes)} (default: {chosen_dtypes(None, ops[0])[0]})",
        shape=f"shapes {axes}, or one number for all dimensions; any number may be a range "
        f"start:stop:step, stop included",
        provider=partial(provider_help, family),
    )
    add(parser, parameters(Settings))
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


def scenario_parser(
    prog: str,
    doc: str | None,
    examples: Sequence[tuple[str, str]],
    options: Callable[..., Any],
    settings: Sequence[str] = (*MACHINE, *SAVING),
) -> Parser:
    """Return the parser of a command whose rows are not ops: `options`, and those of `settings`."""
    parser = command_parser(prog, "[options]", doc or "", examples)
    add(parser, parameters(options))
    add(parser, parameters(Settings), settings)
    return parser


def make_cases(family: str, op: Op, device_type: str, request: Request) -> list[Case]:
    """Return the requested cases of an op, by dtype; `device_type` selects the default shapes."""
    options = options_of(family)
    if request.size is not None and not op.is_sized:
        raise UsageError(f"--size does not apply to {op.name}; use --shape")
    if request.shape is not None and request.size is not None:
        raise UsageError("--shape and --size are mutually exclusive")
    cases: list[Case] = []
    try:
        for dtype in chosen_dtypes(request.dtype, op):
            words = request.shape or default_shapes(op, device_type, request)
            if request.size is not None:
                words = [_elements(text, dtype) for text in request.size]
            extents = parse_shapes(words, op)
            values_by_option = [
                dict.fromkeys(option.parse(word) for word in request.own.get(option.name) or ())
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


def default_shapes(op: Op, device_type: str, request: Request) -> Sequence[str]:
    """Return the default shapes of an op; only the first for Triton's interpreter, which takes
    seconds for a million elements.
    """
    shapes = op.default_shapes.get("cpu" if device_type == "cpu" else "cuda", ())
    is_of_triton = any(name.startswith("triton") for name in request.provider or ())
    is_slow = device_type == "cpu" and is_of_triton and is_interpreted()
    return shapes[:1] if is_slow else shapes


def chosen_ops(
    given: Sequence[str] | None, families: Mapping[str, Sequence[Op]]
) -> list[tuple[str, Op]]:
    """Return the ops asked for, each with its family, by default all of `families`.

    A word is the name of an op, or the path of a file with ops of one's own: `mine_op.py`,
    `mine_op.py:name`.
    """
    own = own_families(given, families) if given else {}
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
    usual = [DEFAULT_DTYPE] if DEFAULT_DTYPE in op.dtypes else op.dtypes[:1]
    return list(dict.fromkeys(given or usual))


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
