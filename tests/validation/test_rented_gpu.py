"""The minutes on a rented GPU: all steps start with the packages of the machine, and their files
come back.
"""

import json
import os
import random
import re
import signal
import subprocess
import sys
import tarfile
import time
from importlib import metadata

import psutil
import pytest
from packaging.requirements import Requirement

from bench.harness.device.device import cpu_device
from tests.bench.commands import keep_ceilings
from tests.simulated_gpu.start import environment, missing
from tests.validation import gpu_probe, rented_gpu
from tests.validation.rented_gpu import INSTALLED, ROOT, STEPS, Step, missing_requirements, name_of

ALL = {step.name: step for steps in STEPS.values() for step in steps}

SMALL = {
    "facts": "",
    "truth": "",
    "suite": "--device cpu --provider torch --budget 1",
    "profile": "--device cpu --layers 1 --shape 1x16 --budget 1",
    "fleet": "--dtype fp32 --deadline 12",
    "tests-quick": "",
}
"""A step of each kind, with options that make it short on a CPU; the last of an option counts."""


CODES = {"facts": (0, 127), "truth": (3,)}
"""Exit codes of steps that need a GPU: there may be no `nvidia-smi`."""


def on_the_machine():
    """Return the packages of the machine, those carried along, and all that they require."""
    found, waiting = set(), ["pip", *INSTALLED, *missing_requirements()]
    while waiting:
        name = name_of(waiting.pop())
        if name in found:
            continue
        found.add(name)
        try:
            requirements = metadata.requires(name) or []
        except metadata.PackageNotFoundError:
            continue
        for requirement in map(Requirement, requirements):
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                waiting.append(requirement.name)
    return found


BARE = """
import sys
from importlib.machinery import PathFinder

class Bare(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        is_absent = name.partition(".")[0] in ABSENT
        return None if is_absent else super().find_spec(name, path, target)

    @staticmethod
    def find_distributions(*arguments, **options):
        found = PathFinder.find_distributions(*arguments, **options)
        names = {each: each.metadata["Name"].lower().replace("_", "-") for each in found}
        return (each for each, name in names.items() if name in PRESENT)

sys.meta_path[sys.meta_path.index(PathFinder)] = Bare
"""
"""A `sitecustomize.py` that hides all packages that the machine does not have."""


@pytest.fixture
def bare(tmp_path, monkeypatch):
    """Hide from the commands of a test what the machine does not have; return their directory."""
    present = on_the_machine()
    absent = {
        module
        for module, owners in metadata.packages_distributions().items()
        if not present & {name_of(owner) for owner in owners}
    }
    assert {"pytest_benchmark", "xdist", "streamlit"} <= absent
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(f"ABSENT = {absent}\nPRESENT = {present}\n{BARE}")
    monkeypatch.setenv("PYTHONPATH", str(site))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    return tmp_path


def test_wheels_are_the_required_packages_that_are_missing(capsys):
    assert rented_gpu.main(["wheels"]) == 0
    (download,) = [line for line in capsys.readouterr().out.splitlines() if "download" in line]
    assert "--only-binary :all: --python-version 3.12 --no-deps" in download
    assert "'msgspec>=" in download
    assert not [name for name in INSTALLED if re.search(rf"'{name}\b", download)]


PARSE = """
import json, sys
from bench.__main__ import main
from bench.fleet import build_parser
for words in json.loads(sys.argv[1]):
    if words[0] == "bench.fleet":
        build_parser().parse_args(words[1:])
        continue
    words = words[1:] if words[0] == "bench" else [words[0].removeprefix("bench."), *words[1:]]
    code = main([*words, "--device", "cuda:99"])
    assert code == 3, (code, words)  # all arguments are right, and there is no such device
"""


