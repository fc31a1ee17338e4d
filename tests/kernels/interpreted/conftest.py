"""What makes the interpreter faster, and one of an older Triton run, without changing what it computes."""

import inspect
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest


@pytest.fixture(scope="session", autouse=True)
def builtins_are_searched_once() -> Iterator[None]:
    """Remember which members of Triton's language are builtins.

    The interpreter replaces them anew in every call of a helper, and to find them it asks for all members each time: a
    third of the time of a kernel with helpers. Which ones they are does not change; what they are now is looked up as
    ever.
    """
    from triton.language.core import is_builtin
    from triton.runtime import interpreter

    names: dict[Any, list[str]] = {}

    def builtins_of(thing: Any) -> list[tuple[str, Any]]:
        if thing not in names:
            names[thing] = [name for name, member in inspect.getmembers(thing) if is_builtin(member)]
        return [(name, getattr(thing, name)) for name in names[thing]]

    with pytest.MonkeyPatch.context() as patch:
        faster = SimpleNamespace(**(vars(inspect) | {"getmembers": builtins_of}))
        patch.setattr(interpreter, "inspect", faster, raising=False)
        yield


@pytest.fixture(scope="session", autouse=True)
def whole_numbers_are_scalars() -> Iterator[None]:
    """Let Triton 3.6 take a loop's bound from an array of one element, and let a sum of int32 wrap, as 3.9 does.

    numpy refuses to convert an array of one dimension since 2.5, and an integer beyond the dtype since 2.0.
    """
    from triton.runtime import interpreter

    patch_tensor, to_tensor = interpreter._patch_lang_tensor, interpreter.ReduceScanOpInterface.to_tensor

    def wrapped(self: Any, values: Any, dtype: Any) -> Any:
        if not getattr(values, "shape", ()):
            values = np.asarray(values).astype(interpreter._get_np_dtype(dtype))[()]
        return to_tensor(self, values, dtype)

    def patched(tensor: Any, scope: Any) -> None:
        patch_tensor(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: self.handle.data.item())

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(interpreter, "_patch_lang_tensor", patched)
        patch.setattr(interpreter.ReduceScanOpInterface, "to_tensor", wrapped)
        yield
