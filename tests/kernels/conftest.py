"""Fixtures of all kernel tests."""

import inspect
import os
from types import SimpleNamespace
from unittest.mock import patch

import numpy as np
import pytest
import torch

from kernels.launch import INTERPRETED

if INTERPRETED:
    # The interpreter uses one; more would wait for each other on a busy machine.
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def empty_folder(tmp_path_factory):
    """A directory that is empty at the start of the tests; the processes of pytest-xdist share
    it.
    """
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent
    (folder / "triton").mkdir(exist_ok=True)
    return folder / "triton"


@pytest.fixture(autouse=True)
def empty_compile_cache(request, monkeypatch, empty_folder):
    """Compile everything again, because Triton's cache ignores some changes, such as the name of a
    kernel.

    The thousands of launches on a GPU keep the cache, because they check only values.
    """
    if request.node.get_closest_marker("gpu") is None:
        monkeypatch.setenv("TRITON_CACHE_DIR", str(empty_folder))


@pytest.fixture
def launches(monkeypatch):
    """Grid and compiled kernel of every launch, in order. Nothing is executed.

    Unlike the interpreter and an ahead-of-time compile, this detects options and arguments that a
    launch rejects.
    """
    import triton
    from triton.runtime.jit import JITFunction

    from kernels import launch, precompile

    # The default to come in Triton 3.10.
    monkeypatch.setattr(triton.knobs.language, "default_fp_fusion", False)
    # So that kernels of other tests are compiled again.
    monkeypatch.setattr(precompile, "NO_DEVICE", 4_000_000)
    recorded = []
    with precompile.compile_only(launch.stand_in):
        compile_only = JITFunction.run

        def noted(kernel, *args, grid, **kwargs):
            recorded.append((grid, compile_only(kernel, *args, grid=grid, **kwargs)))

        with patch.object(JITFunction, "run", noted):
            yield recorded


@pytest.fixture(scope="session", autouse=INTERPRETED)
def builtins_are_searched_once():
    """Cache the names of the builtins of Triton's language.

    The interpreter searches for them in every call of a helper, which takes a third of the time of
    such a kernel.
    """
    from triton.language.core import is_builtin
    from triton.runtime import interpreter

    names = {}

    def builtins_of(thing):
        if thing not in names:
            names[thing] = [
                name for name, member in inspect.getmembers(thing) if is_builtin(member)
            ]
        return [(name, getattr(thing, name)) for name in names[thing]]

    with pytest.MonkeyPatch.context() as patch:
        faster = SimpleNamespace(**(vars(inspect) | {"getmembers": builtins_of}))
        patch.setattr(interpreter, "inspect", faster, raising=False)
        yield


@pytest.fixture(scope="session", autouse=INTERPRETED)
def whole_numbers_are_scalars():
    """Make Triton 3.6 accept an array of one element as loop bound, and wrap sums of int32, as 3.9
    does.

    numpy rejects the conversion of a one-dimensional array since 2.5, and of an integer beyond the
    dtype since 2.0.
    """
    from triton.runtime import interpreter

    patch_tensor, to_tensor = (
        interpreter._patch_lang_tensor,
        interpreter.ReduceScanOpInterface.to_tensor,
    )

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
