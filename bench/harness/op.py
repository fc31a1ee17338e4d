"""Definitions of operations and cases. Must not import torch, so that `--help` is fast."""

from __future__ import annotations

import importlib
import itertools
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol

from roofline.work import Work

if TYPE_CHECKING:
    from torch import Tensor

    Inputs = tuple[Tensor, ...]
    """The inputs of one launch."""
    Launch = tuple[Inputs, Tensor]
    """The inputs of one launch and its result."""

PEAKS = ("matrix", "vector")
"""Values of `Op.units`."""

FLOAT_DTYPES = ("fp64", "fp32", "fp16", "bf16")


def square(extents: tuple[int, ...], axes: tuple[str, ...]) -> tuple[int, ...]:
    """Return one extent for each axis; a single number is expanded to all axes."""
    if len(extents) == 1:
        return extents * len(axes)
    if len(extents) != len(axes):
        raise ValueError(f"write one number or {'x'.join(axes)}")
    return extents


ROW_SHAPES = {
    "cpu": ("1024x1024", "1024x8192", "64x131072"),
    "cuda": (
        "131072x1024",
        "32768x4096",
        "16384x8192",
        "4096x32768",
        "2048x65536",
        "1024x131072",
        "1024x262144",
    ),
}
"""Default shapes of ops on rows of matrices. On a GPU they take 256 MiB in bf16, or twice that if
fewer rows would not fill it evenly."""

ROWS = 4096
"""Rows of a matrix if only the width is given: the tokens of a typical batch."""


def rows_by_width(extents: tuple[int, ...], axes: tuple[str, ...]) -> tuple[int, ...]:
    """Return rows and columns; a single number is the width of `ROWS` rows."""
    if len(extents) == 1:
        return ROWS, extents[0]
    if len(extents) != 2:
        raise ValueError(f"write the width of {ROWS} rows or {'x'.join(axes)}")
    return extents


def sequences_by_length(extents: tuple[int, ...], axes: tuple[str, ...]) -> tuple[int, ...]:
    """Return a number of sequences and their length; a single number is the length of one
    sequence.
    """
    if len(extents) > 2:
        raise ValueError(
            f"write {'x'.join(axes)}, sequences and the length of each, or the length of one "
            f"sequence"
        )
    return (1, *extents) if len(extents) == 1 else extents


def parse_count(text: str, maximum: int, name: str = "") -> int:
    """Parse an integer from 1 to `maximum`; the message of the `ValueError` starts with `name`."""
    if not re.fullmatch(r"[0-9]{1,18}", text) or not 0 < int(text) <= maximum:
        raise ValueError(f"{name}'{text}' must be an integer from 1 to {maximum}")
    return int(text)


def parse_choice(text: str, choices: Sequence[str], name: str) -> str:
    """Return one of the choices, or raise a `ValueError` that lists them."""
    if text not in choices:
        raise ValueError(f"unknown {name} '{text}'; choose from {', '.join(choices)}")
    return text


def library(module: str, name: str, *more: Any, **options: Any) -> Callable[..., Any]:
    """Return a library's function, imported at its first call; the arguments `more` follow the
    inputs.
    """

    def call(*inputs: Any, **out: Any) -> Any:
        return _imported(module, name)(*inputs, *more, **options, **out)

    return call


@cache
def _imported(module: str, name: str) -> Callable[..., Any]:
    function: Callable[..., Any] = getattr(importlib.import_module(module), name)
    return function


def rows_of(*indices: int) -> Callable[..., Launch]:
    """Return an `Op.take_rows` for an op whose inputs at `indices` have the rows of the result."""

    def take(inputs: Inputs, out: Tensor, rows: Any) -> Launch:
        part = tuple(x[rows] if index in indices else x for index, x in enumerate(inputs))
        return part, out[rows]

    return take


class UnsupportedCaseError(ValueError):
    """This op does not support the shape, dtype or layout; the message has the reason."""


