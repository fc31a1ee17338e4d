"""`latest` and all that looks for a run: which file it is, what is said of unfinished ones."""

import os
from datetime import UTC, datetime, timedelta

import pytest

from results.__main__ import main
from results.store.runfile import load_run
from results.store.runs import RunNotFoundError, RunWriter, find_run


@pytest.fixture
def keep(make_environment, make_record, monkeypatch):
    """Returns a function that keeps a run of a minute of one day and returns its file; several may share a minute."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)  # hundreds of them take a minute on a slow disk

    def write(minute, number=0, **changes):
        start = datetime(2026, 11, 20, tzinfo=UTC) + timedelta(minutes=minute)
        usual = {"run_id": f"{start:%Y%m%dT%H%M%SZ}-{number:010x}", "started_at": start.isoformat()}
        with RunWriter.create(make_environment(**(usual | changes)), "matmul") as writer:
            writer.append(make_record())
        return writer.path

    return write


def test_a_renamed_run_is_the_newest_all_the_same(keep):
    keep(1)
    renamed = keep(2).rename(keep(0).with_name("the best one.jsonl"))
    assert find_run("latest") == renamed


@pytest.mark.parametrize("damage", [b"", b"\0\1\2", b'{"kind": "environment", "schema": 999}\n', b'{"kind": "enviro'])
def test_a_newest_file_that_cannot_be_read_is_passed_over(keep, damage):
    good, bad = keep(1), keep(2)
    bad.write_bytes(damage)
    assert find_run("latest") == good
    good.unlink()
    with pytest.raises(RunNotFoundError, match=r"no run in .* can be read: python -m results list says why"):
        find_run("latest")


# ---- a run that is not finished ------------------------------------------------------------------------------------


def said(capsys, *arguments):
    code = main([*arguments])
    return code, capsys.readouterr().err


def test_a_run_that_is_still_being_measured_is_said_to_be(make_environment, make_record, capsys):
    with RunWriter.create(make_environment(), "matmul") as writer:
        empty, note = f"note: {writer.path} has no record\n", f"note: {writer.path}: the run is still being measured\n"
        assert said(capsys, "show", "latest") == (0, empty + note)
        refusal = f"python -m results compare: error: {writer.path} has no record: the run is still being measured\n"
        assert said(capsys, "compare", "latest", "--by", "provider") == (2, refusal)
        writer.append(make_record())
        assert said(capsys, "show", "latest") == (0, note)
        assert said(capsys, "export", "latest", "--format", "csv") == (0, note)
    assert said(capsys, "show", "latest") == (0, "")


def test_a_run_that_ended_without_a_record_is_named(make_environment, capsys):
    RunWriter.create(make_environment(), "matmul").close()
    path = find_run("latest")
    assert said(capsys, "export", "latest", "--format", "csv") == (0, f"note: {path} has no record\n")
    assert said(capsys, "compare", "latest") == (2, f"python -m results compare: error: {path} has no record\n")
    assert load_run(path).notes == ()
