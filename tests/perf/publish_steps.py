"""The steps of a published record, in the order of how much they tell of a machine."""

import re
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path

from bench.harness.providers import AUTOTUNE, provider_names

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Step:
    """One command of this project, and the time that it may take."""

    name: str
    words: tuple[str, ...]
    """What follows `python -m`."""
    limit_s: float
    """Then it is interrupted: what it has finished is kept."""
    needs_s: float
    """It is not started with less time than this left, unless it is the first."""
    wanted_s: float | None = None
    """Wall time that it should stay below, by the project's own promises."""
    is_after_import: bool = False
    """Whether the promise leaves out what the imports take."""
    reports_by_1: bool = True
    """Whether exit code 1 is a finding, such as a wrong result, and no crash."""
    has_own_roofs: bool = False
    """Whether it starts without kept ceilings, and hands on none."""

    @property
    def command(self):
        """The command as it is typed in the root of the repository."""
        return shlex.join(["python", "-m", *(word.removeprefix(f"{ROOT}/") for word in self.words)])


COMPARED = (
    ("matmul", "matmul", ("--shape", "4096,8192"), ("--shape", "512")),
    ("elementwise", "gelu", ("--size", "512MiB"), ("--size", "8MiB")),
    ("norm", "rmsnorm", ("--shape", "32768x4096"), ("--shape", "1024x1024")),
    ("softmax", "softmax", ("--shape", "32768x4096"), ("--shape", "1024x1024")),
    ("cross_entropy", "cross-entropy", ("--shape", "4096x128256"), ("--shape", "256x32000")),
    ("matvec", "matvec", ("--shape", "16384"), ("--shape", "4096")),
    ("reduction", "sum", ("--size", "512MiB"), ("--size", "8MiB")),
)
"""Of each family one op, and where it is compared: on a GPU, on a CPU."""

STATISTICS = {"side_by_side": (300, 150), "profiler_times": (180, 60), "repeated_processes": (500, 240)}
"""Scripts beside this file that take `--output DIR`: their limits, and what they need, seconds."""


def plan(is_gpu, root=ROOT):
    """Return the steps for a GPU or a CPU, most telling first, and why others are left out, by name."""
    on_gpu = gpu_tests(root)
    steps = [
        Step("doctor", ("bench", "doctor", "--format", "json"), 60, 15),
        *on_gpu[:1],
        *measurements(is_gpu),
        *comparisons(is_gpu),
        *whole_models(is_gpu),
        *statistics(),
        *on_gpu[1:],
    ]
    left_out = {}
    if not is_gpu:
        left_out |= {step.name: "needs a CUDA device" for step in on_gpu}
    for name in STATISTICS:
        if not (root / "tests" / "perf" / f"{name}.py").is_file():
            left_out[name.replace("_", "-")] = f"there is no tests/perf/{name}.py"
    return [step for step in steps if step.name not in left_out], left_out


def gpu_tests(root):
    """Return the tests of the GPU: one of each version first, then every family in a process of its own.

    A process of its own, because a kernel that writes where it may not takes all later launches of its process along.
    """
    files = [path for path in sorted((root / "tests").rglob("test_*.py")) if is_for_gpus(path)]

    def step(name, paths, limit_s, needs_s, *words):
        pytest = ("pytest", *("-p", "tests.perf.gpu_order"), *("-p", "no:cacheprovider"), *("-m", "gpu"))
        report = ("-v", "--tb=short", "-rfE", "--junitxml=junit.xml")
        return Step(name, (*pytest, *report, *words, *(str(path) for path in paths)), limit_s, needs_s)

    families = [re.sub(r"^test_(gpu_)?", "", path.stem).replace("_", "-") for path in files]
    each = [step(f"gpu-tests-{name}", [path], 300, 60) for name, path in zip(families, files, strict=True)]
    return [step("gpu-tests", files, 180, 60, "--gpu-tests", "first"), *each]


def is_for_gpus(path):
    """Return whether a file of tests has some that need a GPU."""
    return re.search(r"^\s*@pytest\.mark\.gpu|^pytestmark = .*mark\.gpu", path.read_text("utf-8"), re.M) is not None


def measurements(is_gpu):
    """Return matmul, the calibrations, the suite."""
    usual = "bf16,fp16,fp32,tf32,fp8e4m3" if is_gpu else "bf16,fp32"
    return [
        Step("matmul-bf16", matmul("bf16"), 120, 35, wanted_s=30 if is_gpu else None, is_after_import=True),
        Step("calibrate", ("bench", "calibrate", "-v"), 330, 300, wanted_s=300 if is_gpu else 120),
        Step("calibrate-quick", ("bench", "calibrate", "--quick"), 90, 60, 60 if is_gpu else 30, has_own_roofs=True),
        Step("suite", ("bench", "suite", "--plot", "suite.png"), 500, 480, wanted_s=480 if is_gpu else None),
        Step("matmul-dtypes", matmul(usual, *within(200)), 240, 120),
    ]


def matmul(dtypes, *words):
    """Return the words of the matmul command, with its picture."""
    return "bench.matmul", "--dtype", dtypes, *words, "--plot", "matmul.png"


def within(seconds):
    """Return the words that let a command end by itself before its limit, and say what it left out."""
    return "--budget", f"{seconds:g}"


def comparisons(is_gpu):
    """Return a comparison of every version of each family with torch and torch-compile; without the tuned twins."""
    steps = []
    for family, op, gpu_size, cpu_size in COMPARED:
        names = [name for name in provider_names(family) if not name.endswith(AUTOTUNE)]
        names = [name for name in names if is_gpu or not name.startswith("triton")]
        words = ("bench", "compare", "--op", op, *(gpu_size if is_gpu else cpu_size), "--provider", ",".join(names))
        steps.append(Step(f"compare-{family.replace('_', '-')}", (*words, "--plot", f"{op}.png"), 120, 45))
    return steps


def whole_models(is_gpu):
    """Return a training step, decoding, and the transfers between host and device."""
    model = () if is_gpu else ("--shape", "1x128,4x128,16x128", "--op", "decode-attention,decode-block")
    return [
        Step("train-step", ("bench.train_step", "--checkpoint", "none,full", *within(150)), 190, 90),
        Step("decode", ("bench.decode", *model, *within(200), "--plot", "decode.png"), 240, 120),
        Step("transfer", ("bench.transfer", *within(90)), 120, 60),
    ]


def statistics():
    """Return what says how far the numbers can be believed."""
    beside = [
        Step(name.replace("_", "-"), (f"tests.perf.{name}", "--output", "found"), *seconds)
        for name, seconds in STATISTICS.items()
    ]
    runs = ("--runs", "10")
    return [
        Step("verdicts", ("tests.perf.verdicts", *runs), 300, 120, reports_by_1=False),
        Step("self-comparisons", ("tests.perf.self_comparisons", *runs), 120, 40, reports_by_1=False),
        *beside,
    ]


def python(step):
    """Return the command line of a step in this interpreter."""
    return [sys.executable, "-m", *step.words]
