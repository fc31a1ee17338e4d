"""A pynvml that replays a machine from a JSON file: nothing of NVIDIA needs to be there.

The recordings in `nvml_machines/` are made up from documented behavior of NVML; none of them was measured. The errors,
the constants and the structures are those of the real nvidia-ml-py, whose signatures every call is held against.

How a call answers, by its name under `calls`:

    710000                          always this
    {"steps": [1980, 1410]}         by the number of the step, which a test raises between two snapshots
    {"error": "NotSupported"}       raises NVMLError_NotSupported
    {"by_argument": {"1": 1980}}    by the last argument
    {"fields": {"74": 0}}           field values by id; each may be any of the above
    {"object": {"used": 0}}         an object with these members
"""

from __future__ import annotations

import copy
import inspect
import json
import re
import types
from pathlib import Path
from typing import Any

import pynvml as real

MACHINES = Path(__file__).parent / "nvml_machines"

NAMES = sorted(path.stem for path in MACHINES.glob("*.json"))

READS = re.compile(r"nvmlInit|nvml(Device|System)(Get|Is)\w+")
"""Functions that change nothing. All others, every setter among them, fail and are remembered."""

BY_NUMBER = re.compile(r"nvmlDeviceGet(HandleByIndex\w*|Count\w*)")
"""Functions that find a GPU by its number, which differs from torch's."""


class Machine:
    """One recorded machine and what was asked of it."""

    def __init__(self, name: str) -> None:
        self.record = read(name)
        self.step = 0
        self.forbidden: list[str] = []
        self.unrecorded: list[str] = []
        self.asked: list[str] = []
        self.replaced: list[str] = []
        self.pynvml = self._module()

    @property
    def about(self) -> str:
        return self.record["about"]

    @property
    def torch_uuid(self) -> str:
        """The UUID as torch tells it: without a prefix."""
        return self.record["torch_uuid"]

    def _module(self) -> types.ModuleType | None:
        if self.record.get("bindings") == "missing":
            return None
        module = types.ModuleType("pynvml")
        lacking = set(self.record.get("bindings_lack", ()))
        for name in dir(real):
            if name.startswith("__") or name in lacking:
                continue
            value = getattr(real, name)
            if inspect.isfunction(value) and name.startswith("nvml"):
                value = self._function(name, value)
                self.replaced.append(name)
            setattr(module, name, value)
        return module

    def _function(self, name: str, original: Any) -> Any:
        signature = inspect.signature(inspect.unwrap(original))

        def replay(*arguments: Any) -> Any:
            signature.bind(*arguments)
            self.asked.append(name)
            if not READS.fullmatch(name) or BY_NUMBER.fullmatch(name):
                self.forbidden.append(name)
                raise RuntimeError(f"{name} must not be called")
            return self._answer(name, arguments)

        return replay

    def _answer(self, name: str, arguments: tuple[Any, ...]) -> Any:
        if name == "nvmlInit":
            return self._value(self.record.get("init"), arguments)
        if name == "nvmlDeviceGetHandleByUUID":
            return self._handle(arguments[0])
        if name == "nvmlDeviceGetDeviceHandleFromMigDeviceHandle":
            return self._value(self._calls(arguments[0]).get("parent", {"error": "NotFound"}), arguments)
        calls = self.record.get("system", {}) if name.startswith("nvmlSystem") else self._calls(arguments[0])
        if name not in calls:
            self.unrecorded.append(name)
            raise error("FunctionNotFound")
        return self._value(calls[name], arguments)

    def _handle(self, uuid: str) -> str:
        if uuid not in self.record.get("devices", {}):
            raise error("NotFound")
        return uuid

    def _calls(self, handle: str) -> dict[str, Any]:
        return self.record["devices"][handle]

    def _value(self, recorded: Any, arguments: tuple[Any, ...]) -> Any:
        if not isinstance(recorded, dict):
            return [self._value(item, arguments) for item in recorded] if isinstance(recorded, list) else recorded
        (kind, content), *_ = recorded.items()
        if kind == "error":
            raise error(content)
        if kind == "steps":
            return self._value(content[min(self.step, len(content) - 1)], arguments)
        if kind == "by_argument":
            return self._value(content[str(arguments[-1])], arguments)
        if kind == "object":
            return types.SimpleNamespace(**{key: self._value(item, arguments) for key, item in content.items()})
        assert kind == "fields", kind
        return self._fields(content, arguments[1])

    def _fields(self, recorded: dict[str, Any], ids: list[int]) -> Any:
        """Return the array of the real structure; an id that is not recorded is not supported, as on any GPU."""
        entries = (real.c_nvmlFieldValue_t * len(ids))()
        for entry, number in zip(entries, ids, strict=True):
            entry.fieldId, entry.valueType = number, real.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG
            try:
                entry.value.ullVal = self._value(recorded.get(str(number), {"error": "NotSupported"}), ())
            except real.NVMLError as raised:
                entry.nvmlReturn, entry.value.ullVal = raised.value, 123_456_789  # undefined where the entry failed
        return entries


def read(name: str) -> dict[str, Any]:
    """Return a recording; one that is `like` another holds only what differs, a null takes something away."""
    record = json.loads((MACHINES / f"{name}.json").read_text(encoding="utf-8"))
    return merged(read(record["like"]), record) if "like" in record else record


def merged(base: Any, change: Any) -> Any:
    if not isinstance(base, dict) or not isinstance(change, dict) or set(change) & {"error", "steps"}:
        return copy.deepcopy(change)
    if set(base) & {"error", "steps"}:
        return copy.deepcopy(change)
    both = {key: merged(base.get(key), value) for key, value in change.items()}
    return {key: value for key, value in (base | both).items() if value is not None}


def error(name: str) -> Exception:
    return getattr(real, f"NVMLError_{name}")()


class Replay:
    """Puts machines in the place of pynvml, and remembers them."""

    def __init__(self, monkeypatch: Any) -> None:
        self._monkeypatch = monkeypatch
        self.machines: list[Machine] = []

    def __call__(self, name: str) -> Machine:
        machine = Machine(name)
        self.machines.append(machine)
        self._monkeypatch.setitem(__import__("sys").modules, "pynvml", machine.pynvml)
        return machine

    def check(self) -> None:
        """Fail where a function was called that writes, that counts GPUs, or that a recording says nothing of."""
        for machine in self.machines:
            assert machine.forbidden == [], machine.about
            assert machine.unrecorded == [], machine.about
