"""A function that ends, blocks or floods its worker fails only its own row and leaves nothing
behind.
"""

import json
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import nullcontext
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import pytest

from bench.harness import clock, worker
from bench.harness.op import UsageError
from results.record import Record
from roofline.machine import Ceiling, Machine
from tests.bench import commands, user_kernels
from tests.bench.process_checks import is_running, soon
from tests.bench.user_kernels import measure


@pytest.fixture(scope="module")
def crashes(tmp_path_factory):
    file = tmp_path_factory.mktemp("kernels") / "crashes.py"
    file.write_text(user_kernels.CRASHES)
    return file


def line_of(text):
    """Return the line number of a text in the file of crashes."""
    return next(
        n for n, line in enumerate(user_kernels.CRASHES.splitlines(), start=1) if text in line
    )


@pytest.mark.exhaustive
@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("function", "reason"),
    [
        ("segmentation_fault", "crashed: SIGSEGV (segmentation fault)"),
        ("leaves", "ended its process with exit code 0"),
        ("exits", f"called sys.exit('enough') (line {line_of('sys.exit')})"),
        ("kills_its_parent", "killed its parent process"),
        ("raises", f"ValueError: three is (line {line_of('raise ValueError')})"),
        ("raises_what_is_no_exception", f"Fatal: the end (line {line_of('raise Fatal')})"),
        ("raises_without_a_text", f"Unprintable:  (line {line_of('raise Unprintable')})"),
        ("raises_later", f"RuntimeError: out of luck (line {line_of('raise RuntimeError')})"),
    ],
)
def test_a_terminated_worker_fails_its_row_with_the_cause(crashes, function, reason):
    record = measure(f"{crashes}:{function}")
    assert record.status == "failed"
    assert record.reason.startswith(reason)
    assert record.median_s is None
    assert len(record.source_sha256) == 64


def test_a_killed_process_is_recognized_by_its_status():
    assert worker.KILLED.search(b"Name:\t\xd0\nShdPnd:\t0000000000004100\n")
    assert not worker.KILLED.search(b"ShdPnd:\t0000000000000200\nSigBlk:\t0000000000000100\n")


def loses_the_gpu():
    worker.protocol.announce(1)
    worker.protocol.announce(runs=False)
    raise worker.WorkerError("CUDA error: an illegal memory access was encountered")


def kills_its_parent():
    worker.protocol.announce(1)
    os.kill(os.getppid(), signal.SIGKILL)
    worker.end_with_parent()
    worker.protocol.announce(2)
    time.sleep(60)


@pytest.mark.parametrize(
    ("function", "reason"),
    [(loses_the_gpu, "CUDA error: an illegal memory access"), (kills_its_parent, "killed its")],
)
def test_a_worker_that_ends_names_the_provider(function, reason):
    with pytest.raises(worker.WorkerError, match=reason) as raised:
        worker.call(function, timeout_s=60)
    assert raised.value.index == 1


@pytest.mark.exhaustive
@pytest.mark.parametrize("function", ["endless", "endless_later"])
def test_a_call_that_never_returns_is_stopped_after_the_timeout(crashes, function):
    record = measure(f"{crashes}:{function}", timeout_s=3)
    assert (record.status, record.reason) == (
        "failed",
        "a call did not end within 3 s; increase --timeout",
    )


@pytest.mark.exhaustive
def test_the_timeout_limits_a_call_rather_than_the_row(crashes):
    began = time.monotonic()
    record = measure(f"{crashes}:slow", timeout_s=1)
    assert (record.status, record.reason) == ("ok", None)
    assert record.median_s > 0.15
    assert time.monotonic() - began > 1


@pytest.mark.exhaustive
def test_a_budget_ends_a_row_before_the_timeout(crashes, monkeypatch):
    monkeypatch.setattr("bench.harness.worker.BUDGET_GRACE_S", 1.0)
    assert measure(f"{crashes}:prints").status == "ok"  # the fork server is there
    record = measure(f"{crashes}:endless", deadline=clock.now() + 1)
    assert record.status == "failed"
    assert re.fullmatch(r"no result after [12]\S* s; increase --budget", record.reason)


def numbers(end) -> Iterator[int]:
    yield from (1, 2)
    if end == "exit":
        os._exit(17)
    if end == "hang":
        time.sleep(1000)


@pytest.mark.parametrize(
    ("end", "reason"),
    [
        ("", None),
        ("exit", "ended its process with exit code 17"),
        ("hang", "no result after 0.3 s"),
    ],
)
def test_items_of_a_generator_arrive_before_it_ends(end, reason):
    received = []
    items = worker.stream(numbers, end, limit_s=lambda: 0.3 if len(received) == 2 and end else 30)
    with pytest.raises(worker.WorkerError, match=reason) if reason else nullcontext():
        received.extend(items)  # keeps what came before an error
    assert received == [1, 2]


def test_output_of_a_function_is_kept_apart(crashes, capfd):
    record = measure(f"{crashes}:prints")
    assert record.status == "ok"
    for text in ("on stdout torch.Size([8192])", "on stderr", '{"kind": "record"}'):
        assert text in record.output
    assert len(record.output) <= 4096
    assert capfd.readouterr() == ("", "")


def test_a_traceback_starts_at_the_users_file(crashes):
    output = measure(f"{crashes}:raises").output
    assert f"""crashes.py", line {line_of("raise ValueError")}, in raises""" in output
    assert "bench/harness" not in output


def test_threads_and_children_of_a_function_end_with_its_row(crashes):
    record = measure(f"{crashes}:leaves_a_thread_and_a_process")
    assert record.status == "ok"
    child = int(record.output.split()[1])
    assert soon(lambda: not is_running(child))