@dataclass(frozen=True)
class Option:
    """A command-line option of one family; every case has one of its values."""

    name: str
    help: str
    parse: Callable[[str], Any]
    """Parses a value; raises `ValueError` with the allowed values. `parse(str(value))` must return
    the value again, because other processes get it as text. Records save it as JSON."""
    default: Callable[[str], Any]
    """Default value by dtype."""
    label: Callable[[Any], str] | None = None
    """Text of a value in a case's name, empty for the usual one. None: `name=value`, except for the
    default.
    """


class TensorMaker(Protocol):
    """Makes one input: `make(extent, ...)` returns a filled tensor of that shape in the case's
    dtype.

    `dtype` selects another dtype. `int8` uses its full range, as quantized weights do; `int64` has
    integers from 0 to 2^63 - 2 for labels and seeds, of which an op takes the remainder.
    """

    def __call__(self, *shape: int, dtype: str | None = None) -> Tensor:
        """Return a contiguous tensor of `shape`."""


@dataclass(frozen=True)
class Case:
    """An op at one dtype and shape. If the family has options, use `Case.of`."""

    op: str
    dtype: str
    shape: Mapping[str, int]
    """Extent of each axis, in the order of the op's axes."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Values of the family's options, such as layout and batch."""
    labels: tuple[str, ...] = ()
    """Labels of unusual option values, see `Option.label`."""

    @classmethod
    def of(
        cls,
        op: str,
        dtype: str,
        shape: Mapping[str, int],
        options: Sequence[Option],
        values: Mapping[str, Any] = MappingProxyType({}),
    ) -> Case:
        """Return a case; options that `values` lacks have their defaults."""
        chosen = {}
        labels = []
        for option in options:
            usual = option.default(dtype)
            value = values.get(option.name, usual)
            chosen[option.name] = value
            if option.label is not None:
                labels.append(option.label(value))
            elif value != usual:
                labels.append(f"{option.name}={value}")
        return cls(op, dtype, shape, chosen, tuple(filter(None, labels)))

    @property
    def name(self) -> str:
        """The shape, `4096x4096x4096`, followed by a colon and the label of each unusual option."""
        return ":".join(["x".join(str(extent) for extent in self.shape.values()), *self.labels])


