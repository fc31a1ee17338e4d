"""The examples of launchers: their syntax, and that the commands in them are commands of this
version.
"""

import os
import re
import stat
import subprocess
from pathlib import Path

import pytest

from bench import __main__ as bench
from bench import fleet
from results.show.terminal import Parser

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
FLEET = [
    EXAMPLES / name for name in ("slurm-prolog.sh", "slurm.sbatch", "ssh.sh", "kubernetes.yaml")
]


def arguments_of(text, command):
    """Return the arguments of each use of a command outside of comments, up to the end of its shell
    command.
    """
    code = re.sub(r"(^|\s)#.*", "", text, flags=re.MULTILINE).replace("\\\n", " ")
    # Folded YAML.
    code = re.sub(r">-\n(( +).*\n(\2.*\n)*)", lambda match: " ".join(match[1].split()) + "\n", code)
    return [
        words.replace('"', "").split() for words in re.findall(rf"{command}((?: [^;|&\n]+)?)", code)
    ]


@pytest.mark.parametrize("path", FLEET, ids=lambda path: path.name)
def test_commands_in_examples_exist(path):
    text = path.read_text(encoding="utf-8")
    measured = arguments_of(text, r"-m bench\.fleet")
    assert len(measured) == 1
    args = fleet.build_parser().parse_args(measured[0])
    assert args.quick
    assert args.output
    reports = arguments_of(text, "-m bench fleet-report")
    assert len(reports) == (path.suffix != ".yaml")
    for words in reports:
        parser = Parser(prog="python -m bench")
        bench.add_commands(parser, ["fleet-report", *words], bench.Catalog({}, {}, ()))
        parser.parse_args(["fleet-report", *words])


@pytest.mark.parametrize(
    "path", [path for path in FLEET if path.suffix != ".yaml"], ids=lambda path: path.name
)
def test_scripts_have_no_syntax_error(path):
    assert subprocess.run(["bash", "-n", path], capture_output=True, check=False).stderr == b""


@pytest.mark.parametrize(
    ("measuring", "report", "expected"),
    [(0, 0, 0), (0, 1, 1), (0, 2, 0), (0, 3, 0), (1, 1, 1), (137, 0, 0), (None, 3, 0)],
)
def test_only_a_slow_device_drains_a_node(measuring, report, expected, tmp_path):
    bin_directory = tmp_path / ".venv" / "bin"
    bin_directory.mkdir(parents=True)
    for name, code in {"torchrun": measuring, "python": report}.items():
        if code is not None:
            (bin_directory / name).write_text(f"#!/bin/sh\nexit {code}\n")
            (bin_directory / name).chmod(stat.S_IRWXU)
    environment = os.environ | {"ROOFMARK": str(tmp_path), "ROOFMARK_PROLOG_RUNS": str(tmp_path)}
    done = subprocess.run(
        [EXAMPLES / "slurm-prolog.sh"], env=environment, capture_output=True, check=False
    )
    assert done.returncode == expected
