"""A pynvml that replays the machine of `nvml_machine.json`: nothing of NVIDIA needs to be there.

The recording is made up from documented behavior of NVML; it was not measured. The errors, the
constants and the structures are those of the real nvidia-ml-py, whose signatures every call is
checked against.

How a call answers, by its name in `system` or `gpu`:

    710000                          always this
    {"steps": [1980, 1410]}         by the number of the step, which a test raises between two
                                    snapshots
    {"error": "NotSupported"}       raises NVMLError_NotSupported
    {"by_argument": {"1": 1980}}    by the last argument
    {"fields": {"74": 0}}           field values by id; each may be any of the above
    {"object": {"pid": 0}}          an object with these members
"""

import inspect
import json
import re
import sys
import types
from pathlib import Path

import pynvml as real

from bench.harness.device import gpu_state

RECORDING = Path(__file__).parent / "nvml_machine.json"

READS = re.compile(
    r"nvmlInit|nvmlDeviceGetHandleByUUID|nvml(Device|System)Get(?!HandleByIndex|Count)\w+"
)
"""Functions that change nothing and find no GPU by its index. All others fail and are recorded."""


class Machine:
    """The recorded machine, and the log of its calls."""

    def __init__(self):
        self.record = json.loads(RECORDING.read_text(encoding="utf-8"))
        self.gpu = self.record["gpu"]
        self.uuid = self.record["torch_uuid"]
        self.step = 0
        self.asked = []
        self.forbidden = []
        self.pynvml = types.ModuleType("pynvml")
        for name in dir(real):
            value = getattr(real, name)
            is_call = inspect.isfunction(value) and name.startswith("nvml")
            if not name.startswith("__"):
                setattr(self.pynvml, name, self._function(name, value) if is_call else value)

    def _function(self, name, original):
        signature = inspect.signature(inspect.unwrap(original))

        def replay(*arguments):
            signature.bind(*arguments)
            self.asked.append(name)
            if not READS.fullmatch(name):
                self.forbidden.append(name)
                raise RuntimeError(f"{name} must not be called")
            return self._answer(name, arguments)

        return replay

    def _answer(self, name, arguments):
        if name == "nvmlDeviceGetHandleByUUID":
            if arguments[0] != f"GPU-{self.uuid}":
                raise error("NotFound")
            return "handle"
        calls = (
            self.record["system"]
            if name.startswith("nvmlSystem") or name == "nvmlInit"
            else self.gpu
        )
        return self._value(calls.get(name, {"error": "FunctionNotFound"}), arguments)

    def _value(self, recorded, arguments):
        if not isinstance(recorded, dict):
            return (
                [self._value(item, arguments) for item in recorded]
                if isinstance(recorded, list)
                else recorded
            )
        [(kind, content)] = recorded.items()
        if kind == "error":
            raise error(content)
        if kind == "steps":
            return self._value(content[self.step], arguments)
        if kind == "by_argument":
            return self._value(content[str(arguments[-1])], arguments)
        if kind == "object":
            return types.SimpleNamespace(**content)
        assert kind == "fields", kind
        return self._fields(content, arguments[1])

    def _fields(self, recorded, ids):
        """Return the array of the real structure; ids that are not recorded are not supported."""
        entries = (real.c_nvmlFieldValue_t * len(ids))()
        for entry, number in zip(entries, ids, strict=True):
            entry.fieldId, entry.valueType = number, real.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG
            try:
                entry.value.ullVal = self._value(
                    recorded.get(str(number), {"error": "NotSupported"}), ()
                )
            except real.NVMLError as raised:
                # Undefined if the entry failed.
                entry.nvmlReturn, entry.value.ullVal = (raised.value, 123_456_789)
        return entries


def error(name):
    return getattr(real, f"NVMLError_{name}")()


def install(monkeypatch):
    """Replace pynvml by a recorded machine."""
    machine = Machine()
    gpu_state.handle_of.cache_clear()
    monkeypatch.setitem(sys.modules, "pynvml", machine.pynvml)
    return machine
