"""What all kernel tests start from."""

import inspect
from types import SimpleNamespace
from unittest.mock import patch

import numpy as np
import pytest
import torch

from kernels.launch import INTERPRETED

if INTERPRETED:
    torch.set_num_threads(1)  # the interpreter has one, and waits for the others of a busy machine


@pytest.fixture(scope="session")
def empty_folder(tmp_path_factory):
    return tmp_path_factory.mktemp("triton")


@pytest.fixture(autouse=True)
def empty_compile_cache(request, monkeypatch, empty_folder):
    """Compile everything anew: Triton's cache does not notice every change, a kernel's name among them.

    Tests on a GPU look at values alone, which it does notice, and are thousands of launches: the cache stays.
    """
    if request.node.get_closest_marker("gpu") is None:
        monkeypatch.setenv("TRITON_CACHE_DIR", str(empty_folder))


@pytest.fixture
def launches(monkeypatch):
    """Grid and compiled kernel of every launch, in order, up to the driver; nothing is executed.

    The interpreter ignores compiler options and an ahead-of-time compile sees no launcher, so neither notices an
    option or an argument that a real launch would reject.
    """
    import triton
    from triton.runtime.jit import JITFunction

    from kernels import launch, precompile

    monkeypatch.setattr(triton.knobs.language, "default_fp_fusion", False)  # the default to come in Triton 3.10
    monkeypatch.setattr(precompile, "NO_DEVICE", 4_000_000)  # what other tests compile is compiled there again
    seen = []
    with precompile.compile_only(launch.stand_in):
        compile_only = JITFunction.run

        def noted(kernel, *args, grid, **kwargs):
            seen.append((grid, compile_only(kernel, *args, grid=grid, **kwargs)))

        with patch.object(JITFunction, "run", noted):
            yield seen


@pytest.fixture(scope="session", autouse=INTERPRETED)
def builtins_are_searched_once():
    """Remember which members of Triton's language are builtins.

    The interpreter replaces them anew in every call of a helper, and to find them it asks for all members each time: a
    third of the time of a kernel with helpers. Which ones they are does not change; what they are now is looked up as
    ever.
    """
    from triton.language.core import is_builtin
    from triton.runtime import interpreter

    names = {}

    def builtins_of(thing):
        if thing not in names:
            names[thing] = [name for name, member in inspect.getmembers(thing) if is_builtin(member)]
        return [(name, getattr(thing, name)) for name in names[thing]]

    with pytest.MonkeyPatch.context() as patch:
        faster = SimpleNamespace(**(vars(inspect) | {"getmembers": builtins_of}))
        patch.setattr(interpreter, "inspect", faster, raising=False)
        yield


@pytest.fixture(scope="session", autouse=INTERPRETED)
def whole_numbers_are_scalars():
    """Let Triton 3.6 take a loop's bound from an array of one element, and let a sum of int32 wrap, as 3.9 does.

    numpy refuses to convert an array of one dimension since 2.5, and an integer beyond the dtype since 2.0.
    """
    from triton.runtime import interpreter

    patch_tensor, to_tensor = interpreter._patch_lang_tensor, interpreter.ReduceScanOpInterface.to_tensor

    def wrapped(self, values, dtype):
        if not getattr(values, "shape", ()):
            values = np.asarray(values).astype(interpreter._get_np_dtype(dtype))[()]
        return to_tensor(self, values, dtype)

    def patched(tensor, scope):
        patch_tensor(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: self.handle.data.item())

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(interpreter, "_patch_lang_tensor", patched)
        patch.setattr(interpreter.ReduceScanOpInterface, "to_tensor", wrapped)
        yield
