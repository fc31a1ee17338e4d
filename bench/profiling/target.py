"""What is profiled: a function or a module with its arguments, from a file or from a preset."""

from __future__ import annotations

import contextlib
import io
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from bench.harness.cli.arguments import UsageError
from bench.harness.data.inputs import torch_dtype
from bench.harness.providers.user_kernel import UserKernelError, find, left_by
from bench.harness.timing import protocol

if TYPE_CHECKING:
    import torch

    from roofline.accounting.config import ModelConfig

MODEL_DTYPES = ("fp64", "fp32", "bf16", "fp16")
"""Dtypes that a model can be converted to."""

SIGNATURE = '''\
"""What to profile: `make` returns it with its arguments. Run: python -m bench profile mine.py:make --backward"""

import torch
from torch import nn


def make():
    """Return a module or a function and its positional arguments, or a function alone that takes none."""
    model = nn.Sequential(nn.Linear(1024, 4096), nn.GELU(), nn.Linear(4096, 1024))
    return model, torch.randn(64, 1024)


def gelu(x):
    """A function with parameters is profiled itself: python -m bench profile mine.py:gelu --shape 64x1024

    Or it takes the place of an operation: python -m bench profile mine.py:make --with aten.gelu=mine.py:gelu
    """
    return 0.5 * x * (1 + torch.erf(x / 2**0.5))
'''  # noqa: E501

ORIGINALS = ("_orig_mod", "_torchdynamo_orig_callable")
"""Attributes in which `torch.compile` stores the original function or module."""

NO_GPU = (
    "Torch not compiled with CUDA enabled",
    "Found no NVIDIA driver",
    "No CUDA GPUs are available",
)
"""Messages of torch if a GPU is requested and there is none."""


@dataclass
class Target:
    """A function or module with its arguments; each call uses the same ones."""

    name: str
    function: Callable[..., Any]
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    device: str = "cpu"
    modules: Any = None
    """The module whose parameters have gradients; an empty one for a function."""

    def __call__(self) -> Any:
        protocol.announce()
        try:
            return self.function(*self.args, **self.kwargs)
        finally:
            protocol.announce(runs=False)


def target_of(
    name: str, function: Any, args: Sequence[Any], kwargs: dict[str, Any] | None = None
) -> Target:
    import torch

    from bench.harness.torch_private import tree_iter

    if not callable(function):
        raise UsageError(f"{name}: expected a function or a module, got {type(function).__name__}")
    modules = getattr(function, "__self__", function)
    if not isinstance(modules, torch.nn.Module):
        modules = torch.nn.Module()
    modules = getattr(modules, ORIGINALS[0], modules)
    tensors = [*tree_iter((args, kwargs)), *modules.parameters()]
    devices = [str(tensor.device) for tensor in tensors if isinstance(tensor, torch.Tensor)]
    device = next((name for name in devices if name.startswith("cuda")), "cpu")
    return Target(name, function, tuple(args), dict(kwargs or {}), device, modules)


def user_function(word: str) -> Any:
    """Return the function or class of `FILE:FUNCTION`."""
    try:
        source = find(word)
    except UserKernelError:
        raise UsageError(
            f"expected path/to/file.py:function, got '{word}'; --signature prints a file"
        ) from None
    if source.problem is not None:
        raise UsageError(f"'{word}': {source.problem}")
    with guarded_call(word):
        return getattr(source.module(), source.function)


def made_by(make: Callable[[], Any], word: str, dtype: str | None, device: str) -> Target:
    """Return the target that a user's `make` returns, on a device, and in another dtype if one is
    given.
    """
    wanted = torch_dtype(dtype) if dtype else None
    with guarded_call(word):
        made = make()
        if made is None:
            raise UsageError(
                f"{word} returned None; expected a function, or a module with its arguments"
            )
        function, *args = made if isinstance(made, tuple) else (made,)
        kwargs = args.pop() if args and isinstance(args[-1], dict) else {}
        target = target_of(word, function, args, kwargs)
        target.modules.to(device=device, dtype=wanted)
        args, kwargs = moved((target.args, target.kwargs), device, wanted)
    return replace(target, args=args, kwargs=kwargs, device=device)


def moved(values: Any, device: str, dtype: torch.dtype | None) -> Any:
    """Return values with the tensors on a device, those of floating-point numbers in a dtype."""
    import torch

    from bench.harness.torch_private import tree_map_only

    return tree_map_only(
        torch.Tensor,
        lambda tensor: tensor.to(device, dtype if tensor.is_floating_point() else None),
        values,
    )


def from_preset(config: ModelConfig, shape: tuple[int, int], dtype: str, device: str) -> Target:
    import torch

    from bench.model.transformer import Transformer

    wanted = torch_dtype(dtype)
    torch.manual_seed(0)
    with torch.device(device):
        model = Transformer(config)
        ids, targets = (torch.randint(0, config.vocabulary, shape) for _ in range(2))
    model.to(device=device, dtype=wanted)
    model.rotate_for(shape[1], wanted, device)
    return Target(config.name, model, (ids, targets), {}, device, model)


@contextlib.contextmanager
def guarded_call(name: str, is_heard: bool = True) -> Iterator[None]:
    """Run a user's code: its output goes to stderr if `is_heard`, and its exceptions become
    one-line errors.
    """
    from bench.harness.device.device import NoDeviceError
    from bench.harness.measure.rows import one_line

    try:
        with contextlib.redirect_stdout((is_heard and sys.stderr) or io.StringIO()):
            yield
    except (UsageError, NoDeviceError):
        raise
    except SystemExit as error:
        raise UsageError(f"{name}: {left_by(error)}") from None
    except Exception as error:
        if any(words in str(error) for words in NO_GPU):
            raise NoDeviceError(f"{name} needs a GPU; torch found none") from None
        raise UsageError(f"{name}: {one_line(error)}") from None
