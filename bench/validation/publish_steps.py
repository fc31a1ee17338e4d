"""The steps of a published record, in the order of how much they tell of a machine."""

import ast
import re
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path

from bench.harness.providers.registry import AUTOTUNE, provider_names

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
    kept_as: str | None = None
    """Under which name what it prints is published, for a step that writes no run file."""

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

STATISTICS = {
    "side_by_side": (("--quick",), 300, 100),
    "profiler_times": ((), 180, 40),
    "repeated_processes": ((), 500, 200),
}
"""Scripts beside this file that take `--output DIR`: their words, their limits, and what they need, seconds."""

QUICK_TESTS = "gpu-tests-quick"


def plan(is_gpu, root=ROOT):
    """Return the steps for a GPU or a CPU, most telling first, and why others are left out, by name.

    Time on a GPU is often rented by the hour: what a record cannot do without comes before what makes it complete.
    """
    on_gpu = gpu_tests(root)
    quick = [step for step in on_gpu if step.name == QUICK_TESTS]
    measured, compared, models, trusted = measurements(is_gpu), comparisons(is_gpu), whole_models(is_gpu), statistics()
    steps = [
        Step("doctor", ("bench", "doctor", "--format", "json"), 60, 15, kept_as="doctor.json"),
        *(*quick, *measured[:3], *models[:2], *compared[:1], *trusted[:2], *compared[1:], *models[2:]),
        *(*trusted[2:], *measured[3:], *(step for step in on_gpu if step.name != QUICK_TESTS)),
    ]
    left_out = {} if is_gpu else {step.name: "needs a CUDA device" for step in on_gpu}
    return [step for step in steps if step.name not in left_out], left_out


def gpu_tests(root):
    """Return the tests of the GPU: one of each version first, then every family in a process of its own.

    A process of its own, because a kernel that writes where it may not takes all later launches of its process along.
    """
    files = [path for path in sorted((root / "tests").rglob("test_*.py")) if is_for_gpus(path)]

    def step(name, paths, limit_s, needs_s, *words):
        pytest = ("pytest", *("-p", "bench.validation.gpu_order"), *("-p", "no:cacheprovider"), *("-m", "gpu"))
        report = ("-v", "--tb=short", "-rfE", "--junitxml=junit.xml")
        return Step(name, (*pytest, *report, *words, *(str(path) for path in paths)), limit_s, needs_s)

    families = [re.sub(r"^test_(gpu_)?", "", path.stem).replace("_", "-") for path in files]
    each = [step(f"gpu-tests-{name}", [path], 300, 60) for name, path in zip(families, files, strict=True)]
    several = [path for path in files if path.stem != "test_gpu_quick"]  # all families are in that one
    return [step("gpu-tests", several, 180, 60, "--gpu-tests", "first"), *each]


def is_for_gpus(path):
    """Return whether a file of tests has some that need a GPU: whether its code, no text in it, says `mark.gpu`."""
    text = path.read_text("utf-8")
    found = (
        (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Attribute)) if "mark.gpu" in text else ()
    )
    return any(node.attr == "gpu" and getattr(node.value, "attr", None) == "mark" for node in found)


def measurements(is_gpu):
    """Return matmul, the calibration, the suite; then the quick calibration and matmul in all dtypes."""
    usual = "bf16,fp16,fp32,tf32,fp8e4m3" if is_gpu else "bf16,fp32"
    return [
        Step("matmul-bf16", matmul("bf16"), 120, 35, wanted_s=30 if is_gpu else None, is_after_import=True),
        Step("calibrate", calibrate("-v", "--plot", "calibrate.png"), 330, 300, wanted_s=300 if is_gpu else 120),
        Step("suite", ("bench", "suite", "--plot", "suite.png"), 500, 300, wanted_s=480 if is_gpu else None),
        Step("calibrate-quick", calibrate("--quick"), 90, 60, 60 if is_gpu else 30, has_own_roofs=True),
        Step("matmul-dtypes", matmul(usual, *within(200)), 240, 120),
    ]


def calibrate(*words):
    """Return the words of the calibration."""
    return "bench", "calibrate", *words


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
    step = ("bench.train_step", "--checkpoint", "none,full")
    model = () if is_gpu else ("--shape", "1x128,4x128,16x128", "--op", "decode-attention,decode-block")
    return [
        Step("train-step", (*step, *within(90), "--plot", "train-step.png"), 140, 60),
        Step("decode", ("bench.decode", *model, *within(90), "--plot", "decode.png"), 140, 60),
        Step("transfer", ("bench.transfer", *within(60)), 90, 45),
    ]


def statistics():
    """Return what says how far the numbers can be believed, the shorter ones first."""
    side_by_side, profiler_times, repeated_processes = (
        Step(name.replace("_", "-"), (f"bench.validation.{name}", *words, "--output", "found"), limit_s, needs_s)
        for name, (words, limit_s, needs_s) in STATISTICS.items()
    )
    false_verdicts = ("bench.validation.false_verdicts", "--rows", "120", "--planted", "20", "--minutes", "4")
    return [
        side_by_side,
        profiler_times,
        repeated_processes,
        Step("false-verdicts", false_verdicts, 300, 60, reports_by_1=False, kept_as="false-verdicts.txt"),
    ]


def python(step):
    """Return the command line of a step in this interpreter."""
    return [sys.executable, "-m", *step.words]
