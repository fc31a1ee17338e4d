"""`--signature`: prints a working Python file with the signatures of user functions."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from bench.harness.cli.arguments import chosen_dtypes
from bench.harness.op import Case, Op, Option
from bench.harness.op_file import command_of, is_own
from results.show.terminal import print_out

HEAD = '''\
"""Your own functions for {command}. They run as they are; replace TORCH[...] with your kernels.

A function with a parameter named out writes its result there; one without it returns the result. On a GPU it must
use the current stream and write every element. It may only change inputs that the formula changes in place.

    {command} --op {name} --dtype {dtype} --provider {file}:{function},torch
"""

from {module} import OPS

TORCH = {{op.name: op.eager for op in OPS}}
'''  # noqa: E501

FUNCTION = '''

def {function}({parameters}):
    """{formula}

{operands}
    """
    return TORCH["{name}"]({arguments})
'''

EXTENTS = (48, 80, 112, 176)
"""Extents that identify axes: all different, not used as constants by ops, multiples of 16 for
narrow dtypes.
"""


def print_signatures(
    family: str, ops: Sequence[Op], dtypes: Sequence[str] | None, options: Sequence[Option]
) -> int:
    """Print a file with a function for each of `ops`, and return the exit code."""
    chosen = [(op, chosen_dtypes(dtypes, op)[0]) for op in ops]
    name = chosen[0][0].name
    names = {
        "command": command_of(family),
        "module": Path(family).stem if is_own(family) else f"bench.{family}",
    }
    head = HEAD.format(
        **names, name=name, dtype=chosen[0][1], file="mine.py", function=name.replace("-", "_")
    )
    print_out(head + "".join(signature(op, dtype, options) for op, dtype in chosen))
    return 0


def signature(op: Op, dtype: str, options: Sequence[Option]) -> str:
    """Return a function with the parameters of an op, their shapes and dtypes, and a call of
    torch.
    """
    from bench.harness.data.inputs import Filler, torch_dtype
    from bench.harness.providers.user_kernel import input_names

    axes = dict(zip(op.axes, EXTENTS, strict=False))
    case = Case.of(op.name, dtype, axes, options)
    tensors = op.make_inputs(case, Filler("zeros", dtype, None))
    names = input_names(op)
    if len(names) < len(tensors):  # the last one takes several
        more = len(tensors) - len(names) + 1
        names = [*names[:-1], *(f"{names[-1]}_{number}" for number in range(1, more + 1))]
    operands = {
        name: (_shape(x.shape, axes), f"{x.dtype}{'' if x.is_contiguous() else ', column-major'}")
        for name, x in zip(names, tensors, strict=False)
    }
    arguments = list(operands)
    if op.result_in is None:
        out = _shape(op.output_shape(case), axes)
        operands["out"] = out, str(torch_dtype(op.output_dtype(dtype)))
        arguments.append("out=out")
    name_width = max(map(len, operands))
    shape_width = max(len(shape) for shape, _ in operands.values())
    lines = [
        f"    {name:<{name_width}}  {shape:<{shape_width}}  {kind}"
        for name, (shape, kind) in operands.items()
    ]
    function = op.name.replace("-", "_")
    return FUNCTION.format(
        function=function,
        parameters=", ".join(operands),
        arguments=", ".join(arguments),
        formula=op.formula,
        operands="\n".join(lines),
        name=op.name,
    )


def _shape(extents: Sequence[int], axes: dict[str, int]) -> str:
    names = {extent: name for name, extent in axes.items()}
    return f"({', '.join(names.get(extent, str(extent)) for extent in extents)})"
