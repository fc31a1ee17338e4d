"""Names of torch that it does not document: another release may rename or remove them.

Each one stands here, with its use. Without it, the row or the command that needs it ends with one
line that names it. `tests/bench/test_torch_private.py` finds all of them in the installed torch.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

if TYPE_CHECKING:
    from torch import Tensor
    from torch._subclasses.fake_tensor import FakeCopyMode as FakeCopyMode
    from torch._subclasses.fake_tensor import FakeTensorMode as FakeTensorMode
    from torch.library import Library
    from torch.nn import Module
    from torch.utils._python_dispatch import TorchDispatchMode as TorchDispatchMode


class MissingNameError(ImportError):
    """The installed torch does not have a private name."""


NAMES = {
    "RecordFunctionFast": "torch._C._profiler._RecordFunctionFast",
    "current_autograd_node": "torch._C._current_autograd_node",
    "sequence_number": "torch._C._autograd._get_sequence_nr",
    "has_kernel": "torch._C._dispatch_has_kernel",
    "has_kernel_for": "torch._C._dispatch_has_kernel_for_dispatch_key",
    "TorchDispatchMode": "torch.utils._python_dispatch.TorchDispatchMode",
    "FakeCopyMode": "torch._subclasses.fake_tensor.FakeCopyMode",
    "FakeTensor": "torch._subclasses.fake_tensor.FakeTensor",
    "FakeTensorMode": "torch._subclasses.fake_tensor.FakeTensorMode",
    "DataDependentOutputException": "torch._subclasses.fake_tensor.DataDependentOutputException",
    "DynamicOutputShapeException": "torch._subclasses.fake_tensor.DynamicOutputShapeException",
    "HigherOrderOperator": "torch._ops.HigherOrderOperator",
    "is_traceable_wrapper_subclass_type": (
        "torch.utils._python_dispatch.is_traceable_wrapper_subclass_type"
    ),
    "disable_current_modes": "torch.utils._python_dispatch._disable_current_modes",
    "dynamo_config": "torch._dynamo.config",
    "functorch_config": "torch._functorch.config",
    "compile_fx": "torch._inductor.compile_fx.compile_fx",
    "compile_fx_inner": "torch._inductor.compile_fx.compile_fx_inner",
    "tree_iter": "torch.utils._pytree.tree_iter",
    "tree_leaves": "torch.utils._pytree.tree_leaves",
    "tree_map": "torch.utils._pytree.tree_map",
    "tree_map_only": "torch.utils._pytree.tree_map_only",
}
"""Full names of what is imported from here on first use.

`bench profile` needs the ranges, the autograd nodes, the dispatcher, tensors without memory and the
compiler; `bench.measure` and `bench.compare` find tensors in nested arguments with the trees.
"""


NN = "torch._C._nn"
"""Module whose `gelu` and `silu` write into `out`, a microsecond faster than `torch.ops.aten`.
Without it, eager rows of these ops fail.
"""


def __getattr__(name: str) -> Any:
    if name not in NAMES:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    import torch

    try:
        return resolve_name(NAMES[name])
    except (ImportError, AttributeError):
        message = f"torch {torch.__version__} has no {NAMES[name]}, which this needs"
        raise MissingNameError(message) from None


def scaled_mm(a: Tensor, b: Tensor, scale_a: Tensor, scale_b: Tensor, **options: Any) -> Tensor:
    """Multiply fp8 matrices; without it fp8 rows fail."""
    import torch

    return torch._scaled_mm(a, b, scale_a, scale_b, **options)


def int_mm(a: Tensor, b: Tensor, **options: Any) -> Tensor:
    """Multiply int8 matrices; without it int8 rows fail."""
    import torch

    return torch._int_mm(a, b, **options)


def spin(cycles: int) -> None:
    """Keep the GPU busy for a number of cycles while launches are queued; without it no row of a
    GPU can be timed.
    """
    import torch

    torch.cuda._sleep(cycles)


def free_capture(pool: Any) -> None:
    """Free the memory of a capture that failed; without these functions, it stays allocated."""
    import torch

    for name in ("_cuda_endAllocateToPool", "_cuda_releasePool"):
        release = getattr(torch._C, name, None)
        if release is not None:
            with suppress(RuntimeError):
                release(torch.cuda.current_device(), pool)


def forget_compiled(module: Module) -> None:
    """Undo `Module.compile`; without the attribute, the module stays compiled."""
    module._compiled_call_impl = None


def remove_kernels(library: Library) -> None:
    """Remove what `Library.impl` registered; without it, a replaced operation stays replaced."""
    library._destroy()


def eager_kernel(operator: Any) -> Any:
    """Return the function that runs a higher-order operation step by step; without it, `--on` fails
    for loops.
    """
    import torch

    return operator.py_kernels[torch._C.DispatchKey.CompositeExplicitAutograd]


@contextmanager
def eager() -> Iterator[None]:
    """Run compiled functions as eager ones, and the branch that `torch.cond` takes as it is: the
    gradient of its operation cannot be intercepted.
    """
    import torch

    operator = type(torch.ops.higher_order.cond)
    taken = staticmethod(lambda holds, yes, no, operands: (yes if holds else no)(*operands))
    with torch.compiler.set_stance("force_eager"), patch.object(operator, "__call__", taken):
        yield


@contextmanager
def prepared_for_fakes(elements: int) -> Iterator[None]:
    """Let fake tensors of so many elements know their values, `Module.to` change them despite of
    weak references, and `flex_attention` take them: it compiles nothing, and has gradients on a
    CPU.
    """
    import torch
    from torch._subclasses import fake_tensor
    from torch.nn.attention import flex_attention

    with (
        patch.object(fake_tensor, "CONSTANT_NUMEL_LIMIT", elements),
        patch.object(torch.utils, "swap_tensors", torch._C._swap_tensor_impl),
        patch.object(flex_attention, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True),
        patch.object(flex_attention, "_validate_device", lambda *_: None),
    ):
        yield


def watched_autograd() -> Any:
    """Return a context with a mock of autograd's engine, whose `run_backward.called` is whether a
    backward pass ran; without the attribute, no row of a GPU can be timed, and no training loop.
    """
    import torch

    variable: Any = torch.autograd.Variable
    return patch.object(variable, "_execution_engine", wraps=variable._execution_engine)
