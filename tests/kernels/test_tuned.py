"""The kept configurations of a GPU: what is written, what still holds, and that a launch takes it."""

import json

import pytest
import torch

import kernels.launch
from kernels import precompile, tuned
from kernels.launch import Gpu
from kernels.matmul import v5_split_k

pytestmark = pytest.mark.skipif(kernels.launch.INTERPRETED, reason="interpreted kernels are not compiled")

H100 = Gpu(90, 132, 50 * 2**20, "NVIDIA H100 80GB HBM3")
FAST, SLOW = v5_split_k.Config(128, 128, 64, 8, 3), v5_split_k.Config(64, 64, 64, 4, 3, splits=2)
TABLE = [{"config": FAST._asdict(), "median_s": 1e-5}, {"config": SLOW._asdict(), "screened_s": 2e-5}]
KEY = "matmul v5 | bf16 | nn | 256x256x512 | batch 1"


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """Keep the tables of tests out of the user's."""
    monkeypatch.setenv("RIDGEPOINT_TUNED", str(tmp_path / "tuned"))
    tuned._kept.cache_clear()
    yield tmp_path / "tuned"
    tuned._kept.cache_clear()


def test_the_fastest_is_kept_for_this_gpu_alone(folder):
    assert tuned.winner(H100, KEY, "text") is None
    path = tuned.keep(H100, KEY, TABLE, "text")
    assert path == folder / "nvidia-h100-80gb-hbm3-132-sm.json"
    tuned.keep(H100, "another product", TABLE[::-1], "text")
    assert v5_split_k.Config(**tuned.winner(H100, KEY, "text")) == FAST
    assert v5_split_k.Config(**tuned.winner(H100, "another product", "text")) == SLOW
    part = Gpu(90, 16, 50 * 2**20, H100.name)  # of the same GPU, as MIG gives
    assert tuned.winner(part, KEY, "text") is None
    assert [path.name for path in folder.iterdir()] == [path.name]


def test_another_text_or_triton_is_timed_anew(monkeypatch):
    tuned.keep(H100, KEY, TABLE, "text")
    assert tuned.winner(H100, KEY, "another text") is None
    monkeypatch.setattr(tuned.triton, "__version__", "3.0.0")
    assert tuned.winner(H100, KEY, "text") is None


@pytest.mark.parametrize("text", ["{", "[]", '{"schema": 2, "kept": {}}', '{"schema": 1}'])
def test_a_broken_file_is_named_and_left_as_it_is(folder, text):
    path = tuned.path_of(H100)
    path.parent.mkdir()
    path.write_text(text)
    for call in (lambda: tuned.winner(H100, KEY, "text"), lambda: tuned.keep(H100, KEY, TABLE, "text")):
        with pytest.raises(tuned.TunedFileError, match=str(path)) as error:
            call()
        assert "\n" not in str(error.value)
    assert path.read_text() == text


def test_a_folder_that_cannot_be_written_is_one_line(folder):
    folder.write_text("a file")
    with pytest.raises(tuned.TunedFileError, match=r"cannot (read|write)"):
        tuned.keep(H100, KEY, TABLE, "text")


def warps_and_splits(launcher):
    """Launch 256 x 256 x 512 up to the compiler, and return warps, and whether the terms were split."""
    a, b, out = (
        torch.empty(shape, dtype=torch.bfloat16, device="meta") for shape in ((256, 512), (512, 256), (256, 256))
    )
    with precompile.compile_only(H100) as compiled:
        launcher["matmul"](a, b, out=out)
    return compiled[0].metadata.num_warps, len(compiled) == 2


def test_a_launch_takes_what_is_kept_and_else_the_fixed_choice():
    fixed = warps_and_splits(v5_split_k.KERNELS)
    assert fixed == (4, True)  # 16 tiles of 64 x 64 for 132 multiprocessors
    assert warps_and_splits(v5_split_k.AUTOTUNED) == fixed
    tuned.keep(H100, KEY, TABLE, v5_split_k.source_sha256())
    assert warps_and_splits(v5_split_k.AUTOTUNED) == (8, False)
    assert warps_and_splits(v5_split_k.KERNELS) == fixed  # hangs on no file


def test_what_is_kept_can_be_read_by_others(folder):
    path = tuned.keep(H100, KEY, TABLE, "text")
    document = json.loads(path.read_text())
    assert document["gpu"] == H100.name
    assert document["kept"][KEY]["table"][1]["config"]["splits"] == 2
