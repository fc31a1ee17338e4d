"""The commands and Python examples of the READMEs run as written."""

import io
import json
import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from unittest.mock import patch

import pytest

from bench.harness.timing.protocol import LIMITS
from tests.bench.commands import QUICK, keep_ceilings
from tests.bench.conftest import tiny_calibration  # noqa: F401

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = (
    ".",
    "bench",
    "bench/harness",
    "bench/lecture",
    "bench/profiling",
    "kernels",
    "roofline",
    "results",
)
PAGES = {
    path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8")
    for path in (ROOT / folder / "README.md" for folder in FOLDERS)
}
README = PAGES["README.md"]
INSTALLING = re.findall(r"^python3 -m venv .*$", README, re.MULTILINE)
SHORT_BUDGET_S = 3
INTERPRETED = "TRITON_INTERPRET=1 python "
"""Of a command that needs a process of its own, because Triton reads the variable when it is
imported.
"""


def commands(page):
    """Return the commands of a page."""
    return [
        line
        for block in re.findall(r"^```bash\n(.*?)^```$", PAGES[page], re.MULTILINE | re.DOTALL)
        for line in block.splitlines()
        if line.startswith(("python ", INTERPRETED))
    ]


def write_files(page):
    """Write the files that a page shows, and return their names."""
    shown = re.findall(r"^```toml\n# (\S+)\n(.*?)^```$", PAGES[page], re.MULTILINE | re.DOTALL)
    for name, text in shown:
        Path(name).write_text(text)
    return {name for name, _ in shown}


def in_a_shell(command):
    line = command.replace("python", f"'{sys.executable}'", 1)
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.run(
        line, shell=True, env=environment, capture_output=True, text=True, timeout=300, check=False
    )


def here(command):
    """Run a command in this process, where torch is loaded already."""
    if command.startswith(INTERPRETED):
        return in_a_shell(command)
    line, _, target = command.partition(" > ")
    _, _, module, *words = shlex.split(line)
    out, code = io.StringIO(), 0
    with (
        redirect_stdout(out),
        redirect_stderr(io.StringIO()) as err,
        patch.object(sys, "argv", [module, *words]),
    ):
        try:
            runpy.run_module(module, run_name="__main__", alter_sys=True)
        except SystemExit as end:
            code = end.code
    if target:
        Path(target).write_text(out.getvalue())
    return subprocess.CompletedProcess(command, code or 0, out.getvalue(), err.getvalue())


def check_command(command, run):
    """Check exit code and output of a command; one that measures first gets a short budget."""
    short = re.sub(r"--budget \d+", f"--budget {SHORT_BUDGET_S}", command)
    if "--budget" not in command and "--signature" not in command:
        short = re.sub(
            r"^python -m bench(\.\w+| compare| lecture)",
            rf"\g<0> --budget {SHORT_BUDGET_S}",
            command,
        )
    done = run(short)
    is_late = done.returncode == 2 or f"the budget of {SHORT_BUDGET_S} s" in done.stdout
    if is_late and short != command:  # too busy a machine for all rows
        done = run(command)
    writes_a_file = " --output " in command or " > " in command or " --quiet" in command
    # 1: this machine confirms that one is slower.
    allowed = (0, 1) if " compare " in command or " --with " in command else (0,)
    assert done.returncode in allowed, f"{command}\n{done.stdout}\n{done.stderr}"
    assert done.stdout.strip() or writes_a_file, command


def test_the_readme_has_the_two_first_commands():
    new = "python3 -m venv .venv && .venv/bin/pip install -e"
    measure = (
        f"{new} '.[bench]' && .venv/bin/python -m bench.matmul --dtype bf16 --plot roofline.png"
    )
    test = f"{new} '.[test]' && .venv/bin/pytest"
    assert [measure, test] == INSTALLING


def test_ci_runs_the_test_command_of_the_readme():
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()
    assert INSTALLING[1] in script


