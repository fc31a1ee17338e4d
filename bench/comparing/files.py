"""Functions and classes of files, `FILE:FUNCTION`, and the functions beside them that say what they
are called with: `make_inputs`, or as in KernelBench `get_inputs` and `get_init_inputs`.

`get_init_inputs()` returns the arguments of a class of modules, `model.py:Model` and
`new.py:ModelNew`, `get_inputs()` those of a call. As in KernelBench, both are called with one seed,
every class is built from equal arguments after setting the seed again, and modules and
floating-point inputs get the requested dtype. Unlike there, a module also gets the state of the
first one wherever names and shapes are equal, integer inputs keep their dtype, and the result is
checked by the rules of `bench.harness.data.agreement`.

`FLOPS` returns the FLOPs of a call from its arguments, `BYTES` the bytes read and those written.

Source: KernelBench, src/kernelbench/eval.py, `eval_kernel_against_ref`, at commit 0d1222636478.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import TYPE_CHECKING, Any

from bench.comparing.case import Case, Functions
from bench.harness.data.agreement import Fn
from bench.harness.data.inputs import Filler, torch_dtype
from bench.harness.device.device import detect
from bench.harness.op import UsageError
from bench.harness.providers.user_kernel import find
from bench.profiling.target import moved
from results.record import Object

if TYPE_CHECKING:
    from torch.nn import Module

MAKE_INPUTS = "make_inputs"
"""Name of the function in a user's file that returns the arguments of one call."""

POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


@dataclass(kw_only=True)
class FileCase(Case):
    """Functions of files, the baseline first."""

    shapes: Sequence[tuple[int, ...]]
    """Shapes of the arguments if no file makes them."""
    given: Sequence[str] = ()
    """Options that were given for such arguments."""
    modules: list[ModuleType] = field(default_factory=list)
    baseline: Any = None
    """The function that the others are compared with."""
    first: Module | None = None
    """The module of the first class."""

    def functions(self, names: Sequence[str]) -> Functions:
        """Return the functions, the baseline first, as `loaded` does."""
        found = self.loaded(names, self._imported)
        functions = self.loaded(names, lambda name: self._built(found[name]))
        self.baseline = functions[names[0]]
        self.make = self.defined(MAKE_INPUTS)
        get_inputs = self.defined("get_inputs")
        if self.make is None and get_inputs:
            dtype = torch_dtype(self.dtype)
            self.make = lambda: tuple(moved(get_inputs(), self.device, dtype))
        return functions

    def arguments(self) -> tuple[Any, ...]:
        """Return the arguments of a call: a tensor for each parameter, if no file makes them."""
        if self.make:
            # The dtype is also that of what `get_inputs` returns.
            is_ours = self.defined(MAKE_INPUTS) is not None
            ignored = [option for option in self.given if is_ours or option != "--dtype"]
            if ignored:
                raise UsageError(f"the file makes the arguments; remove {', '.join(ignored)}")
            made = self.make()
            return made if isinstance(made, tuple) else (made,)
        if not self.shapes:
            raise UsageError(
                f"no file has a function {MAKE_INPUTS}(); add one, or use --shape and --dtype"
            )
        shapes = list(self.shapes)
        if len(shapes) == 1:
            shapes *= required_of(getattr(self.baseline, "forward", self.baseline))
        fill = Filler(self.settings.fill, self.dtype, detect(self.device), self.settings.seed)
        return tuple(fill(*shape) for shape in shapes)

    def work(self, arguments: Sequence[Any]) -> Object:
        """Return the FLOPs and bytes of a call that the files declare."""
        work = {}
        flops = self.defined("FLOPS")
        moved = self.defined("BYTES")
        if flops:
            work["flops"] = flops(*arguments)
        if moved:
            work["bytes_read"], work["bytes_written"] = moved(*arguments)
        return work

    def defined(self, name: str) -> Fn | None:
        """Return the function of this name in the first file that has one."""
        return next((vars(each)[name] for each in self.modules if name in vars(each)), None)

    def _imported(self, name: str) -> Any:
        source = find(name)
        module = source.module()
        self.modules.append(module)
        return getattr(module, source.function)

    def _built(self, function: Any) -> Fn:
        """Return what is called: the module if `function` is the class of one."""
        import torch

        if not (isinstance(function, type) and issubclass(function, torch.nn.Module)):
            return function  # type: ignore[no-any-return]
        make = self.defined("get_init_inputs")
        torch.manual_seed(self.settings.seed)
        dtype = torch_dtype(self.dtype)
        arguments = moved(make(), self.device, dtype) if make else ()
        torch.manual_seed(self.settings.seed)
        module = function(*arguments)
        module.to(device=self.device, dtype=dtype)
        module.requires_grad_(False)
        self.first = self.first or module
        state = module.state_dict()
        given = self.first.state_dict().items()
        same = {key: x for key, x in given if key in state and state[key].shape == x.shape}
        module.load_state_dict(same, strict=False)
        return module


def required_of(function: Fn) -> int:
    """Return the number of positional parameters without a default."""
    known = inspect.signature(function).parameters.values()
    return sum(each.kind in POSITIONAL and each.default is each.empty for each in known)