@pytest.mark.parametrize("function", ["forks_twice", "leaves_a_session"])
def test_descendants_that_left_a_worker_end_with_it(crashes, function):
    output = measure(f"{crashes}:{function}").output.split()
    children = {int(word) for word in output if word.isdecimal()}
    assert children
    assert soon(lambda: not any(map(is_running, children)))


def inheritable() -> list[str]:
    descriptors = (path.name for path in Path("/proc/self/fd").iterdir() if path.exists())
    return sorted(name for name in descriptors if os.get_inheritable(int(name)))


def test_programs_started_by_a_worker_do_not_keep_its_pipes():
    assert worker.call(inheritable, timeout_s=60)[0] == ["0", "1", "2"]


def test_a_daemonic_process_is_a_one_line_error(monkeypatch):
    monkeypatch.setitem(multiprocessing.current_process()._config, "daemon", True)
    with pytest.raises(UsageError, match="a daemonic process, as of"):
        worker.call(print, timeout_s=60)


OTHER = Record(
    op="other", provider="torch", dtype="fp32", shape={"n": 8192}, case="8192", status="failed"
)


@pytest.mark.parametrize(
    ("forged", "reason"),
    [
        ("\x80pickle", "sent an answer that cannot be read: "),
        ('{"answer": 7}', "sent an answer of another type: "),
        (json.dumps({"answer": OTHER.to_dict()}), "sent the record of other 8192 fp32 torch"),
        (json.dumps({"error": "UsageError", "reason": "none"}), "none"),
        (json.dumps({"error": "KeyError", "reason": "none"}), "sent an answer that cannot be read"),
    ],
    ids=["no JSON", "no record", "other record", "error", "unknown error"],
)
def test_a_forged_answer_costs_only_its_row(crashes, monkeypatch, forged, reason):
    monkeypatch.setenv("FORGED", forged)
    record = measure(f"{crashes}:forges_its_answer")
    assert record.status == "failed"
    assert record.reason.startswith(reason)


def test_an_answer_leaves_out_what_a_machine_has_cached():
    machine = Machine(entries=(Ceiling("launch", "launch", 1e-6, "measured", "a test"),))
    before = worker.plain(machine)
    assert machine.fastest("launch").value == 1e-6
    assert worker.plain(machine) == before
    json.dumps(before, default=worker.plain)


@pytest.mark.exhaustive
def test_samples_that_do_not_fill_the_time_are_invalid(crashes):
    record = measure(f"{crashes}:scales_its_samples")
    assert record.status == "invalid"
    assert record.reason.startswith("its samples add up to ")


@pytest.mark.parametrize(
    ("sampled_s", "samples", "passed_s", "fits"),
    [
        (1.0, 10, 1.0, True),
        (0.9, 10, 1.15, True),
        (0.01, 10, 0.1, True),
        (0.047, 2000, 0.246, True),  # of single launches of 20 us
        (0.5, 10, 1.0, False),
        (2.0, 10, 1.0, False),
    ],
)
def test_samples_are_compared_with_the_time_that_passed(sampled_s, samples, passed_s, fits):
    with nullcontext() if fits else pytest.raises(worker.ClockError, match="its samples add up"):
        worker.check_clock(sampled_s, samples, passed_s)


def test_a_worker_that_cannot_start_twice_is_a_one_line_error(monkeypatch):
    errors = [OSError("no more processes")] * 3
    start = ForkServerProcess.start

    def fails(self):
        if errors:
            raise errors.pop()
        start(self)

    monkeypatch.setattr(ForkServerProcess, "start", fails)
    reason = "cannot start a worker process: no more processes"
    with pytest.raises(worker.WorkerError, match=reason):
        worker.call(print, timeout_s=60)
    worker.call(print, timeout_s=60)
    assert not errors


@pytest.mark.exhaustive
def test_ctrl_c_ends_the_worker_and_keeps_finished_rows(crashes, tmp_path, runs):
    commands.keep_ceilings(runs)
    file = tmp_path / "pid"
    words = ["--op", "gelu", "--shape", "4096", "--cache", "warm", "--timeout", "600", "--provider"]
    process = commands.start(
        "bench.elementwise",
        *commands.arguments([*words, f"torch,{crashes}:says_where"]),
        env=os.environ | {"PROCESS_FILE": str(file)},
    )
    assert soon(lambda: file.exists() and file.read_text())
    process.send_signal(signal.SIGINT)
    code, out, _ = commands.finish(process)
    assert code == 130
    assert "torch" in out
    assert soon(lambda: not is_running(int(file.read_text())))


def a_set() -> object:
    return {1}


def test_an_answer_that_json_cannot_hold_is_named():
    with pytest.raises(worker.WorkerError, match="a set has no form in JSON"):
        worker.call(a_set, timeout_s=60)


def test_an_orphan_that_the_command_inherits_is_found():
    """As in a container, whose first process is the command."""
    mark = f"{os.getpid()}:of this test\udcff"
    environment = os.environ | {worker.COMMAND: mark}
    with subprocess.Popen(["sleep", "60"], env=environment) as orphan:
        assert soon(lambda: worker.orphans(mark) == [orphan.pid])
        orphan.kill()


@pytest.mark.exhaustive
def test_temporary_files_of_a_killed_command_are_deleted():
    call = (
        "import os; from multiprocessing import util; from bench.harness import worker; "
        "from tests.bench.process_checks import keep_a_lock; "
        "worker.call(keep_a_lock, timeout_s=60); print(util.get_temp_dir(), flush=True); "
        "os.kill(os.getpid(), 9)"
    )
    command = [sys.executable, "-c", call]
    done = subprocess.run(command, cwd=commands.ROOT, capture_output=True, text=True, check=False)
    folder = Path(done.stdout.strip())
    assert folder.is_absolute(), done.stderr
    assert soon(lambda: not folder.exists())
