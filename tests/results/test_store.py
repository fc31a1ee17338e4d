"""Writing runs so that nothing finished is lost and nothing is overwritten, and finding them
again.
"""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from results.record import RecordError
from results.store import runfile as store
from results.store.runfile import RunWriter, StoreError, load_run, runs_directory
from results.store.runs import EVERYTHING, list_runs

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def template(make_environment, make_record, tmp_path):
    with RunWriter.create(make_environment(), "matmul", tmp_path / "template.jsonl") as writer:
        writer.append(make_record(samples_s=(1e-3,) * 2000, median_s=1e-3))
    return writer.path


def save(make_environment, run_id, slug="h100-sxm", **changes):
    device = {"slug": slug, "name": "a device", "type": "cuda"}
    with RunWriter.create(
        make_environment(run_id=run_id, device=device, **changes), "matmul"
    ) as writer:
        return writer.path


def test_a_run_comes_back_as_it_was_written(make_environment, make_record, make_skipped):
    environment, records = make_environment(), (make_record(), make_skipped())
    with RunWriter.create(environment, "matmul") as writer:
        for record in records:
            writer.append(record)
    run = load_run(writer.path)
    assert (run.environment, run.records) == (environment, records)
    assert (run.notes, run.problems) == ((), ())


def test_names_from_outside_cannot_leave_the_folder(make_environment, runs):
    device = {"slug": "../../etc/ä b", "name": "x", "type": "cpu"}
    environment = make_environment(device=device, run_id="20261120T210312Z-0123456789")
    with RunWriter.create(environment, "my/file.py:function") as writer:
        assert writer.path.parent.parent == runs
        assert writer.path.name == "20261120T210312Z-my-file.py-function-0123456789.jsonl"
    assert save(make_environment, "x", slug="..").parent == runs / "unknown"
    with pytest.raises(RecordError, match=r"at `\$\.run_id`"):
        save(make_environment, "../../x")


def test_every_record_is_on_the_disk_before_append_returns(
    make_environment, make_record, monkeypatch
):
    calls = []
    write, sync = os.write, os.fsync
    with RunWriter.create(make_environment(), "matmul") as writer:
        monkeypatch.setattr(os, "write", lambda *args: (calls.append("write"), write(*args))[1])
        monkeypatch.setattr(os, "fsync", lambda *args: (calls.append("fsync"), sync(*args))[1])
        writer.append(make_record())
        assert calls == ["write", "fsync"]
        assert len(load_run(writer.path).records) == 1


def test_a_failed_append_keeps_a_record_whose_fsync_was_interrupted(
    make_environment, make_record, monkeypatch
):
    def failing(error):
        def fsync(descriptor):
            raise error

        monkeypatch.setattr(os, "fsync", fsync)

    with RunWriter.create(make_environment(), "matmul") as writer:
        for error in (KeyboardInterrupt(), OSError(28, "No space left on device")):
            failing(error)
            with pytest.raises((KeyboardInterrupt, StoreError)):
                writer.append(make_record())
        run = load_run(writer.path)
    assert (len(run.records), run.problems) == (1, ())


def test_runs_directory_is_the_environment_variable_or_default(monkeypatch):
    monkeypatch.setenv("ROOFMARK_RUNS", "/somewhere")
    assert runs_directory() == Path("/somewhere")
    monkeypatch.delenv("ROOFMARK_RUNS")
    assert runs_directory() == ROOT / "results" / "runs"


def test_output_that_ends_with_a_slash_is_a_folder_to_be_made(make_environment, tmp_path):
    with RunWriter.create(make_environment(), "matmul", f"{tmp_path}/a/b/") as writer:
        assert writer.path == tmp_path / "a" / "b" / "20261120T210312Z-matmul-0123456789.jsonl"
    with pytest.raises(StoreError, match="a parent is a file"):
        RunWriter.create(make_environment(run_id="other"), "matmul", f"{writer.path}/")


def test_output_may_be_an_empty_file(make_environment, make_record, tmp_path):
    path = tmp_path / "made-before"
    path.touch()
    with RunWriter.create(make_environment(), "matmul", path) as writer:
        writer.append(make_record())
    assert len(load_run(path).records) == 1


def test_nothing_is_overwritten(make_environment, tmp_path):
    path = tmp_path / "precious.txt"
    path.write_text("precious")
    with pytest.raises(
        StoreError, match=r"precious\.txt: it exists and is not empty; choose another --output"
    ):
        RunWriter.create(make_environment(), "matmul", path)
    assert path.read_text() == "precious"


def test_two_writers_cannot_share_an_empty_file(make_environment, tmp_path):
    path = tmp_path / "run.jsonl"
    with RunWriter.create(make_environment(), "matmul", path) as writer:
        os.truncate(path, 0)  # as between the creation of the file and its first line
        with pytest.raises(StoreError, match="is being written by another run"):
            RunWriter.create(make_environment(), "matmul", path)
        assert writer.path == path


