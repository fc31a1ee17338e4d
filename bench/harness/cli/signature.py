"""`--signature`: prints a working Python file that shows what a user's function must take."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from bench.harness.cli.arguments import chosen_dtypes
from bench.harness.op import Case, Op, Option
from bench.harness.op_file import command_of, is_own
from results.show.terminal import print_out

if TYPE_CHECKING:
    pass

HEAD = '''\
"""Functions of your own for {command}, as they work; put your kernels in the place of TORCH[...].

A function with a parameter named out gets the output there and fills it; one without returns its result. It must
be finished, on the current stream of a GPU, when it returns; leave its inputs alone; and write every element.

    {command} --op {name} --dtype {dtype} --provider {file}:{function},torch
"""

from {module} import OPS

TORCH = {{op.name: op.eager for op in OPS}}
'''

FUNCTION = '''

def {function}({inputs}, out):
    """{formula}

{operands}
    """
    return TORCH["{name}"]({inputs}, out=out)
'''

EXTENTS = (48, 80, 112, 176)
"""Extents that stand for axes: no two alike, none that an op has by itself, multiples of 16 for narrow dtypes."""


def print_signatures(
    family: str, ops: Sequence[Op], is_only_op: bool, dtypes: Sequence[str] | None, options: Sequence[Option]
) -> int:
    """Print a file with a function for each of `ops`, and return the exit code.

    `is_only_op` says that the family has no other op, so that its command needs no `--op`.
    """
    chosen = [(op, chosen_dtypes(dtypes, op)[0]) for op in ops]
    name = chosen[0][0].name
    place = {"command": command_of(family), "module": Path(family).stem if is_own(family) else f"bench.{family}"}
    head = HEAD.format(**place, name=name, dtype=chosen[0][1], file="mine.py", function=name.replace("-", "_"))
    if is_only_op:
        head = head.replace(f" --op {name}", "")
    print_out(head + "".join(signature(op, dtype, options) for op, dtype in chosen))
    return 0


def signature(op: Op, dtype: str, options: Sequence[Option]) -> str:
    """Return the function of one op: its parameters, what each of them is, and torch in its body."""
    from bench.harness.data.inputs import Filler, torch_dtype
    from bench.harness.providers.user_kernel import input_names

    axes = dict(zip(op.axes, EXTENTS, strict=False))
    case = Case.of(op.name, dtype, axes, options, {option.name: option.default(dtype) for option in options})
    tensors = op.make_inputs(case, Filler("zeros", dtype, None))
    names = input_names(op)
    if len(names) < len(tensors):  # the last one stands for several
        more = len(tensors) - len(names) + 1
        names = [*names[:-1], *(f"{names[-1]}_{number}" for number in range(1, more + 1))]
    operands = {
        name: (_shape(x.shape, axes), f"{x.dtype}{'' if x.is_contiguous() else ', column by column'}")
        for name, x in zip(names, tensors, strict=False)
    }
    inputs = ", ".join(operands)
    operands["out"] = _shape(op.output_shape(case), axes), str(torch_dtype(op.output_dtype(dtype)))
    widths = max(map(len, operands)), max(len(shape) for shape, _ in operands.values())
    lines = [f"    {name:<{widths[0]}}  {shape:<{widths[1]}}  {kind}" for name, (shape, kind) in operands.items()]
    function = op.name.replace("-", "_")
    return FUNCTION.format(
        function=function, inputs=inputs, formula=op.formula, operands="\n".join(lines), name=op.name
    )


def _shape(extents: Sequence[int], axes: dict[str, int]) -> str:
    """Return a shape by the names of its axes: `(m, n)`."""
    names = {extent: name for name, extent in axes.items()}
    return f"({', '.join(names.get(extent, str(extent)) for extent in extents)})"
