"""The plan of a published record: its order, what it leaves out, and that each of its commands can be called."""

import runpy
import signal
import sys

import pytest

from bench.validation import gpu_order, publish
from bench.validation.publish import ROOT, plan

GPU, _ = plan(is_gpu=True)
CPU, WITHOUT_GPU = plan(is_gpu=False)
MINUTES_OF_A_CALL = 9
ORDER = (
    *("smoke", "doctor", "gpu-tests-quick", "matmul-bf16", "calibrate-quick", "suite", "compare-matmul", "calibrate"),
    *("profiler-times", "side-by-side", "train-step", "decode", "transfer", "matmul-dtypes", "compare-norm"),
    *("repeated-processes", "false-verdicts", "gpu-tests"),
)
HALF_AN_HOUR_S = 1800
WANTED_S = {"matmul-bf16": 30, "calibrate": 300, "calibrate-quick": 60, "suite": 480}


def test_the_most_telling_steps_come_first():
    names = [step.name for step in GPU]
    assert [name for name in names if name in ORDER] == list(ORDER)
    assert len(set(names)) == len(names)
    assert {step.name: step.wanted_s for step in GPU if step.wanted_s} == WANTED_S
    assert [step.name for step in GPU if step.is_after_import] == ["matmul-bf16"]


def test_half_an_hour_has_room_for_what_a_record_cannot_do_without():
    names = [step.name for step in GPU]
    needed = GPU[: names.index("profiler-times") + 1]
    assert sum(step.needs_s for step in needed) < HALF_AN_HOUR_S - 3 * 60  # three calls, each with a start of its own


def test_only_code_makes_a_file_one_of_the_gpu():
    files = {word.rpartition("/")[2] for step in GPU if step.words[0] == "pytest" for word in step.words}
    assert "test_gpu_norm.py" in files
    assert "test_publish_steps.py" not in files  # it has the marker in a text alone


def test_the_quick_calibration_neither_reads_nor_replaces_the_full_one():
    assert [step.name for step in GPU if step.has_own_roofs] == ["calibrate-quick"]


def test_each_step_fits_into_a_call_and_stops_after_what_is_wanted():
    left_s = 60 * MINUTES_OF_A_CALL - publish.GRACE_S - publish.CLOSING_S
    for step in GPU:
        assert step.needs_s <= step.limit_s <= left_s, step.name
        assert step.limit_s > (step.wanted_s or 0), step.name
        if "--budget" in step.words:
            assert float(step.words[step.words.index("--budget") + 1]) < step.limit_s, step.name


def test_a_machine_without_a_gpu_leaves_out_what_makes_no_sense_there():
    gpu_only = {name for name, why in WITHOUT_GPU.items() if why == "needs a CUDA device"}
    assert gpu_only == {step.name for step in GPU if step.name.startswith("gpu-tests")}
    assert not [step.command for step in CPU if "triton" in step.command or "fp8" in step.command]


def test_every_family_is_compared_in_all_its_versions():
    words = {step.name: step.words for step in GPU if step.name.startswith("compare-")}
    for family in (path.parent.name for path in (ROOT / "kernels").glob("*/v1_*.py")):
        if family in ("bandwidth", "fma", "launch_floor"):
            continue  # parts of the calibration, no providers
        versions = {f"triton-v{path.name[1]}" for path in (ROOT / "kernels" / family).glob("v[0-9]_*.py")}
        providers = words[f"compare-{family.replace('_', '-')}"]
        assert {"torch", "torch-compile", *versions} == set(providers[providers.index("--provider") + 1].split(","))


@pytest.mark.filterwarnings("ignore:.*found in sys.modules:RuntimeWarning")  # other tests have imported them
@pytest.mark.parametrize("step", [*GPU, *CPU], ids=lambda step: step.name)
def test_each_command_can_be_called(step, tmp_path, monkeypatch, capsys):
    """Asked for a device that no machine has, a command ends behind the reading of its arguments."""
    if step.words[0] == "pytest":
        assert all((ROOT / word).is_file() for word in step.words if word.endswith(".py"))
        return
    if not step.words[0].startswith("bench") or step.words[0].startswith("bench.validation"):
        assert (ROOT / f"{step.words[0].replace('.', '/')}.py").is_file()
        return
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [step.words[0], *step.words[1:], "--device", "cuda:999"])
    before = signal.getsignal(signal.SIGINT)
    try:
        with pytest.raises(SystemExit) as raised:
            runpy.run_module(step.words[0], run_name="__main__", alter_sys=False)
    finally:
        signal.signal(signal.SIGINT, before)
    assert raised.value.code == 3, capsys.readouterr().err