@pytest.mark.parametrize("page", ["bench/README.md", "roofline/README.md"])
def test_the_first_command_of_a_page_runs(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    check_command(commands(page)[0], in_a_shell)


@pytest.mark.exhaustive
@pytest.mark.filterwarnings("ignore:.*found in sys.modules:RuntimeWarning")
@pytest.mark.parametrize("page", PAGES)
def test_all_commands_of_a_page_run_in_order(page, runs, tmp_path, monkeypatch, tiny_calibration):  # noqa: F811
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(LIMITS, "cpu", QUICK)  # the times do not matter
    assert commands(page)
    shown = write_files(page)
    keep_ceilings(runs)
    # The pages share commands that need no earlier one.
    done = commands("README.md") if page == "bench/README.md" else []
    for command in commands(page):
        if command not in done:
            check_command(command, here)
    option = r"(?:-o|--output|--plot|--trace|(?<!-)>) (\S+)"
    written = {name for command in commands(page) for name in re.findall(option, command)}
    assert written | shown == {path.name for path in tmp_path.iterdir()} - {"__pycache__"}


def test_a_kernel_is_checked_without_a_gpu(tmp_path, monkeypatch):
    monkeypatch.setenv("ROOFMARK_RUNS", str(tmp_path))
    keep_ceilings(tmp_path)
    command = next(line for line in commands("kernels/README.md") if line.startswith(INTERPRETED))
    done = in_a_shell(f"{command} --format json")
    assert done.returncode == 0, done.stderr
    (row,) = json.loads(done.stdout)["records"]
    assert (row["status"], row["flops_per_s"], row["mfu"]) == ("ok", None, None)
    assert row["provider"].startswith("triton-v")
    assert "interpreted" in row["flags"]


@pytest.mark.filterwarnings("ignore:.*found in sys.modules:RuntimeWarning")
def test_a_new_gpu_has_a_roofline(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert write_files("roofline/README.md") == {"my-gpu.toml"}
    recipe = [line for line in commands("roofline/README.md") if "my-gpu" in line]
    facts, plot, intensity = map(here, recipe)
    assert re.search(r"bf16_tensor .* 222 ", facts.stdout)  # 400e12 / 1.8e12
    assert plot.returncode == 0, plot.stderr
    assert Path("my-gpu.png").exists()
    assert "on my-gpu in bf16\n\n=> ridge at 222.2 FLOP/B" in intensity.stdout
    path = Path("my-gpu.toml")
    path.write_text(path.read_text().replace("bandwidth", "bandwith"))
    for command in recipe:
        wrong = here(command)
        assert wrong.returncode == 2
        assert wrong.stderr.count("\n") == 1
        assert "my-gpu.toml: unknown key memory_bandwith_bytes_per_s" in wrong.stderr


@pytest.mark.exhaustive
@pytest.mark.filterwarnings("ignore:.*found in sys.modules:RuntimeWarning")
def test_the_recipe_compares_the_mfu_of_two_commits(runs, tmp_path, monkeypatch, tiny_calibration):  # noqa: F811
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(LIMITS, "cpu", QUICK)  # the times do not matter
    keep_ceilings(runs)
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-c", "advice.detachedHead=false"]

    def checked_out(*words):
        subprocess.run([*git, *words], check=True, capture_output=True)

    checked_out("init")
    for tag, body in (("v1", "a.T.contiguous().T @ b"), ("v2", "a @ b")):
        Path("mine.py").write_text(f"def matmul(a, b):\n    return {body}\n")
        checked_out("add", "mine.py")
        checked_out("commit", "-m", tag)
        checked_out("tag", tag)
    recipe = re.search(r"^```sh\n(.*?)^```$", PAGES["results/README.md"], re.MULTILINE | re.DOTALL)
    lines = recipe[1].replace("--shape 1024", "--shape 64 --budget 3").splitlines()
    assert len(lines) == 6
    for line in lines[:4]:
        loop = re.fullmatch(r"for i in (.*); do (.*); done", line)
        if loop is None:
            checked_out(*shlex.split(line)[1:])
        for _ in loop[1].split() if loop else ():
            measured = here(loop[2])
            assert measured.returncode == 0, measured.stderr
    compared, plotted = map(here, lines[-2:])
    first, second = (
        subprocess.run([*git, "rev-parse", tag], check=True, capture_output=True, text=True).stdout
        for tag in ("v1", "v2")
    )
    assert f"{first[:10]} -> {second[:10]}: " in compared.stdout, compared.stderr
    assert "MFU candidate" in compared.stdout
    assert plotted.returncode == 0, plotted.stderr
    assert plotted.stdout.count(second[:10]) == 3
    assert "same code" in plotted.stdout
    assert Path("mfu.png").exists()


@pytest.mark.parametrize("page", PAGES)
def test_images_and_links_of_a_page_exist(page):
    folder = (ROOT / page).parent
    for target in re.findall(r"\]\(([^)#]+)\)", PAGES[page]):
        assert (folder / target).resolve().exists(), target
    pictures = re.findall(r"!\[[^\]]+\]\(([^)]+)\)", PAGES[page])
    assert pictures or page not in ("README.md", "roofline/README.md")
    for picture in pictures:
        assert (folder / picture).read_bytes().startswith(b"\x89PNG"), picture


PYTHON_PAGES = (
    "roofline/README.md",
    "results/README.md",
    pytest.param("bench/README.md", marks=pytest.mark.exhaustive),
)


def examples(page):
    section = PAGES[page].partition("## From Python\n")[2].partition("\n## ")[0]
    return re.findall(r"^```python\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", PYTHON_PAGES)
def test_the_python_examples_of_a_page_run(page, tmp_path, monkeypatch, capsys):
    shutil.copy(next((ROOT / "results" / "published").rglob("*-matmul-*.jsonl")), tmp_path)
    monkeypatch.setenv("ROOFMARK_RUNS", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    keep_ceilings(tmp_path)
    monkeypatch.setitem(LIMITS, "cpu", QUICK)  # the times do not matter
    found, names = examples(page), {}
    assert found
    for example in found:
        exec(compile(example, page, "exec"), names)