def test_without_any_locks_a_run_is_written(make_environment, make_record, monkeypatch):
    monkeypatch.setitem(sys.modules, "fcntl", None)
    with RunWriter.create(make_environment(), "matmul") as writer:
        writer.append(make_record())
    assert len(load_run(writer.path).records) == 1


@pytest.mark.parametrize(
    "place", ["file/run.jsonl", "file/deeper/run.jsonl", "/proc/run.jsonl", "x" * 300]
)
def test_an_output_that_cannot_be_written_is_one_line(make_environment, tmp_path, place):
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(StoreError) as caught:
        RunWriter.create(make_environment(), "matmul", tmp_path / place)
    assert str(caught.value).startswith("cannot write ")
    assert Path(place).name in str(caught.value)
    assert "\n" not in str(caught.value)


LIMITED = """
import resource, signal, sys
from pathlib import Path
from results.store.runfile import RunWriter, StoreError, load_run
source = load_run(Path(sys.argv[1]))
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
size = Path(sys.argv[1]).stat().st_size
resource.setrlimit(resource.RLIMIT_FSIZE, (int(2.5 * size), int(2.5 * size)))
with RunWriter.create(source.environment, "matmul", Path(sys.argv[2])) as writer:
    try:
        while True:
            writer.append(source.records[0])
    except StoreError as error:
        print(error)
"""


def test_a_full_disk_is_one_line_and_leaves_no_half_record(template, tmp_path):
    path = tmp_path / "full.jsonl"
    command = [sys.executable, "-c", LIMITED, str(template), str(path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.startswith(f"cannot write {path}: File too large")
    run = load_run(path)
    assert (len(run.records), run.notes, run.problems) == (2, (), ())


def test_a_run_that_cannot_get_its_first_line_leaves_no_file(
    make_environment, tmp_path, monkeypatch
):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(store.os, "write", full)
    with pytest.raises(StoreError, match=r"run\.jsonl: No space left on device"):
        RunWriter.create(make_environment(), "matmul", tmp_path / "run.jsonl")
    assert list(tmp_path.iterdir()) == []


def test_a_record_that_may_not_be_written_leaves_the_run_as_it_was(make_environment, make_record):
    with RunWriter.create(make_environment(), "matmul") as writer:
        with pytest.raises(RecordError):
            writer.append(make_record(median_s=float("nan")))
        writer.append(make_record())
    run = load_run(writer.path)
    assert (len(run.records), run.problems) == (1, ())


FIRST, SECOND, THIRD = (
    "20261118T000000Z-aaaa000001",
    "20261119T000000Z-bbbb000002",
    "20261119T000001Z-bbbb000003",
)


@pytest.fixture
def three(make_environment):
    return [
        save(make_environment, FIRST, started_at="2026-11-18T00:00:00+00:00"),
        save(make_environment, SECOND, started_at="2026-11-19T00:00:00+00:00", slug="cpu"),
        save(make_environment, THIRD, started_at="2026-11-19T00:00:01Z"),
    ]


@pytest.mark.parametrize(
    ("name", "index"),
    [
        (FIRST, 0),
        ("20261118", 0),
        ("aaaa", 0),
        ("aaaa000001", 0),
        (SECOND, 1),
        ("20261119T000000Z-matmul-bbbb000002", 1),
        ("20261119T000000Z-matmul-bbbb000002.jsonl", 1),
        ("bbbb000003", 2),
        ("latest", 2),
        ("latest~1", 1),
        ("latest~2", 0),
        ("latest~1:matmul", 1),
        ("0123456-dirty", 2),
        ("0123456789abcdef0123456789abcdef01234567-dirty", 2),
    ],
)
def test_a_run_is_found_by_any_of_its_names(three, name, index):
    assert EVERYTHING.find(name) == three[index]


def test_a_revision_is_that_of_the_measured_kernel_too(make_environment, make_record):
    """The newest run of a revision is found; files that were changed are another version."""
    sides = []
    for second, git in enumerate(({"sha": "beef" * 10}, {"sha": "beef" * 10, "dirty": True})):
        run_id = f"2026112{second}T000000Z-000000000{second}"
        path = save(make_environment, run_id, started_at=f"2026-11-2{second}T00:00:00+00:00")
        with path.open("ab") as file:
            file.write(store.encode_line(make_record(provider="a.py:f", source_git=git)))
        sides.append(path)
    assert EVERYTHING.find("beefbeef") == sides[0]
    assert EVERYTHING.find("beefbeefbe-dirty") == sides[1]


def test_a_tag_or_branch_of_the_repository_here_names_a_revision(
    make_environment, tmp_path, monkeypatch
):
    """A name that git does not know, or the same name in no repository, is no run."""
    repository = tmp_path / "repository"
    git = ["git", "-C", str(repository), "-c", "user.name=a", "-c", "user.email=a@b"]
    paths = []
    for day, command in enumerate(("init -q -b old", "checkout -q -b new")):
        repository.mkdir(exist_ok=True)
        subprocess.run([*git, *command.split()], check=True)
        subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "a"], check=True)
        subprocess.run([*git, "tag", "-a", "-m", "a", f"v0.{day}"], check=True)
        sha = subprocess.check_output([*git, "rev-parse", "HEAD"], text=True).strip()
        run_id = f"2026112{day}T000000Z-000000000{day}"
        paths.append(save(make_environment, run_id, git={"sha": sha, "dirty": False}))
    monkeypatch.chdir(repository)
    names = ["v0.0", "old", "HEAD~1", "v0.1", "new", "HEAD"]
    assert [paths.index(EVERYTHING.find(name)) for name in names] == [0, 0, 0, 1, 1, 1]
    with pytest.raises(StoreError, match=r"no run 'v0\.2'"):
        EVERYTHING.find("v0.2")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(StoreError, match=r"no run 'v0\.1'"):
        EVERYTHING.find("v0.1")


