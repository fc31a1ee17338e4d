"""What is measured: an operation, and one case of it. No torch here, so that `--help` answers at once."""

from __future__ import annotations

import importlib
import itertools
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Protocol

from roofline.work import Work

if TYPE_CHECKING:
    from torch import Tensor

    Launch = tuple[tuple[Tensor, ...], Tensor]
    """The inputs of one launch and its result."""

PEAKS = ("matrix", "vector")
"""Whose peak may judge an op, see `Op.units`; a record holds it."""

FLOAT_DTYPES = ("fp64", "fp32", "fp16", "bf16")


def square(extents: tuple[int, ...], axes: tuple[str, ...]) -> tuple[int, ...]:
    """Return one extent for each axis; a single number stands for all of them."""
    if len(extents) == 1:
        return extents * len(axes)
    if len(extents) != len(axes):
        raise ValueError(f"write one number or {'x'.join(axes)}")
    return extents


ROW_SHAPES = {
    "cpu": ("1024x1024", "1024x8192", "64x131072"),
    "cuda": ("131072x1024", "32768x4096", "16384x8192", "4096x32768", "2048x65536", "1024x131072", "1024x262144"),
}
"""Matrices that are worked on row by row. On a GPU they take 256 MiB in bf16, and twice that where the rows would be
fewer than are needed to fill it evenly."""

ROWS = 4096
"""Rows of a matrix of which only the width is given: the tokens of a usual batch."""


def rows_by_width(extents: tuple[int, ...], axes: tuple[str, ...]) -> tuple[int, ...]:
    """Return rows and columns; a single number is the columns of `ROWS` rows."""
    if len(extents) == 1:
        return ROWS, extents[0]
    if len(extents) != 2:
        raise ValueError(f"write the width of {ROWS} rows or {'x'.join(axes)}")
    return extents


def sequences_by_length(extents: tuple[int, ...], axes: tuple[str, ...]) -> tuple[int, ...]:
    """Return a number of sequences and their length; a single number is the length of one sequence."""
    if len(extents) > 2:
        raise ValueError(f"write {'x'.join(axes)}, sequences and the length of each, or the length of one sequence")
    return (1, *extents) if len(extents) == 1 else extents


def whole_number(word: str, most: int, what: str = "") -> int:
    """Return a number from 1 to `most`, or raise a `ValueError` whose message begins with `what`."""
    if not (word.isascii() and word.isdigit() and len(word) <= len(str(most)) and 0 < int(word) <= most):
        raise ValueError(f"{what}'{word}' must be a whole number from 1 to {most}")
    return int(word)


def known_word(word: str, known: Sequence[str], what: str) -> str:
    """Return a word that is one of some, or raise a `ValueError` that lists them."""
    if word not in known:
        raise ValueError(f"unknown {what} '{word}'; choose from {', '.join(known)}")
    return word


def library(module: str, name: str, *more: Any, **options: Any) -> Callable[..., Any]:
    """Return a call of a library's function, which is imported when it is called first: `more` follows the inputs."""
    return partial(_call, module, name, more, options)


def _call(module: str, name: str, more: tuple[Any, ...], options: Mapping[str, Any], *inputs: Any, **out: Any) -> Any:
    return _imported(module, name)(*inputs, *more, **options, **out)


@cache
def _imported(module: str, name: str) -> Callable[..., Any]:
    function: Callable[..., Any] = getattr(importlib.import_module(module), name)
    return function


def rows_of(*indices: int) -> Callable[..., tuple[tuple[Tensor, ...], Tensor]]:
    """Return `Op.take_rows` of an op: the inputs at `indices` have the rows of the result, the others belong to all."""
    return partial(_take_rows, indices)


def _take_rows(
    indices: tuple[int, ...], inputs: tuple[Tensor, ...], out: Tensor, rows: Any
) -> tuple[tuple[Tensor, ...], Tensor]:
    return tuple(x[rows] if index in indices else x for index, x in enumerate(inputs)), out[rows]


class UnsupportedCaseError(ValueError):
    """This op cannot be computed at this shape, dtype or layout; the message says why in one line."""


@dataclass(frozen=True)
class Option:
    """A command-line option that only one family has; every case carries one of its values."""

    name: str
    help: str
    parse: Callable[[str], Any]
    """Turns one word into a value; raises `ValueError` with what is allowed. The text of a value, `str(value)`, must
    give that value again: so it is passed on to other processes. Records keep it as JSON."""
    default: Callable[[str], Any]
    """The value when none is given, by dtype."""
    label: Callable[[Any], str] | None = None
    """How a value is shown in a case's name, empty where it is the usual one. None: `name=value`, and nothing where it
    is the default."""
    label_order: int = 0
    """Where the label stands in the name, the lowest first; those of one place in the order of the options."""


