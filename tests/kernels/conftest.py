"""What all kernel tests start from."""

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session", autouse=True)
def empty_compile_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Compile everything anew: Triton's cache does not notice every change, a kernel's name among them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_CACHE_DIR", str(tmp_path_factory.mktemp("triton")))
        yield