@dataclass(frozen=True)
class Op:
    """An operation: its inputs, reference, work, and computation in torch.

    The functions take and return tensors of the case's dtype on the device under test. `reference`
    is also called with fp64 inputs, and providers are checked against this result; inputs of bool,
    uint8, int64 and int32, which are masks, packed numbers, labels, seeds and indices, are neither
    converted nor counted in the error bound: an op whose error grows with them, as with positions,
    needs a `magnitude`.
    """

    name: str
    formula: str
    """One line with the formula and the shape of each operand."""
    axes: tuple[str, ...]
    """Names of the axes in the order of a shape: `("m", "n", "k")`."""
    work: Callable[[Case], Work]
    """FLOPs and compulsory bytes of one launch."""
    make_inputs: Callable[[Case, TensorMaker], Inputs]
    output_shape: Callable[[Case], tuple[int, ...]]
    reference: Callable[..., Tensor]
    """`reference(*inputs)` returns the result; plain torch, differentiable in precision only by its
    inputs.
    """
    eager: Callable[..., Any]
    """`eager(*inputs, out=out)`, as a torch user would call it; with `result_in`, `eager(*inputs)`.
    It writes into `out`, or returns the result if torch would need a copy to write it there; the
    output stacks a tuple of tensors."""
    expression: Callable[..., Any] | None = None
    """`expression(*inputs)` for `torch.compile`, returns a tensor or a tuple of tensors; None:
    `reference`.
    """
    writes_out_when_compiled: bool = True
    """Whether a compiled pointwise store may write into `out`; a library call returns a new
    tensor.
    """
    output_dtype: Callable[[str], str] = lambda dtype: dtype
    outputs: int = 1
    """Number of equally shaped results that the output stacks along its first axis; the scale of
    each is checked.
    """
    dtypes: tuple[str, ...] = FLOAT_DTYPES
    extents: Callable[[tuple[int, ...], tuple[str, ...]], tuple[int, ...]] = square
    """Converts the numbers of a shape, `4096` or `4096x1024`, to one extent per axis."""
    is_sized: bool = False
    """Whether `--size 256MiB` may give the bytes of one operand."""
    default_shapes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Default shapes by device type."""
    is_in_suite: bool = True
    """Whether `bench suite` measures it; a whole model would take the time of all other ops."""
    terms: Callable[[Case], int] = lambda case: 1
    """Number of products or addends per output element; 1 for elementwise ops. Sets the error
    bound.
    """
    intermediate_roundings: int = 0
    """Number of roundings to the case's dtype before the final store, if torch runs several
    kernels.
    """
    units: str | None = None
    """Peak of the op: `matrix` (tensor cores) for matmuls, `vector` for all else. None: `vector` if
    the op sums nothing (`terms` of 1 and no `magnitude`), else `matrix`, the higher peak."""
    tolerance: float = 1.0
    """Factor on the allowed rounding error, set by `--tolerance` and not by op files."""
    magnitude: Callable[..., Tensor] | None = None
    """`magnitude(truth, *inputs)` in fp64: value to which the fp32 error of each output element is
    proportional, if that is neither the operands' size nor a sum of products. See
    `bench.harness.data.verify`."""
    check_result: Callable[[Case, Launch, Launch | None], str | None] | None = None
    """Check of a random or encoded result instead of `reference`: `check_result(case, launch,
    earlier)` returns the error, or None. `earlier` is a launch on other inputs, or None."""
    take_rows: Callable[[Inputs, Tensor, Any], Launch] | None = None
    """`take_rows(inputs, out, rows)` returns the inputs and the part of `out` of these `rows` (an
    index of the output's rows), to check a large result in parts. None: it is checked as a
    whole."""
    rows: Callable[[Case], int] = lambda case: next(iter(case.shape.values()))
    """Number of rows for `take_rows`; by default the extent of the first axis."""
    columns_of: int | None = None
    """Index of the input whose last axis is that of the result, which is linear in it: B of A B.
    With `take_rows`, sums of blocks of columns verify a product that is too large for all rows."""
    stress: Mapping[str, Callable[..., object]] = field(default_factory=dict)
    """Hard inputs by name. Each function gets the inputs of one row, which `take_rows` returns as
    views, or all inputs without `take_rows`, and changes them in place. `bench.harness.data.stress`
    has common ones.
    """
    stress_all: Callable[..., object] | None = None
    """Changes all inputs in place before those of `stress` change rows: what the rows share."""
    integer_stress: Mapping[str, Callable[..., object]] = field(default_factory=dict)
    """`stress` for a first input of integers."""
    in_place: bool = False
    """Whether providers may change the inputs, which are then restored before each sample. A
    function that returns None has written its result into the first one."""
    result_in: Callable[[Inputs], Tensor] | None = None
    """Returns the result from the inputs after a launch, for an op in place: no provider gets
    `out`."""
    defined_in: tuple[str, ...] = ()
    """Full names of modules of this project that define the op, besides the files of its
    functions.
    """
    check: Callable[[Case, str], None] = lambda case, device_type: None
    """Raises `UnsupportedCaseError` if the op does not support the case."""

    def part(self, inputs: Inputs, out: Tensor, rows: slice) -> Launch:
        """Return the inputs and the part of `out` of these rows; all without `take_rows`."""
        return self.take_rows(inputs, out, rows) if self.take_rows else (inputs, out)


Families = Mapping[str, tuple[Op, ...]]
"""The ops of each family."""

MAX_CASES = 10_000
"""More cases are a mistyped range."""

MAX_EXTENT = 10**18 - 1
"""No axis is longer: no machine has an exabyte."""

UNITS = {
    "": 1,
    "B": 1,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "KIB": 2**10,
    "MIB": 2**20,
    "GIB": 2**30,
}


class UsageError(ValueError):
    """An invalid request; the message is the line that the user sees."""


class ShapeError(UsageError):
    """An invalid shape or size; the message says what is expected."""


def parse_shapes(words: Iterable[str], op: Op) -> list[dict[str, int]]:
    """Return the shapes, axis name to extent, each once, in order.

    `words` are single numbers or `MxNxK`; any number may be a range `start:stop:step`, stop
    included. `Op.extents` defines the meaning of a single number.
    """
    shapes: dict[tuple[int, ...], None] = {}
    for word in words:
        axes = [_extents(part, word) for part in re.split("[xX×*]", word)]
        if len(shapes) + math.prod(len(axis) for axis in axes) > MAX_CASES:
            raise ShapeError(f"shape '{word}' makes more than {MAX_CASES} cases; use a larger step")
        for extents in itertools.product(*axes):
            try:
                shape = op.extents(extents, op.axes)
            except ValueError as error:
                raise ShapeError(f"shape '{word}' does not fit {op.name}: {error}") from None
            if max(shape) > MAX_EXTENT:
                raise ShapeError(
                    f"shape '{word}' has more than 10^18 - 1 elements along one axis; use a "
                    f"smaller one"
                )
            shapes[shape] = None
    return [dict(zip(op.axes, extents, strict=True)) for extents in shapes]


def parse_batch_shape(word: str, maximum: int = 10**7) -> tuple[int, int]:
    """Return sequences and tokens of `BxS`, each from 1 to `maximum`; raise `ShapeError` if it is
    invalid.
    """
    match = re.fullmatch(r"([0-9]{1,9})x([0-9]{1,9})", word)
    extents = (int(match[1]), int(match[2])) if match else (0, 0)
    if not all(1 <= extent <= maximum for extent in extents):
        raise ShapeError(
            f"invalid shape '{word}': expected sequences x tokens, each from 1 to {maximum}, such "
            f"as 8x512"
        )
    return extents


def _extents(text: str, word: str) -> Sequence[int]:
    """Return the values of one axis: a number, or a range."""
    fields = text.split(":")
    if not all(re.fullmatch(r"[0-9]{1,18}", field) for field in fields) or any(
        int(field) == 0 for field in fields
    ):
        raise ShapeError(
            f"invalid shape '{word}': expected integers from 1 to 10^18 - 1, such as 4096, "
            "4096x4096x1024 or 1024:4096:1024"
        )
    if len(fields) == 1:
        return [int(fields[0])]
    if len(fields) != 3 or int(fields[0]) > int(fields[1]):
        raise ShapeError(
            f"invalid range '{text}': expected start:stop:step, start <= stop, such as "
            f"1024:4096:1024"
        )
    start, stop, step = map(int, fields)
    return range(start, stop + 1, step)


def parse_size(text: str) -> int:
    """Return the bytes of a size such as `256MiB`, `1GB` or `4096`; raise `ShapeError` if it is
    invalid.
    """
    match = re.fullmatch(r"([0-9]{1,15}(?:\.[0-9]{1,9})?)\s*([A-Za-z]*)", text)
    if not match or match[2].upper() not in UNITS:
        raise ShapeError(
            f"invalid size '{text}': expected a number and B, KB, MB, GB, KiB, MiB or GiB, such "
            f"as 256MiB"
        )
    size_bytes = Fraction(match[1]) * UNITS[match[2].upper()]
    if size_bytes < 1 or size_bytes.denominator != 1:
        raise ShapeError(f"invalid size '{text}': expected an integer of bytes from 1")
    return int(size_bytes)
