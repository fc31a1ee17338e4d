"""A path that is written with a slash at its end is a folder, whichever option takes it."""

from pathlib import Path

import pytest

from bench.harness.cli.arguments import UsageError
from bench.harness.cli.main import check_output, check_places
from bench.harness.settings import Settings
from results.show.options import path


def test_a_path_is_a_path_unless_it_is_a_folder_to_be_made(tmp_path):
    assert path("new") == Path("new")
    assert path(f"{tmp_path}/") == tmp_path
    assert path(f"{tmp_path}/new/") == f"{tmp_path}/new/"


def test_a_file_is_no_folder(tmp_path):
    (tmp_path / "file").write_text("held")
    with pytest.raises(
        UsageError, match=r"cannot write .*file: .*file: Not a directory; choose another"
    ):
        check_output(path(f"{tmp_path}/file/"))


def test_a_picture_is_no_folder():
    args = Settings(no_save=True, plot=path("new.png/"))
    with pytest.raises(UsageError, match=r"--plot new\.png/ is a directory"):
        check_places(args)
