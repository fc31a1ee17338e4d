"""The checks of a user's function beyond its values: writes to foreign memory, and outputs that are stale or late.

Our own providers go through `Checks`, which only poisons the output. A user's function goes through `UserChecks`:

    output       poisoned, with random bytes on both sides of it
    late work    bytes of the result are noted at the moment the call returns, and again when all is quiet
    inputs       fingerprints of every byte before the first call and after the last; on the copies that fit a limit
    old results  new values in the same tensors, the output left as the timed launches left it; then new values in
                 one of 32 elements only, so that looking at a few elements does not tell old inputs from new
    settings     of torch and of the process, before and after

It finds mistakes, and tricks by which a function only seems fast. It does not find code written to deceive it, which in
the same process could replace the clock, nor a write beyond the guards, nor work in less precision than asked for whose
result is still within rounding.
"""

from __future__ import annotations

import ctypes
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from bench.harness.data import verify
from bench.harness.data.guarded_buffers import MUTATED, GuardedBuffers, places_of
from bench.harness.data.inputs import Filler, InputSet
from bench.harness.data.verify import CheckResult
from bench.harness.device.device import Device
from bench.harness.op import Case, Op

if TYPE_CHECKING:
    from torch import Tensor

    from bench.harness.op import Launch

Call = Callable[[], object]
Restore = Callable[[], Sequence[str]]


def nothing() -> None:
    """Do nothing."""


@dataclass(frozen=True)
class Turn:
    """Tells another process whose code is running, so that it can end what hangs and say who crashed."""

    announce: Callable[[], object] = nothing
    """A call of the provider begins."""
    rest: Callable[[], object] = nothing
    """The measuring code itself is at work."""


GLIMPSES, GLIMPSE_BYTES = 64, 64
"""How many places of a result are read when a call returns, and the bytes of each: some microseconds in total."""

QUIET_S = 0.02
"""Pause after a call, in which work that was left to another thread shows."""

LATEST_S = 0.5
"""How long a wrong result is watched for late work."""

CHANGED_SHARES = (1, 32, 1024)
"""On new inputs one of so many elements is new, one at least. A cache that looks at three elements happens to see a new
one in 9 % of checks with 32, and in 0.03 % of both."""


class Checks:
    """How the calls of a row are checked; this one is for our own providers, whose code is known."""

    def __init__(self, op: Op, case: Case, device: Device, fill: str) -> None:
        """Prepare to check the calls of one row, whose inputs have the fill `fill`."""
        self._op, self._case, self._device, self._fill = op, case, device, fill
        self._synchronize = device.synchronize
        self.call_s = 0.0
        """Seconds from the last call to its finished result."""

    def enclose(self, sets: list[InputSet], shared: GuardedBuffers | None = None) -> list[InputSet]:
        """Return the sets with outputs that can be watched; `shared` are the buffers that several providers share."""
        return sets

    def run(self, call: Call, data: InputSet) -> Tensor:
        """Run a call on a poisoned output and return the result; `call_s` says how long that took."""
        start = time.perf_counter()
        result = verify.run_poisoned(call, data.out, self._synchronize)
        self.call_s = time.perf_counter() - start
        return result

    def before(self, checked: CheckResult) -> CheckResult:
        """Return the result of the check of the first call with what else was found."""
        return checked

    def after(self, checked: CheckResult, calls: Sequence[Call], index: int) -> CheckResult:
        """Return the check of a call after timing with what else was found; `index` says of which copy."""
        return checked