class TensorMaker(Protocol):
    """Makes one input: `make(extent, ...)` returns a filled tensor of that shape in the case's dtype.

    Another dtype may be asked for. `int8` uses the range of the numbers, as quantized weights do; `int64` holds
    whole numbers from 0 to 2^63 - 2 for labels and seeds, and an op takes the remainder that it needs.
    """

    def __call__(self, *shape: int, dtype: str | None = None) -> Tensor:
        """Return a contiguous tensor of `shape`."""


@dataclass(frozen=True)
class Case:
    """An op at one dtype and shape. Where the family has options, `Case.of` makes it, with the labels of its name."""

    op: str
    dtype: str
    shape: Mapping[str, int]
    """Extent of each axis, in the order of the op's axes."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """What else tells one case from another, such as layout and batch."""
    labels: tuple[str, ...] = ()
    """How the name shows the options that have other than the usual values, see `Option.label`."""

    @classmethod
    def of(
        cls, op: str, dtype: str, shape: Mapping[str, int], options: Sequence[Option], values: Mapping[str, Any]
    ) -> Case:
        """Return the case of an op whose family has these options, with a value for each of them."""
        chosen = {option.name: values[option.name] for option in options}
        labels = []
        for option in sorted(options, key=lambda option: option.label_order):
            value = chosen[option.name]
            if option.label is not None:
                labels.append(option.label(value))
            elif value != option.default(dtype):
                labels.append(f"{option.name}={value}")
        return cls(op, dtype, shape, chosen, tuple(filter(None, labels)))

    @property
    def name(self) -> str:
        """The shape in one word, `4096x4096x4096`; options other than the usual ones follow after a colon."""
        return ":".join(["x".join(str(extent) for extent in self.shape.values()), *self.labels])


@dataclass(frozen=True)
class Op:
    """An operation: how to make its inputs, what is true, what it costs, how torch computes it.

    The functions take and return tensors of the case's dtype on the device under test. `reference` is also called
    with fp64 inputs, where its result is the truth that every provider is held against; int64 and int32 inputs, which
    are labels, seeds and places, stay as they are.
    """

    name: str
    formula: str
    """What is computed, in one line, with the shape of each operand."""
    axes: tuple[str, ...]
    """Names of the axes, in the order in which a shape is written: `("m", "n", "k")`."""
    work: Callable[[Case], Work]
    """FLOPs and compulsory bytes of one launch."""
    make_inputs: Callable[[Case, TensorMaker], tuple[Tensor, ...]]
    output_shape: Callable[[Case], tuple[int, ...]]
    reference: Callable[..., Tensor]
    """`reference(*inputs)` returns the result; plain torch, differentiable in precision only by its inputs."""
    eager: Callable[..., Any]
    """`eager(*inputs, out=out)`: what a torch user would call. It writes into `out`, or returns the result where torch
    cannot write it there without a copy; a tuple of tensors is what the output stacks."""
    expression: Callable[..., Any] | None = None
    """What `torch.compile` compiles, `expression(*inputs)`, a tensor or such a tuple; None: `reference`."""
    writes_out_when_compiled: bool = True
    """Whether a compiled pointwise store may go straight into `out`; a library call returns a fresh tensor."""
    output_dtype: Callable[[str], str] = lambda dtype: dtype
    outputs: int = 1
    """How many results of one shape the output stacks along its first axis; the scale of each is judged by itself."""
    dtypes: tuple[str, ...] = FLOAT_DTYPES
    extents: Callable[[tuple[int, ...], tuple[str, ...]], tuple[int, ...]] = square
    """Turns what was written, `4096` or `4096x1024`, into one extent for each axis."""
    is_sized: bool = False
    """Whether a case may also be asked for by the bytes of one operand, `--size 256MiB`."""
    default_shapes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Shapes measured when none is asked for, per device type."""
    is_in_suite: bool = True
    """Whether `bench suite` measures it; what holds a whole model would take the time of all others."""
    terms: Callable[[Case], int] = lambda case: 1
    """How many products or addends one output element sums; 1 for elementwise ops. Sets the error bound."""
    intermediate_roundings: int = 0
    """How often torch rounds to the case's dtype before the final store, where it runs as several kernels."""
    units: str | None = None
    """Whose peak judges it: `matrix` (tensor cores) for what multiplies matrices, `vector` for all else. None: an op
    whose elements sum nothing (`terms` of 1 and no `magnitude`) is `vector`; one that sums may be a product of
    matrices, and is held against the higher peak, that of products."""
    tolerance: float = 1.0
    """Times the error that rounding explains which a result may have: `--tolerance` sets it, no op file does."""
    magnitude: Callable[..., Tensor] | None = None
    """`magnitude(truth, *inputs)` in fp64: what the errors of fp32 arithmetic are proportional to, for each element of
    the output, where that is neither the operands' size nor a sum of products. See `bench.harness.data.verify`."""
    check_result: Callable[[Case, Launch, Launch | None], str | None] | None = None
    """Where the result is random, in place of the comparison with `reference`: `check_result(case, launch, earlier)`
    returns what is wrong, or None. `earlier` is a launch on other inputs, where there was one."""
    take_rows: Callable[[tuple[Tensor, ...], Tensor, Any], tuple[tuple[Tensor, ...], Tensor]] | None = None
    """`take_rows(inputs, out, rows)` returns the inputs and the part of `out` that belong to `rows` (an index of
    the output's rows), so that a large result can be checked piece by piece. None: checked in one piece."""
    rows: Callable[[Case], int] = lambda case: next(iter(case.shape.values()))
    """How many rows `take_rows` can choose from; by default the extent of the first axis."""
    defined_in: tuple[str, ...] = ()
    """Modules of this project, by their full names, that say what is computed, beside the files of the functions."""
    check: Callable[[Case, str], None] = lambda case, device_type: None
    """Raises `UnsupportedCaseError` where this op has no such case."""