def test_a_run_is_found_by_its_path_wherever_it_is(three, tmp_path, monkeypatch):
    moved = three[0].rename(tmp_path / "moved")
    monkeypatch.chdir(tmp_path)
    assert EVERYTHING.find(str(moved)) == moved
    assert EVERYTHING.find("moved") == Path("moved")


def test_a_run_is_found_in_another_directory(three, runs, tmp_path, monkeypatch):
    monkeypatch.setenv("ROOFMARK_RUNS", str(tmp_path / "elsewhere"))
    assert EVERYTHING.find("latest", runs) == three[2]
    assert EVERYTHING.find("aaaa", runs / "h100-sxm") == three[0]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "20261119",
            (
                "'20261119' matches 2 runs, such as .*20261119T000001Z-matmul-bbbb000003.*, "
                ".*20261119T000000Z-matmul-bbbb000002"
            ),
        ),
        ("bbbb", "'bbbb' matches 2 runs"),
        ("zzzz", "no run 'zzzz' in .*; python -m results list shows all"),
        ("no/such/file.jsonl", "no run file no/such/file.jsonl"),
        ("latest~3", "no run in .* has a matching record"),
        ("latest:gelu", "no run in .* has a matching record"),
        ("0123456", "no run '0123456' in .*"),
    ],
)
def test_a_name_of_none_or_several_runs_says_what_there_is(three, name, message):
    with pytest.raises(StoreError, match=message):
        EVERYTHING.find(name)


def test_a_whole_name_wins_over_a_longer_one_that_begins_with_it(three, make_environment):
    save(make_environment, f"{FIRST}9")
    assert EVERYTHING.find(FIRST) == three[0]
    assert EVERYTHING.find("aaaa000001") == three[0]


@pytest.mark.parametrize("name", ["latest", "2026"])
def test_where_there_is_no_run_the_message_says_so(name, runs):
    with pytest.raises(StoreError, match=f"no run in {runs} yet"):
        EVERYTHING.find(name)


def test_runs_are_listed_from_the_newest(three, make_record):
    with three[0].open("ab") as file:
        file.write(store.encode_line(make_record()) * 3)
    listed = list_runs()
    assert [run.path for run in listed] == three[::-1]
    assert listed[2] == replace(
        listed[2],
        run_id=FIRST,
        started_at="2026-11-18T00:00:00+00:00",
        device_slug="h100-sxm",
        op="matmul",
        records=3,
        command="python -m bench.matmul --dtype bf16",
        error=None,
    )


def test_a_renamed_run_is_the_newest_all_the_same(three):
    renamed = three[2].rename(three[0].with_name("the best one.jsonl"))
    assert EVERYTHING.find("latest") == renamed


@pytest.mark.parametrize(
    "damage", [b"", b"\0\1\2", b'{"kind": "environment", "schema": 999}\n', b'{"kind": "enviro']
)
def test_a_newest_file_that_cannot_be_read_is_passed_over(three, damage):
    three[2].write_bytes(damage)
    assert EVERYTHING.find("latest") == three[1]
    for path in three[:2]:
        path.unlink()
    with pytest.raises(StoreError, match=r"no run in .* can be read.*python -m results list"):
        EVERYTHING.find("latest")


def test_a_broken_file_is_listed_as_broken_and_hides_nothing(three, runs):
    (runs / "cpu" / "20261120T000000Z-matmul-cccc.jsonl").write_bytes(b"\0\1\2")
    (runs / "cpu" / "dangling.jsonl").symlink_to(runs / "nowhere")
    (runs / "cpu" / "notes.txt").write_text("no run")
    listed = list_runs()
    assert {run.path for run in listed if run.error is None} == set(three)
    broken = {run.path.name: run.error for run in listed if run.error}
    assert "not JSON" in broken["20261120T000000Z-matmul-cccc.jsonl"]
    assert "No such file" in broken["dangling.jsonl"]
    assert len(listed) == 5
    assert EVERYTHING.find("latest") == three[2]
