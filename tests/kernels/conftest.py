"""What all kernel tests start from."""

from pathlib import Path
from unittest.mock import patch

import pytest


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
