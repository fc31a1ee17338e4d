"""The checks of a row's result, before it is timed and after: `Checks`, and for a user's function `UserChecks`.

    output       poisoned before the call, so that an element that is not written shows
    late work    the result is copied at the moment the call returns, and the copy is verified
    inputs       compared with a copy that was made before the call
    old results  new values in the same tensors, the output left as the timed launches left it
    settings     torch's threads, default dtype and fp32 precision, before and after

They find mistakes, and tricks by which a function only seems fast. They do not find a write beyond the output (run
`compute-sanitizer`), nor code written to deceive them, which in the same process could replace the timer.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from bench.harness import worker
from bench.harness.data import verify
from bench.harness.data.inputs import Filler, InputSet
from bench.harness.data.verify import CheckResult
from bench.harness.device.device import Device
from bench.harness.op import Case, Op

if TYPE_CHECKING:
    from torch import Tensor

    from bench.harness.op import Launch

Call = Callable[[], object]

STALE = "returns the result of an earlier call: the inputs are others, the result is the same"
MUTATED = "changes its inputs: their bytes are others than before the call"


class Checks:
    """Verifies calls of our own providers, whose code is known."""

    call_s = 0.0
    """Seconds from the last call to its finished result."""
    result: Tensor
    """What the last call returned."""

    def __init__(self, op: Op, case: Case, device: Device) -> None:
        """Prepare to check the calls of one row."""
        self._op, self._case, self._device = op, case, device

    def first(self, call: Call, data: InputSet) -> CheckResult:
        """Return the check of a call on a poisoned output."""
        return self._checked(call, data)

    def last(self, call: Call, data: InputSet, earlier: Launch | None) -> CheckResult:
        """Return the check of a call after timing; a random result must differ from that of the `earlier` launch."""
        return self._checked(call, data, earlier)

    def _checked(self, call: Call, data: InputSet, earlier: Launch | None = None) -> CheckResult:
        start = time.perf_counter()
        self.result = verify.run_poisoned(call, data.out, self._device.synchronize)
        self.call_s = time.perf_counter() - start
        return verify.check(self._op, self._case, data, self.result, earlier)


class UserChecks(Checks):
    """Verifies calls of a function that is not ours."""

    def __init__(
        self,
        op: Op,
        case: Case,
        device: Device,
        fill: str,
        takes_out: bool,
        restore: Callable[[], Sequence[str]],
    ) -> None:
        """Prepare.

        Args:
            op: the operation.
            case: the case.
            device: the device.
            fill: the inputs' fill.
            takes_out: whether the function has a parameter `out`.
            restore: sets back what the calls have changed of the process's settings, and returns what it was.
        """
        super().__init__(op, case, device)
        self._fill, self._takes_out, self._restore = fill, takes_out, restore
        self._random = random.Random()

    def last(self, call: Call, data: InputSet, earlier: Launch | None) -> CheckResult:
        """Return the check of a call after timing, and of one on new values in the same input tensors."""
        stale = self.result
        checked = self._checked(call, data, earlier)
        first_inputs = tuple(x.clone() for x in data.inputs)
        if checked.is_right:
            stale = self.result
            if earlier is not None:
                earlier = tuple(x.clone() for x in data.inputs), stale
            seed = self._renew(data)
            checked = self._checked(call, data, earlier, is_poisoned=False)
            if not checked.is_right and checked.checked_elements:
                reason = f"on new values in the same tensors (seed {seed}): {checked.reason}"
                checked = replace(checked, reason=reason)
        if not checked.is_right and checked.checked_elements and _same_bytes(self.result, stale):
            checked = replace(checked, reason=STALE)
        for x, first in zip(data.inputs, first_inputs, strict=True):
            x.copy_(first)  # others may share the buffers
        return checked

    def _checked(
        self, call: Call, data: InputSet, earlier: Launch | None = None, is_poisoned: bool = True
    ) -> CheckResult:
        """Return the check of a call; a finding about anything but the values checks no elements."""
        import torch

        if is_poisoned:
            verify.poison(data.out)
        kept, places = [x.clone() for x in data.inputs], _places_of(data)
        self._device.synchronize()
        worker.announce()
        start = time.perf_counter()
        returned: Any = call()
        if self._takes_out and not isinstance(returned, torch.Tensor | tuple):
            returned = data.out  # a launcher may return whatever it likes
        if isinstance(returned, tuple) and returned and all(isinstance(part, torch.Tensor) for part in returned):
            result, parts = torch.stack(returned), returned
        else:
            result, parts = (returned.clone() if type(returned) is torch.Tensor else returned), (returned,)
        self._device.synchronize()
        self.call_s = time.perf_counter() - start
        worker.rest()
        found = self._side_effect(data, kept, places) or _strange(parts, result, data)
        del kept
        if found is not None:
            return CheckResult(False, found, float("inf"), 0, data.out.numel())
        self.result = result
        return verify.check(self._op, self._case, data, result, earlier)

    def _side_effect(self, data: InputSet, kept: Sequence[Tensor], places: tuple[int, ...]) -> str | None:
        changed = self._restore()  # later calls in this process must not be blamed for it
        if changed:
            return f"changed settings of the process and left them so: {', '.join(changed)}"
        if places != _places_of(data):
            return "put other memory under an input or the output"
        if all(map(_same_bytes, data.inputs, kept)):
            return None
        for x, before in zip(data.inputs, kept, strict=True):
            x.copy_(before)
        return MUTATED

    def _renew(self, data: InputSet) -> int:
        """Give each input new values, and return the seed of these values."""
        seed = self._random.getrandbits(32)
        fill = "uniform" if self._fill == "zeros" else self._fill
        fresh = self._op.make_inputs(self._case, Filler(fill, self._case.dtype, self._device, seed))
        for x, new in zip(data.inputs, fresh, strict=True):
            x.copy_(new)
        return seed


def _strange(parts: Sequence[Any], result: Any, data: InputSet) -> str | None:
    """Return why a result was not computed into memory of its own, or None if it was."""
    import torch

    if not isinstance(result, torch.Tensor) or any(type(part) is not torch.Tensor for part in parts):
        kind = "None" if result is None else f"a {type(result).__name__}"
        extents = "x".join(map(str, data.out.shape))
        expected = f"a torch.Tensor of {extents} {data.out.dtype} is expected"
        return f"wrong result: it returned {kind}; {expected}, or a parameter named out to write it into"
    if result.device != data.out.device or result.layout is not torch.strided:
        return f"wrong result: a tensor {result.layout} on {result.device} instead of a dense one on {data.out.device}"
    if any(stride == 0 and extent > 1 for x in parts for stride, extent in zip(x.stride(), x.shape, strict=True)):
        return "wrong result: its elements share memory (a stride of 0), so that they are not all written"
    held = {x.untyped_storage().data_ptr() for x in data.inputs}
    if any(part.untyped_storage().data_ptr() in held for part in parts):
        return "returns a view of an input: nothing was written"
    return None


def _same_bytes(x: Tensor, other: Tensor) -> bool:
    import torch

    return torch.equal(x.reshape(-1).view(torch.uint8), other.reshape(-1).view(torch.uint8))


def _places_of(data: InputSet) -> tuple[int, ...]:
    return tuple(x.data_ptr() for x in (*data.inputs, data.out))
