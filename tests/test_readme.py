"""The README's commands run as they are written there, one after the other, in a folder of their own."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
COMMANDS = [
    line
    for block in re.findall(r"^```bash\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
    for line in block.splitlines()
    if line.startswith("python -m ")
]
INSTALLING = re.findall(r"^python3 -m venv .*$", README, re.MULTILINE)


def test_the_readme_has_its_two_first_commands():
    new = "python3 -m venv .venv && .venv/bin/pip install -e"
    measure = f"{new} . && .venv/bin/python -m bench.matmul --dtype bf16 --plot roofline.png"
    test = f"{new} '.[test]' && .venv/bin/pytest"
    assert [measure, test] == INSTALLING


def test_ci_runs_the_test_command_as_the_readme_has_it():
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()
    assert INSTALLING[1] in script


@pytest.mark.exhaustive
def test_all_commands_run_in_order(tmp_path):
    assert len(COMMANDS) > 10
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    for command in COMMANDS:
        writes_a_file = " --output " in command or " > " in command
        allowed = (0, 1) if " compare " in command else (0,)  # 1: this machine confirms that one is slower
        line = command.replace("python", f"'{sys.executable}'", 1)
        done = subprocess.run(
            line, shell=True, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300
        )
        assert done.returncode in allowed, f"{command}\n{done.stdout}\n{done.stderr}"
        assert done.stdout.strip() or writes_a_file, command
    written = {name for command in COMMANDS for name in re.findall(r"(?:-o|--output|--plot|>) (\S+)", command)}
    assert written == {path.name for path in tmp_path.iterdir()}


def test_pictures_of_the_readme_are_there():
    pictures = re.findall(r"!\[[^\]]+\]\(([^)]+)\)", README)
    assert pictures
    for picture in pictures:
        assert (ROOT / picture).read_bytes().startswith(b"\x89PNG"), picture