def test_the_list_is_printed_without_a_look_at_the_machine(monkeypatch, capsys):
    monkeypatch.setattr(publish, "probe", lambda: pytest.fail("it looked"))
    assert publish.main(["--list"]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in printed[: len(GPU)]] == [step.name for step in GPU]
    assert str(ROOT) not in "".join(printed)


# ---- the order of the tests of the GPU -----------------------------------------------------------------------------

SOFTMAX, NORM = "tests/kernels/test_gpu_softmax.py", "tests/kernels/test_gpu_norm.py"
NAMES = [
    *(
        f"{SOFTMAX}::test_sizes[{v}-{d}-{n}]"
        for v in ("v1", "v2")
        for d in ("fp32", "fp16", "bf16")
        for n in (1, 7, 900)
    ),
    *(f"{SOFTMAX}::test_special_values[v1-{d}]" for d in ("fp32", "bf16")),
    *(f"{NORM}::test_sizes[layernorm-v1-torch.{d}-{n}]" for d in ("float32", "bfloat16") for n in (1, 7)),
    "tests/bench/ops/test_transfer.py::test_copies[blocking-pinned]",
]


def test_each_version_of_each_family_comes_first_in_both_dtypes():
    ranked = gpu_order.ranks(NAMES)
    assert sorted(name for name, _ in ranked) == sorted(NAMES)
    first = [name for name, rank in ranked if rank == 0]
    assert first == [
        f"{SOFTMAX}::test_sizes[v1-fp32-900]",
        f"{NORM}::test_sizes[layernorm-v1-torch.float32-7]",
        "tests/bench/ops/test_transfer.py::test_copies[blocking-pinned]",
        f"{SOFTMAX}::test_sizes[v1-bf16-900]",
        f"{NORM}::test_sizes[layernorm-v1-torch.bfloat16-7]",
        f"{SOFTMAX}::test_sizes[v2-fp32-900]",
        f"{SOFTMAX}::test_sizes[v2-bf16-900]",
    ]
    assert [name for name, _ in ranked[: len(first)]] == first
    second = {name for name, rank in ranked if rank == 1}
    assert second == {
        *(f"{SOFTMAX}::test_sizes[{v}-fp16-900]" for v in ("v1", "v2")),
        *(f"{SOFTMAX}::test_special_values[v1-{d}]" for d in ("fp32", "bf16")),
    }


PLUGIN_FILE = """
import pytest
from bench.validation import gpu_order

@pytest.mark.gpu
@pytest.mark.parametrize("n", [1, 2, 3])
@pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp16"])
def test_sizes(dtype, n, monkeypatch):
    if dtype == "fp32" and n == 3:
        gpu_order.context_problem = lambda: PROBLEM
        assert not BREAKS

@pytest.mark.parametrize("n", range(20))
def test_of_the_cpu(n):
    pass
"""


@pytest.fixture
def ordered(tmp_path, monkeypatch):
    """Run pytest with the plug-in on a file of its own, as if there were a GPU."""

    def call(problem, breaks, *words):
        text = PLUGIN_FILE.replace("PROBLEM", repr(problem)).replace("BREAKS", repr(breaks))
        (tmp_path / "test_made_up.py").write_text(text)
        (tmp_path / "pytest.ini").write_text(f"[pytest]\nmarkers = gpu: needs one\npythonpath = {ROOT}\n")
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-p",
            "bench.validation.gpu_order",
            "-p",
            "no:cacheprovider",
            "-m",
            "gpu",
            "-v",
        ]
        return publish.subprocess.run(
            [*command, *words], cwd=tmp_path, env=publish.environment(), capture_output=True, text=True, timeout=120
        )

    return call


def test_pytest_takes_the_order(ordered):
    done = ordered(None, False, "--gpu-tests", "first")
    passed = [line.split()[0].partition("::")[2] for line in done.stdout.splitlines() if " PASSED" in line]
    assert passed == ["test_sizes[fp32-3]", "test_sizes[bf16-3]"], done.stdout + done.stderr
    done = ordered(None, True)
    assert "1 failed, 8 passed, 20 deselected" in done.stdout
    assert done.returncode == 1


def test_tests_end_when_the_context_is_lost(ordered):
    done = ordered("CUDA error: an illegal memory access was encountered", True)
    assert "the CUDA context is lost after test_made_up.py::test_sizes[fp32-3]: CUDA error" in done.stdout + done.stderr
    assert "1 failed" in done.stdout
    assert "passed" not in done.stdout
    assert done.returncode == 1
