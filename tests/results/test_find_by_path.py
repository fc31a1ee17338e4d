"""What is asked for by a path, and is no file there."""

import os
from pathlib import Path

import pytest

from results.store.runs import RunNotFoundError, RunWriter, find_run


@pytest.mark.parametrize("has_runs", [True, False])
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("folder", "no run 'folder': folder is a directory, not a run file"),
        (".", "no run '.': . is a directory, not a run file"),
        ("pipe", "no run 'pipe': pipe is not a regular file, not a run file"),
        ("dangling", "no run 'dangling': dangling is a broken link: No such file or directory"),
        ("loop", "no run 'loop': loop is a broken link: Too many levels of symbolic links"),
        ("./dangling", "./dangling is a broken link: No such file or directory"),
        ("./loop", "./loop is a broken link: Too many levels of symbolic links"),
    ],
)
def test_what_is_at_a_path_that_is_no_file_is_said(make_environment, tmp_path, monkeypatch, has_runs, name, message):
    if has_runs:
        RunWriter.create(make_environment(), "matmul").close()
    monkeypatch.chdir(tmp_path)
    Path("folder").mkdir()
    os.mkfifo("pipe")
    Path("dangling").symlink_to("nowhere")
    Path("loop").symlink_to("loop")
    with pytest.raises(RunNotFoundError) as caught:
        find_run(name)
    assert str(caught.value) == message


def test_a_run_is_found_although_a_folder_has_its_name(make_environment, tmp_path, monkeypatch):
    with RunWriter.create(make_environment(), "matmul") as writer:
        monkeypatch.chdir(tmp_path)
    Path(make_environment().run_id).mkdir()
    assert find_run(make_environment().run_id) == writer.path
