"""Checks of the result of a user's function, before timing and after.

    output       poisoned before the call, so that elements that are not written show
    late work    the result is copied when the call returns, and the copy is verified
    inputs       compared with a copy from before the call
    hard inputs  numbers that unstable formulas get wrong, see `stress.py`
    old results  new values in the same tensors, with the output of the timed launches, in a sample
    settings     those of `torch_settings`, before and after

They do not find writes beyond the output (use `compute-sanitizer`), or what `.github/SECURITY.md`
lists.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from bench.harness import clock
from bench.harness.data.agreement import UnverifiedError, new_contents, renew, slower_on_new
from bench.harness.data.inputs import Filler, InputSet
from bench.harness.data.stress import STALE
from bench.harness.data.torch_settings import current_settings, restore_settings
from bench.harness.data.verify import CheckResult, Checks, same_bytes
from bench.harness.timing import protocol
from bench.harness.timing.samplers import timed_result

if TYPE_CHECKING:
    from torch import Tensor

    from bench.harness.op import Launch


@dataclass
class UserChecks(Checks):
    """Verifies calls of a user's function."""

    fill: str
    takes_out: bool
    """Whether the function has a parameter `out`."""
    is_in_place: bool = False
    """Whether it may change its inputs, which are restored after each call."""
    calls: Sequence[Callable[[], object]] = ()
    """On all copies of the inputs; the last check calls on the first one before."""
    is_again: bool = False
    """Whether an earlier visit has called the function on contents of all kinds."""
    settings: dict[str, Any] = field(init=False, default_factory=current_settings)

    def last(
        self,
        call: Callable[[], object],
        data: InputSet,
        earlier: Launch | None,
        samples: protocol.Samples,
    ) -> CheckResult:
        stale = self.result
        checked = self.check(call, data, earlier)
        if not checked.is_right:
            return self._wrong(checked, stale, "")
        if not data.inputs:
            return checked
        stale = self.result
        if earlier:
            earlier = (tuple(x.clone() for x in data.inputs), stale)
        fill = "uniform" if self.fill == "zeros" else self.fill
        filler = Filler(fill, self.case.dtype, self.device, random.getrandbits(32))
        passed = []
        # The first new contents keep the elements at the ends, by which results may be cached. They
        # may be none that the function takes, such as a matrix that is not positive definite; those
        # of `make_inputs` are.
        for make in (None, partial(self.op.make_inputs, self.case, filler)):
            try:
                with new_contents(data.inputs, make) as write:  # others may share the buffers
                    write(1)
                    found = self.check(call, data, earlier, is_poisoned=False)
            except Exception:
                continue
            if found.wrong and math.isnan(found.wrong["expected"]):
                continue
            if not found.is_right:
                return self._wrong(found, stale, "on new values in the same tensors: ")
            checked = found
            passed.append(make)
            if self.is_again:
                return checked
        if not passed:
            return replace(checked, unverified="it fails on new contents")
        protocol.announce()
        try:
            slower = slower_on_new(call, data.inputs, self.device.synchronize, samples, passed[0])
        except UnverifiedError as error:
            return replace(checked, unverified=str(error))
        finally:
            protocol.announce(runs=False)
        return replace(checked, reason=slower)

    def _wrong(self, checked: CheckResult, stale: Tensor, when: str) -> CheckResult:
        if not checked.checked_elements:
            return checked
        is_old = same_bytes(self.result, stale)
        return replace(checked, reason=STALE if is_old else f"{when}{checked.reason}")

    def run(self, call: Callable[[], Any], data: InputSet, is_sampled: bool = False) -> str | None:
        import torch

        before = [x.clone() for x in data.inputs]
        addresses = _addresses(data)
        self.device.synchronize()
        protocol.announce()
        start = clock.now()
        earlier_calls = [] if self.is_in_place else self.calls[:1]
        returned: Any = timed_result([*earlier_calls, call]) if is_sampled else call()
        if self.op.result_in:
            returned = self.op.result_in(data.inputs)
        elif self.takes_out and not isinstance(returned, torch.Tensor | tuple):
            returned = data.out  # a launcher may return anything
        elif self.is_in_place and returned is None:
            returned = data.inputs[0]
        parts = returned if isinstance(returned, tuple) else (returned,)
        has_tensors = bool(parts) and all(type(part) is torch.Tensor for part in parts)
        if has_tensors:
            self.result = torch.stack(parts) if isinstance(returned, tuple) else returned.clone()
        self.device.synchronize()
        self.call_s = clock.now() - start
        protocol.announce(runs=False)
        problem = self._side_effect(data, before, addresses)
        if problem is None and has_tensors:
            problem = _memory_problem(parts, data, self.is_in_place)
        elif problem is None:
            kind = "None" if returned is None else f"a {type(returned).__name__}"
            wanted = f"a torch.Tensor of {'x'.join(map(str, data.out.shape))} {data.out.dtype}"
            problem = f"wrong result: expected {wanted}, or a parameter named out, got {kind}"
        return problem

    def _side_effect(
        self, data: InputSet, before: Sequence[Tensor], addresses: tuple[int, ...]
    ) -> str | None:
        changed = restore_settings(self.settings)
        if changed:
            return f"changed settings of the process: {', '.join(changed)}"
        if addresses != _addresses(data):
            return "replaced the memory of an input or the output"
        if all(map(same_bytes, data.inputs, before)):
            return None
        renew([data.inputs], lambda: before)
        return None if self.is_in_place else "changes its inputs"


def _memory_problem(parts: Sequence[Tensor], data: InputSet, is_in_place: bool) -> str | None:
    import torch

    inputs = set() if is_in_place else {x.untyped_storage().data_ptr() for x in data.inputs}
    for x in parts:
        if x.device != data.out.device or x.layout is not torch.strided:
            return (
                f"wrong result: expected a dense tensor on {data.out.device}, got {x.layout} "
                f"on {x.device}"
            )
        if any(
            stride == 0 and extent > 1 for stride, extent in zip(x.stride(), x.shape, strict=True)
        ):
            return "wrong result: its elements share memory (stride 0)"
        if x.untyped_storage().data_ptr() in inputs:
            return "returns a view of an input: nothing was written"
    return None


def _addresses(data: InputSet) -> tuple[int, ...]:
    return tuple(x.data_ptr() for x in (*data.inputs, data.out))
