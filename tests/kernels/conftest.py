"""What all kernel tests start from."""

from pathlib import Path

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
