"""What all kernel tests start from."""

from pathlib import Path

import pytest


class NoDevice:
    """Stands in for the driver of a GPU that is not there; its number is used by no real one."""

    def get_current_target(self):
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", 90, 32)

    def get_current_device(self):
        return 1_000_000

    def get_current_stream(self, device):
        return 0


@pytest.fixture(scope="session")
def empty_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("triton")


@pytest.fixture(autouse=True)
def empty_compile_cache(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, empty_folder: Path) -> None:
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

    import kernels.launch

    run, seen = JITFunction.run, []

    def compile_only(kernel, *args, grid, warmup, **kwargs):
        seen.append((grid, run(kernel, *args, grid=grid, warmup=True, **kwargs)))

    monkeypatch.setattr(JITFunction, "run", compile_only)
    monkeypatch.setattr(kernels.launch, "INTERPRETED", True)  # so that CPU tensors pass
    monkeypatch.setattr(triton.runtime.driver, "_active", NoDevice())
    monkeypatch.setattr(triton.knobs.language, "default_fp_fusion", False)  # the default to come in Triton 3.10
    return seen