class UserChecks(Checks):
    """How the calls of a function that is not ours are checked."""

    def __init__(
        self, op: Op, case: Case, device: Device, fill: str, takes_out: bool, restore: Restore, turn: Turn
    ) -> None:
        """Prepare.

        Args:
            op: the operation.
            case: the case.
            device: the device.
            fill: the inputs' fill.
            takes_out: whether the function has a parameter `out`.
            restore: sets back what the calls have changed of the process's settings, and says what it was.
            turn: is told before and after each call that is checked.
        """
        super().__init__(op, case, device, fill)
        self._takes_out, self._restore, self._turn = takes_out, restore, turn
        self._sets: list[InputSet] = []
        self._places: list[tuple[int, ...]] = []
        self._found: str | None = None
        self._result: Tensor | None = None
        self._first_result: int | None = None
        self._early: object = None
        self._returned: object = None
        self._random = random.Random()

    def enclose(self, sets: list[InputSet], shared: GuardedBuffers | None = None) -> list[InputSet]:
        """Put each output between guards, and remember every byte of the inputs; of `shared` buffers they are views."""
        self._buffers = shared or GuardedBuffers(sets, self._device, self._takes_out)
        self._sets = self._buffers.views() if shared is None else sets
        self._places = [places_of(data) for data in self._sets]
        return self._sets

    def run(self, call: Call, data: InputSet) -> Tensor:
        """Run a call on a poisoned output and return the result; what is wrong beside its values is remembered."""
        verify.poison(data.out)
        return self._run(call, data)

    def before(self, checked: CheckResult) -> CheckResult:
        """Return the check of the first call, with its side effects where it had any."""
        self._first_result = self._result_print()
        return self._worse(checked, self._found or self._side_effects() or self._came_late(checked))

    def after(self, checked: CheckResult, calls: Sequence[Call], index: int) -> CheckResult:
        """Return the check of a call after timing, with side effects and results of older inputs where there are
        any.
        """
        found = self._found or self._side_effects() or self._came_late(checked)
        if found is None and not checked.is_right and self._result_print() == self._first_result:
            found = STALE
        if found or not checked.is_right:
            return self._worse(checked, found)
        data = self._sets[index]
        first_inputs = tuple(x.clone() for x in data.inputs)
        for share in CHANGED_SHARES:
            if checked.is_right:
                checked = self._on_new_inputs(checked, calls[index], data, share)
        for x, first in zip(data.inputs, first_inputs, strict=True):
            x.copy_(first)  # others may share the buffers
        return self._worse(checked, self._side_effects(inputs_too=False)) if checked.is_right else checked

    def _on_new_inputs(self, checked: CheckResult, call: Call, data: InputSet, share: int) -> CheckResult:
        """Return the check of a call whose inputs have new values in one of `share` elements of the same tensors."""
        earlier, stale = self._last_launch(data), self._result_print()
        seed = self._renew(data, share)
        inputs = self._buffers.fingerprints(data)
        result = self._run(call, data)
        if self._buffers.fingerprints(data) != inputs:
            self._found = self._found or MUTATED
        if self._found:
            return self._worse(checked, self._found)
        checked = verify.check(self._op, self._case, data, result, earlier)
        if checked.is_right:
            return checked
        if self._came_late(checked):
            return self._worse(checked, LATE)
        what = "new inputs" if share == 1 else f"inputs of which one in {share} elements is new"
        is_stale = self._result_print() == stale
        reason = STALE if is_stale else f"on {what} in the same tensors (seed {seed}): {checked.reason}"
        return self._worse(checked, reason)

    def _last_launch(self, data: InputSet) -> Launch | None:
        if self._op.check_result is None or self._result is None:
            return None
        return tuple(x.clone() for x in data.inputs), self._result.clone()

    def _result_print(self) -> int | None:
        return None if self._result is None else self._buffers.fingerprint(self._result)

    def _worse(self, checked: CheckResult, found: str | None) -> CheckResult:
        """Return a check with the finding as its reason: a wrong value is only the effect of the finding."""
        return checked if found is None else replace(checked, is_right=False, reason=found)

    # ---- one call ------------------------------------------------------------------------------------------------

    def _run(self, call: Call, data: InputSet) -> Tensor:
        """Run a call, and note whether its result is one, and was there when it returned."""
        import torch

        self._synchronize()
        self._turn.announce()
        self._result, start = None, time.perf_counter()
        returned: Any = call()
        if self._takes_out and not isinstance(returned, torch.Tensor | tuple):
            returned = data.out  # a launcher may return whatever it likes
        early = self._glimpse(returned)
        self._synchronize()
        self.call_s = time.perf_counter() - start
        self._turn.rest()
        result = torch.stack(returned) if isinstance(returned, tuple) and _are_tensors(returned) else returned
        self._found = self._found or self._strange(result, returned, data)
        if not isinstance(result, torch.Tensor):
            return data.out
        if not self._device.is_gpu:
            time.sleep(QUIET_S)
        if early is not None and early != self._glimpse(returned):
            self._found = self._found or LATE
        self._result, self._early, self._returned = result, early, returned
        return result

    def _came_late(self, checked: CheckResult) -> str | None:
        """Return `LATE` where a wrong result still changes within `LATEST_S`: a busy machine delays other threads."""
        end = time.perf_counter() + LATEST_S
        while not checked.is_right and self._early is not None and time.perf_counter() < end:
            if self._early != self._glimpse(self._returned):
                return LATE
            time.sleep(QUIET_S)
        return None

    def _glimpse(self, returned: Any) -> object:
        """Return the bytes at some places of a result, None where it is no plain tensor.

        On a CPU nothing lets another Python thread run meanwhile. On a GPU it is a copy in the current stream's order,
        compared when all streams are done.
        """
        import torch

        result = returned[-1] if isinstance(returned, tuple) and returned else returned
        if type(result) is not torch.Tensor or result.device.type != torch.device(self._device.torch_name).type:
            return None
        if self._device.is_gpu:
            return _Bits(result.clone())
        size_bytes = result.numel() * result.element_size()
        if not size_bytes or not result.is_contiguous():
            return None
        address, last = result.data_ptr(), max(0, size_bytes - GLIMPSE_BYTES)
        step = max(1, last // GLIMPSES)
        starts = [*range(0, last, max(step, GLIMPSE_BYTES)), last]
        return [ctypes.string_at(address + start, min(GLIMPSE_BYTES, size_bytes - start)) for start in starts]

    def _strange(self, result: Any, returned: Any, data: InputSet) -> str | None:
        """Return why a result was not computed into memory of its own, or None where it was."""
        import torch

        if type(result) is not torch.Tensor:
            kind = "None" if result is None else f"a {type(result).__name__}"
            extents = "x".join(map(str, data.out.shape))
            expected = f"a torch.Tensor of {extents} {data.out.dtype} is expected"
            return f"wrong result: it returned {kind}; {expected}, or a parameter named out to write it into"
        if result.device != data.out.device or result.layout is not torch.strided:
            return (
                f"wrong result: a tensor {result.layout} on {result.device} instead of a dense one on {data.out.device}"
            )
        if any(stride == 0 and extent > 1 for stride, extent in zip(result.stride(), result.shape, strict=True)):
            return "wrong result: its elements share memory (a stride of 0), so that they are not all written"
        parts = returned if isinstance(returned, tuple) else (result,)
        held = {x.untyped_storage().data_ptr() for x in data.inputs}
        if any(part.untyped_storage().data_ptr() in held for part in parts):
            return "returns a view of an input: nothing was written"
        return None

    # ---- beside the result ---------------------------------------------------------------------------------------

    def _side_effects(self, inputs_too: bool = True) -> str | None:
        changed = self._restore()  # later rows of this process must not be blamed for it
        if changed:
            return f"changed settings of the process and left them so: {', '.join(changed[:3])}"
        if self._places != [places_of(data) for data in self._sets]:
            return "put other memory under an input or the output"
        return self._buffers.harm() if inputs_too else self._buffers.harm_beyond()

    def _renew(self, data: InputSet, share: int) -> int:
        """Give one of `share` elements of each input a new value, and return the seed of the new values."""
        import torch

        seed = self._random.getrandbits(32)
        fill = "uniform" if self._fill == "zeros" else self._fill
        fresh = self._op.make_inputs(self._case, Filler(fill, self._case.dtype, self._device, seed))
        for x, new in zip(data.inputs, fresh, strict=True):
            if share == 1 or not x.numel():
                x.copy_(new)
                continue
            # As whole numbers of the same width: not every dtype can be chosen from by a mask.
            bits = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[x.element_size()]
            is_new = torch.rand(x.shape, device=x.device) < 1 / share
            is_new.view(-1)[self._random.randrange(x.numel())] = True
            x.view(bits).copy_(torch.where(is_new, new.view(bits), x.view(bits)))
        return seed


STALE = "returns the result of an earlier call: the inputs are others, the result is the same"
LATE = "the result was not there when the call returned: part of the work goes on elsewhere, on a thread or a stream"


class _Bits:
    """A tensor that is compared bit by bit, so that NaN equals NaN."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor

    def __ne__(self, other: object) -> bool:
        import torch

        assert isinstance(other, _Bits)
        bits = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[self.tensor.element_size()]
        return not torch.equal(self.tensor.view(bits), other.tensor.view(bits))


def _are_tensors(parts: tuple[Any, ...]) -> bool:
    import torch

    return bool(parts) and all(type(part) is torch.Tensor for part in parts) and len({p.shape for p in parts}) == 1