# ---- what a user writes for a size -----------------------------------------------------------------------------------

MAX_CASES = 10_000
"""More cases than this are a typing error in a range, not a plan."""

MAX_EXTENT = 10**18 - 1
"""No axis is longer: no machine has an exabyte."""

UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}


class ShapeError(ValueError):
    """A size that cannot be one; the message says which and what to write instead."""


def parse_shapes(words: Iterable[str], op: Op) -> list[dict[str, int]]:
    """Return the shapes that `words` ask for, axis name to extent, each once, in the order written.

    Args:
        words: single numbers, `MxNxK`, and ranges `start:stop:step` (stop included) in place of any number.
        op: names the axes and says what a single number means.
    """
    shapes: dict[tuple[int, ...], None] = {}
    for word in words:
        axes = [_extents(part, word) for part in word.split("x")]
        if len(shapes) + math.prod(len(axis) for axis in axes) > MAX_CASES:
            raise ShapeError(f"shape '{word}' makes more than {MAX_CASES} cases; use a larger step")
        for extents in itertools.product(*axes):
            try:
                shape = op.extents(extents, op.axes)
            except ValueError as error:
                raise ShapeError(f"shape '{word}' does not fit {op.name}: {error}") from None
            if max(shape) > MAX_EXTENT:
                raise ShapeError(f"shape '{word}' has more than 10^18 - 1 elements along one axis; use a smaller one")
            shapes[shape] = None
    return [dict(zip(op.axes, extents, strict=True)) for extents in shapes]


def parse_batch_shape(word: str, maximum: int = 10**7) -> tuple[int, int]:
    """Return sequences and tokens of `BxS`, each from 1 to `maximum`; raise `ShapeError` if it is no such shape."""
    match = re.fullmatch(r"([0-9]{1,9})x([0-9]{1,9})", word)
    extents = (int(match[1]), int(match[2])) if match else (0, 0)
    if not all(1 <= extent <= maximum for extent in extents):
        raise ShapeError(f"shape '{word}' must be BxS, sequences x tokens, each from 1 to {maximum}; write 8x512")
    return extents


def _extents(text: str, word: str) -> Sequence[int]:
    """Return the values of one axis: a number, or a range."""
    fields = text.split(":")
    if match := re.fullmatch(r"([0-9]{1,9})([kKmM])", text):
        count, power = int(match[1]), "km".index(match[2].lower()) + 1
        raise ShapeError(f"shape '{word}' could be two: did you mean {count * 1024**power} or {count * 1000**power}?")
    if not all(re.fullmatch(r"[0-9]{1,18}", field) for field in fields) or any(int(field) == 0 for field in fields):
        raise ShapeError(
            f"shape '{word}' is not a size: each extent must be a whole number from 1 to 10^18 - 1; "
            "write 4096, 4096x4096x1024 or 1024:4096:1024"
        )
    if len(fields) == 1:
        return [int(fields[0])]
    if len(fields) != 3 or int(fields[0]) > int(fields[1]):
        raise ShapeError(f"range '{text}' must be start:stop:step with start <= stop, for example 1024:4096:1024")
    start, stop, step = map(int, fields)
    return range(start, stop + 1, step)


def parse_size(text: str) -> int:
    """Return the bytes of a size such as `256MiB`, `1GB` or `4096`; raise `ShapeError` if it is none."""
    match = re.fullmatch(r"([0-9]{1,15}(?:\.[0-9]{1,9})?)\s*([A-Za-z]*)", text)
    if not match or match[2].upper() not in UNITS:
        raise ShapeError(f"size '{text}' is not one; write a number and B, KB, MB, GB, KiB, MiB or GiB: 256MiB")
    size_bytes = Fraction(match[1]) * UNITS[match[2].upper()]
    if size_bytes < 1 or size_bytes.denominator != 1:
        raise ShapeError(f"size '{text}' must be a whole number of bytes, 1 or more")
    return int(size_bytes)
