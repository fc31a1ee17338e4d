"""Modules built from the classes of KernelBench's files, `model.py:Model` and `new.py:ModelNew`.

`get_init_inputs()` returns the arguments of the class, `get_inputs()` those of a call. As in
KernelBench, both are called with one seed, every class is built from equal arguments after setting
the seed again, and modules and floating-point inputs get the requested dtype. Unlike there, a
module also gets the state of the first one wherever names and shapes are equal, integer inputs
keep their dtype, and the result is checked by the rules of `bench.harness.data.agreement`.

Source: KernelBench, src/kernelbench/eval.py, `eval_kernel_against_ref`, at commit 0d1222636478.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from bench.harness.data.inputs import torch_dtype
from bench.harness.op import UsageError

if TYPE_CHECKING:
    from torch.nn import Module

GET_INIT_INPUTS = "get_init_inputs"
GET_INPUTS = "get_inputs"


def required_of(function: Callable[..., Any]) -> list[inspect.Parameter]:
    """Return the positional parameters without a default."""
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [
        each
        for each in inspect.signature(function).parameters.values()
        if each.kind in positional and each.default is inspect.Parameter.empty
    ]


@dataclass
class Classes:
    """How classes of modules are built."""

    init_inputs: Callable[[], Any] | None
    """`get_init_inputs` of a file."""
    dtype: str
    device: str
    seed: int
    first: Module | None = field(default=None, init=False)

    def called(self, name: str, function: Any) -> Callable[..., Any]:
        """Return what is called: the module if `function` is the class of one.

        Raises:
            UsageError: the class needs arguments, and there is no `get_init_inputs`.
        """
        import torch

        if not (isinstance(function, type) and issubclass(function, torch.nn.Module)):
            return function  # type: ignore[no-any-return]
        needed = [each.name for each in required_of(function)]
        if needed and self.init_inputs is None:
            raise UsageError(
                f"{name} needs arguments ({', '.join(needed)}); add {GET_INIT_INPUTS}() to the file"
            )
        torch.manual_seed(self.seed)
        arguments = self._moved(self.init_inputs()) if self.init_inputs else ()
        torch.manual_seed(self.seed)
        module = function(*arguments).to(self.device, torch_dtype(self.dtype))
        module.requires_grad_(False)
        self.first = self.first or module
        state = module.state_dict()
        given = self.first.state_dict().items()
        same = {key: x for key, x in given if key in state and state[key].shape == x.shape}
        module.load_state_dict(same, strict=False)
        return module

    def inputs(self, get_inputs: Callable[[], Any] | None) -> Callable[[], Any] | None:
        """Return a function that makes the arguments of a call, others each time."""
        import torch

        if get_inputs is None:
            return None
        torch.manual_seed(self.seed)
        return lambda: tuple(self._moved(get_inputs()))

    def _moved(self, values: Any) -> Any:
        import torch

        from bench.harness.torch_private import tree_map_only

        dtype = torch_dtype(self.dtype)
        return tree_map_only(
            torch.Tensor,
            lambda x: x.to(self.device, dtype if x.is_floating_point() else None),
            values,
        )
