"""One place decides what is skipped, and says why; every test gets a run folder of its own."""

import pytest


@pytest.fixture(autouse=True)
def runs(tmp_path_factory, monkeypatch):
    """Keep the runs of tests out of the user's: a folder that commands started by a test see too."""
    folder = tmp_path_factory.mktemp("runs")
    monkeypatch.setenv("RIDGEPOINT_RUNS", str(folder))
    return folder


def pytest_collection_modifyitems(items):
    gpu_items = [item for item in items if item.get_closest_marker("gpu")]
    if not gpu_items:
        return
    import torch

    if not torch.cuda.is_available():
        for item in gpu_items:
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device; torch sees none here"))