@pytest.mark.exhaustive
def test_steps_have_arguments_that_their_commands_know(bare):
    commands = [step.command()[2:] for step in ALL.values()]
    measuring = [words for words in commands if words[0].startswith("bench")]
    assert measuring
    done = subprocess.run(
        [sys.executable, "-c", PARSE, json.dumps(measuring)],
        env=rented_gpu.variables(bare),
        cwd=bare,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", SMALL)
def test_steps_run_with_the_packages_of_the_machine(bare, name):
    step = ALL[name]
    short = step._replace(words=(*step.words, *SMALL[name].split()))
    keep_ceilings(bare / "runs", cpu_device(1))
    exit_code = rented_gpu.run_step(short, bare, 240)
    errors = (bare / f"{name}.err").read_text()
    assert exit_code in CODES.get(name, (0, 1, 2)), errors  # 1: a finding
    assert not re.search("Traceback|No module named|unrecognized", errors), errors
    printed = (bare / f"{name}.out").read_text().strip()
    assert printed or "budget" in errors, errors  # a busy machine may finish no row


def python(code):
    return ("-c", code)


def writes(name):
    return python(f"open('{name}.png', 'w').write('{name}'); print('{name} done')")


FAILS = python('raise SystemExit("it needs CUDA")')


def archived(path):
    with tarfile.open(path) as archive:
        return {name.removeprefix("record/") for name in archive.getnames()}


def call_in(folder, monkeypatch, steps, seconds, *names):
    monkeypatch.setenv("OUT", str(folder / "out"))
    monkeypatch.setattr(rented_gpu.tempfile, "gettempdir", lambda: str(folder))
    monkeypatch.setattr(rented_gpu, "STEPS", {"1": steps})
    return rented_gpu.main(["1", str(seconds), *names])


def test_all_files_come_back_in_one_archive(tmp_path, monkeypatch, capsys):
    steps = [Step(name, 30, writes(name)) for name in "ab"] + [Step("c", 30, FAILS)]
    assert call_in(tmp_path, monkeypatch, steps, 100) == 1
    (archive,) = (tmp_path / "out").iterdir()
    names = [f"{name}.{kind}" for name in "abc" for kind in ("out", "err")]
    assert archived(archive) >= {*names, "a.png", "b.png"}
    printed = capsys.readouterr().out
    assert "a done" in printed
    digest = printed[printed.index("== digest") :].splitlines()
    assert [line.split()[0] for line in digest[1:4]] == ["a", "b", "c"]
    assert digest[1].endswith(" s, ok: a done")
    assert digest[3].endswith("exit 1: it needs CUDA")


def test_the_archive_is_replaced_after_each_step(tmp_path, monkeypatch):
    seen = []
    steps = [Step(name, 30, writes(name)) for name in "ab"]
    save = rented_gpu.save_archive

    def saved(directory, path, digest):
        text = save(directory, path, digest)
        seen.append(archived(path) & {"a.png", "b.png"})
        return text

    monkeypatch.setattr(rented_gpu, "save_archive", saved)
    assert call_in(tmp_path, monkeypatch, steps, 100) == 0
    assert seen == [{"a.png"}, {"a.png", "b.png"}, {"a.png", "b.png"}]


def noise(path, size):
    path.write_bytes(random.Random(0).randbytes(size))


def test_the_largest_files_are_left_out_and_named(tmp_path, monkeypatch):
    monkeypatch.setattr(rented_gpu, "MAX_ARCHIVE_BYTES", 600_000)
    folder, path = tmp_path / "record", tmp_path / "record-1.tgz"
    folder.mkdir()
    for name, size in (("small", 400_000), ("large", 900_000)):
        noise(folder / name, size)
    digest = rented_gpu.save_archive(folder, path, "a  ok")
    assert digest == "a  ok\nleft out of the archive: large (1 MB)"
    assert archived(path) == {"digest.txt", "small"}
    (folder / "large").write_bytes(bytes(20 * 2**20))  # as a trace, it is compressed to less
    assert rented_gpu.save_archive(folder, path, "a  ok") == "a  ok"
    assert archived(path) == {"digest.txt", "small", "large"}


def test_a_file_that_vanishes_is_skipped(tmp_path, monkeypatch):
    (tmp_path / "here").write_text("x")
    sizes = {tmp_path / "gone": 1, tmp_path / "here": 1}
    monkeypatch.setattr(rented_gpu, "file_sizes", lambda _: sizes)
    path = tmp_path / "record-1.tgz"
    rented_gpu.save_archive(tmp_path, path, "")
    assert archived(path) == {"digest.txt", "here"}


INTERRUPTED = """
import signal, sys
from tests.validation import rented_gpu
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, signal.default_int_handler)
code = "import time; open('a.png', 'w').close(); print('began', flush=True); time.sleep(99)"
rented_gpu.STEPS = {"1": [rented_gpu.Step("long", 90, ("-c", code))]}
sys.exit(rented_gpu.main(["1", "100"]))
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_step_and_saves_its_files(tmp_path, number):
    variables = os.environ | {"OUT": str(tmp_path / "out"), "TMPDIR": str(tmp_path)}
    process = subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED],
        cwd=ROOT,
        env=variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    printed = tmp_path / "roofmark-record" / "long.out"
    wait_until(lambda: printed.exists() and "began" in printed.read_text())
    (child,) = psutil.Process(process.pid).children()
    process.send_signal(number)
    out, errors = process.communicate(timeout=30)
    assert (process.returncode, errors) == (130, "")
    assert re.search("^long +interrupted$", out, re.MULTILINE)
    assert not child.is_running()
    archive = tmp_path / "out" / "record-1.tgz"
    assert archived(archive) >= {"long.out", "a.png"}
    with tarfile.open(archive) as files:
        digest = files.extractfile("record/digest.txt").read().decode()
    assert digest.split() == ["long", "interrupted"]


def wait_until(is_true):
    for _ in range(400):
        if is_true():
            return
        time.sleep(0.05)
    pytest.fail("it did not happen in 20 s")


def test_a_step_without_enough_time_is_named(tmp_path, monkeypatch, capsys):
    steps = [Step("a", 9, writes("a")), Step("long", 3000, FAILS)]
    assert call_in(tmp_path, monkeypatch, steps, 100) == 1
    assert re.search("^long +no time was left$", capsys.readouterr().out, re.MULTILINE)
    assert call_in(tmp_path, monkeypatch, steps, 100, "a") == 0


@pytest.mark.exhaustive
@pytest.mark.parametrize("has_own_session", [False, True])
def test_a_step_is_stopped_at_its_limit_with_its_children(tmp_path, monkeypatch, has_own_session):
    monkeypatch.setattr(rented_gpu, "GRACE_S", 0.2)
    code = (
        "import subprocess, sys, time; "
        'words = [sys.executable, "-c", "import time; time.sleep(99)"]; '
        f"print(subprocess.Popen(words, start_new_session={has_own_session}).pid, flush=True); "
        "time.sleep(99)"
    )
    assert rented_gpu.run_step(Step("long", 2, python(code)), tmp_path, 2.0) is None
    started = int((tmp_path / "long.out").read_text())
    wait_until(
        lambda: not psutil.pid_exists(started) or psutil.Process(started).status() == "zombie"
    )


def test_the_limits_of_the_steps_fit_into_the_call():
    for call, steps in STEPS.items():
        limits_s = sum(step.limit_s for step in steps)
        assert limits_s + rented_gpu.RESERVE_S <= rented_gpu.CALL_S[call]


def test_words_of_a_step_may_have_spaces(tmp_path):
    file = tmp_path / "a file.py"
    file.write_text("print('it runs')")
    assert rented_gpu.run_step(Step("a", 30, (str(file),)), tmp_path, 30) == 0
    assert (tmp_path / "a.out").read_text() == "it runs\n"


@pytest.mark.parametrize(("words", "is_kept"), [(["1"], False), (["1", "a"], True), (["2"], True)])
def test_only_the_whole_call_1_starts_with_no_files(tmp_path, monkeypatch, words, is_kept):
    old = tmp_path / "roofmark-record" / "old"
    old.parent.mkdir()
    old.touch()
    monkeypatch.setenv("OUT", str(tmp_path / "out"))
    monkeypatch.setattr(rented_gpu.tempfile, "gettempdir", lambda: str(tmp_path))
    steps = [Step("a", 30, writes("a"))]
    monkeypatch.setattr(rented_gpu, "STEPS", {"1": steps, "2": steps})
    assert rented_gpu.main([words[0], "60", *words[1:]]) == 0
    assert old.exists() == is_kept


def test_an_output_folder_that_cannot_be_written_is_one_line(tmp_path, monkeypatch, capsys):
    (tmp_path / "out").touch()
    assert call_in(tmp_path, monkeypatch, [Step("a", 30, FAILS)], 60) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("cannot write to ")


def test_the_tail_of_an_output_has_whole_lines():
    assert rented_gpu.tail("one\ntwo\nthree\n", 8) == "three\n"
    assert rented_gpu.tail("one\n", 12) == "one\n"
    assert rented_gpu.tail("a long line", 4) == "line"


def test_folders_of_packages_may_be_relative(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", "SITE")
    paths = rented_gpu.variables(tmp_path)["PYTHONPATH"].split(os.pathsep)
    assert paths == [str(ROOT), str(tmp_path / "SITE")]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["1"], "expected SECONDS"),
        (["3", "9"], "invalid choice: '3'"),
        (["1", "x"], "invalid finite_seconds value: 'x'"),
        (["1", "inf"], "expected a finite number above 0, not 'inf'"),
        (["1", "0"], "expected a finite number above 0, not '0'"),
        (["1", "9", "nothing"], "unknown step 'nothing' (choose from facts, truth"),
    ],
)
def test_invalid_arguments_are_usage_errors(words, said, capsys):
    with pytest.raises(SystemExit) as error:
        rented_gpu.main(words)
    assert error.value.code == 2
    assert said in capsys.readouterr().err


def test_the_script_starts_from_the_root_of_the_repository():
    command = [sys.executable, "tests/validation/rented_gpu.py", "wheels"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, "pip download" in done.stdout) == (0, True), done.stderr


@pytest.mark.skipif(gpu_probe.torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_the_probe_says_that_it_needs_a_gpu(capsys):
    assert gpu_probe.main() == 3
    assert "needs CUDA" in capsys.readouterr().out


class Measured:
    """A probe of which each part returns the given facts, or raises the given error."""

    def __init__(self, **changed):
        loaded = [[1.75e9, 1.75e9, 650.0]] * 3
        self.facts = {
            "copy": {"bytes_per_s": 3.0e12},
            "bf16": {"flops_per_s": 700e12},
            "clocks": {"loaded_hz_and_w": loaded},
            "datasheet": {"bytes_per_s": 3.35e12, "flops_per_s": 989e12},
        } | changed

    def __getattr__(self, name):
        def part():
            fact = self.facts.get(name, {})
            if isinstance(fact, Exception):
                raise fact
            return fact

        return part


def lines_of(tmp_path, capsys, **changed):
    gpu_probe.measure(Measured(**changed), tmp_path / "truth.json")
    return capsys.readouterr().out.splitlines()


def clocks(nvml_hz):
    return {"loaded_hz_and_w": [[1.75e9, nvml_hz, 650.0]] * 3}


@pytest.mark.parametrize(
    ("changed", "stops"),
    [
        ({}, []),
        ({"copy": {"bytes_per_s": 2.5e12}}, ["copy"]),
        ({"copy": {"bytes_per_s": 3.6e12}}, ["copy"]),
        ({"bf16": {"flops_per_s": 600e12}}, ["bf16"]),
        ({"bf16": {"flops_per_s": 1.1e15}}, ["bf16"]),
        ({"clocks": clocks(1.98e9), "copy": {"bytes_per_s": 1e12}}, ["copy", "clocks"]),
    ],
)
def test_the_stop_rule(tmp_path, capsys, changed, stops):
    lines = lines_of(tmp_path, capsys, **changed)
    assert [line.split()[0] for line in lines if line.endswith(": STOP")] == stops
    expected = f"STOP ({', '.join(stops)})" if stops else "the GPU can be trusted"
    assert lines[-1].startswith(expected)


@pytest.mark.parametrize(
    ("changed", "said", "undecided"),
    [
        ({"copy": RuntimeError("CUDA")}, "copy failed: RuntimeError: CUDA", "copy"),
        ({"queue": RuntimeError("CUDA")}, "queue failed: RuntimeError: CUDA", "queue"),
        ({"clocks": clocks(0)}, "clocks failed: ValueError: NVML's clock is 0", "clocks"),
        (
            {"events": {"empty_pair_s": [float("nan")]}},
            "events failed: ValueError: a number is not finite",
            "events",
        ),
        (
            {"device": OSError("no"), "datasheet": LookupError("no such GPU")},
            "datasheet failed: LookupError: no such GPU",
            "device, datasheet, copy, bf16",
        ),
    ],
)
def test_a_missing_fact_is_named_and_leaves_it_undecided(
    tmp_path, capsys, changed, said, undecided
):
    lines = lines_of(tmp_path, capsys, **changed)
    assert said in lines
    assert lines[-1].startswith(f"undecided ({undecided}):")


def test_decisions_are_printed_before_a_later_part_ends(tmp_path, capsys):
    probe = Measured()
    probe.queue = lambda: pytest.fail(capsys.readouterr().out)
    with pytest.raises(pytest.fail.Exception, match=r"^copy .*\nbf16 .*\nclocks "):
        gpu_probe.measure(probe, tmp_path / "truth.json")


def test_the_datasheet_is_that_of_the_nearest_memory():
    peaks = {"stated_peaks_flops_per_s": {"bf16_tensor": 9}}
    table = [
        {"driver_names": ["G"], "memory_bytes": size, "memory_bandwidth_bytes_per_s": size} | peaks
        for size in (40, 80)
    ]
    assert gpu_probe.published(table, "G", 79) == {"bytes_per_s": 80, "flops_per_s": 9}
    with pytest.raises(LookupError, match="H is not in the table"):
        gpu_probe.published(table, "H", 79)


SIMULATED = """
from types import SimpleNamespace
from tests.validation import gpu_probe
nvml = SimpleNamespace(
    nvmlDeviceGetClockInfo=lambda *_: 1980,
    nvmlDeviceGetPowerUsage=lambda _: 650_000,
)
gpu_probe.nvml_handle = lambda: (nvml, None)
gpu_probe.GRAPH_LAUNCHES, gpu_probe.MAX_QUEUE_PROBE = (1, 10), 1100
gpu_probe.main(64, 2**20)
"""


@pytest.mark.exhaustive
@pytest.mark.skipif(bool(missing()), reason=missing() or "")
def test_the_probe_runs_on_a_simulated_gpu(tmp_path):
    command = [sys.executable, "-c", SIMULATED]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment(), capture_output=True, text=True, check=False
    )
    found = json.loads((tmp_path / "truth.json").read_text())
    failed = {name for name in gpu_probe.PARTS if "error" in found[name]}
    assert failed == {"nvml_costs"}, done.stderr  # it has no such functions
    assert "not permitted" in found["failed_capture"]["reasons"]["not-captured"]
    assert found["datasheet"]["bytes_per_s"] > 0
    assert "STOP (copy, bf16):" in done.stdout  # its times are made up
    assert re.search("^clocks .* by NVML", done.stdout, re.MULTILINE), done.stdout
