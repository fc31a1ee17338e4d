"""The command `roofmark`: every command of the packages, hints in the form that was typed, tab
completion.
"""

import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import bench
from results.show import terminal
from roofmark import command

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def roofmark(*words, **variables):
    environment = os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'bench' / 'installed'}"}
    return subprocess.run(
        [sys.executable, "-m", "roofmark", *words],
        cwd=ROOT,
        env=environment | variables,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def commands_of(package):
    return set(importlib.import_module(f"{package}.__main__").COMMANDS)


def test_every_command_of_a_package_has_a_name():
    offered = {}
    for name, package in command.PACKAGES.items():
        offered.setdefault(package, set()).add(command.NAMES_THERE.get(name, name))
    assert offered["roofline"] == commands_of("roofline")
    assert offered["results"] == commands_of("results") - {"compare"}
    assert offered["kernels"] == commands_of("kernels")
    assert not set(command.PACKAGES) & {*commands_of("bench"), *bench.FAMILIES}


def test_the_readme_lists_every_command_with_its_module():
    rows = re.findall(r"^\| (.*) \| `(python -m .*)` \|$", README, re.MULTILINE)
    listed = {}
    for names, module in rows:
        listed.setdefault(module, set()).update(re.findall(r"`([\w-]+)`", names))
    assert listed["python -m bench.NAME"] == set(bench.FAMILIES)
    assert listed["python -m bench NAME"] == {*commands_of("bench"), "gelu"}
    assert listed["python -m roofline NAME"] == commands_of("roofline")
    assert listed["python -m results NAME"] == commands_of("results") - {"list"}
    assert listed["python -m results list"] == {"runs"}
    assert listed["python -m kernels list"] == {"kernels"}
    assert listed["python -m kernels audit"] == {"audit"}


@pytest.mark.parametrize("module", ["roofmark", "bench", "roofline", "results", "kernels"])
def test_without_arguments_the_help_is_printed(module):
    done = subprocess.run(
        [sys.executable, "-m", module],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT / "bench" / "installed")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("usage: ")


@pytest.mark.parametrize("name", ["relu", "runs"])
def test_a_help_names_commands_in_the_form_that_was_typed(name):
    done = roofmark(name, "--help")
    assert done.returncode == 0
    assert "usage: roofmark " in done.stdout
    assert "python -m" not in done.stdout


def test_errors_name_commands_in_the_form_that_was_typed():
    done = roofmark("plot", "--gpu", "h9", "-o", "x.png")
    assert done.returncode == 2
    said = "roofmark plot: error: unknown GPU 'h9'; list GPUs with `roofmark gpus`; "
    assert done.stderr.startswith(said)


def test_an_unknown_command_suggests_a_command_of_any_package():
    done = roofmark("plott")
    assert done.returncode == 2
    assert done.stderr == "roofmark: error: unknown command 'plott'; did you mean plot?\n"


def test_the_version_is_that_of_bench():
    assert roofmark("--version").stdout == f"roofmark {bench.__version__}\n"


@pytest.mark.parametrize(
    ("words", "is_run"),
    [
        ([], False),
        (["--op", "gelu"], False),
        (["old.py:f", "new.py:f"], False),
        (["latest.py:f", "new.py:f"], False),
        (["definition.json", "solution.json"], False),
        (["a:b/x.jsonl", "b.jsonl"], True),
        (["latest", "--by", "provider"], True),
        (["latest:matmul"], True),
        (["20261120T2336"], True),
    ],
)
def test_compare_of_runs_and_of_functions_are_told_apart(words, is_run):
    assert command.names_run(words[:1]) == is_run


@pytest.mark.parametrize(
    ("text", "short"),
    [
        ("python -m bench.matmul --dtype bf16", "roofmark matmul --dtype bf16"),
        ("run `python -m bench calibrate`", "run `roofmark calibrate`"),
        ("python -m bench.<family> --help", "roofmark <family> --help"),
        ("python -m results list", "roofmark runs"),
        ("python -m kernels list", "roofmark kernels"),
        ("python -m kernels audit gelu", "roofmark audit gelu"),
        ("python -m roofline --help", "roofmark --help"),
        ("python -m tests.validation.saved_runs", "python -m tests.validation.saved_runs"),
    ],
)
def test_module_commands_have_a_short_form(monkeypatch, text, short):
    assert terminal.as_typed(text) == text
    monkeypatch.setattr(terminal, "_is_short", True)
    assert terminal.as_typed(text) == short


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("roofmark matm", {"matmul"}),
        ("roofmark matmul --dt", {"--dtype"}),
        ("roofmark runs --for", {"--format"}),
        ("roofmark show --format ", set(terminal.TABLE_FORMATS)),
        (
            "roofmark compare latest --by ",
            {"provider", "version", "git", "op", "category", "module", "kernel"},
        ),
    ],
)
def test_words_are_completed(tmp_path, line, found):
    output = tmp_path / "completions"
    script = 'exec "$@" 8>"$OUT" 9>/dev/null'
    environment = os.environ | {
        "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'bench' / 'installed'}",
        "OUT": str(output),
        "COMP_LINE": line,
        "COMP_POINT": str(len(line)),
        "_ARGCOMPLETE": "1",
        "_ARGCOMPLETE_IFS": " ",
        "_ARGCOMPLETE_SUPPRESS_SPACE": "1",
    }
    words = ["sh", "-c", script, "sh", sys.executable, "-m", "roofmark"]
    subprocess.run(words, cwd=ROOT, env=environment, check=True, capture_output=True, timeout=60)
    assert {word for word in output.read_text().split(" ") if word} == found


def test_the_command_to_install_an_extra_fits_the_installation(monkeypatch, tmp_path):
    clone = f"{sys.executable} -m pip install -e '{ROOT}[page]'"
    assert terminal.install_command("page") == clone
    home = tmp_path / "roofmark_home" / "results" / "show"
    monkeypatch.setattr(terminal, "__file__", str(home / "terminal.py"))
    assert terminal.install_command("page").endswith("-m pip install 'roofmark[page]'")
