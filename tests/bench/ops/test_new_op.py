"""A new op is one file: it is listed, measured and compared, with options of any name."""

import json
import re

import pytest

from bench.__main__ import main
from bench.harness.op import Case
from bench.harness.op_file import options_of
from tests.bench import commands
from tests.bench.new_op import SCALED_COPY, repository_with, run_in

UNFINISHED = {
    "empty": '"""An op that is not begun."""\n',
    "half": '"""An op that does not import."""\n\nOPS = (undefined,)\n',
    "broken": '"""An op that is no Python."""\n\ndef work(case:\n',
    "leaving": '"""An op that runs its command when it is imported."""\n\nraise SystemExit(2)\n',
    "clashing": SCALED_COPY.replace("scaled-copy", "other-copy").replace('"scale-by"', '"fail-on"'),
    "twin": SCALED_COPY,
    "wrong": '"""An op that is none."""\n\nOPS = ("gelu",)\n',
    "usual": SCALED_COPY.replace("scaled-copy", "usual-copy").replace('"scale-by"', '"dtype"'),
}


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    """Return a copy of the repository with a new op and with unfinished files."""
    return repository_with(
        tmp_path_factory.mktemp("copy") / "repository", scaled_copy=SCALED_COPY, **UNFINISHED
    )


@pytest.fixture(autouse=True)
def roofs(runs):
    commands.keep_ceilings(runs)


def ready(repository, *words):
    """Run a command of the copy; return stdout and stderr."""
    code, out, err = run_in(repository, *words)
    assert code == 0, err
    return out, err


def test_a_new_op_is_listed_and_unfinished_files_are_noted(repository):
    out, err = ready(repository, "bench", "list")
    (line,) = [line for line in out.splitlines() if "scaled-copy" in line]
    assert line.split()[:2] == ["bench.scaled_copy", "scaled-copy"]
    assert "bench.matmul" in out
    notes = dict(re.findall(r"^note: bench/(\w+)\.py is left out: (.+)$", err, re.MULTILINE))
    assert len(err.splitlines()) == len(notes) == len(UNFINISHED)
    assert notes["empty"] == "it has no OPS and no LISTED"
    assert notes["half"] == "NameError: name 'undefined' is not defined (line 3)"
    assert "SyntaxError" in notes["broken"]
    assert "line 3" in notes["broken"]
    assert "SystemExit" in notes["leaving"]
    assert "--fail-on" in notes["clashing"]
    assert "--dtype" in notes["usual"]
    assert "'scaled-copy'" in notes["twin"]
    assert notes["wrong"] == "its OPS must be a tuple of Op"


def test_an_op_option_that_every_command_has_is_rejected(repository):
    code, out, err = run_in(repository, "bench.usual", "--help")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert (
        "usual.py: argument --dtype: conflicting option string: --dtype; every command has this "
        "option" in err
    )


@pytest.mark.exhaustive
def test_each_family_reads_its_own_option_in_a_comparison(repository, tmp_path):
    compared = ("--rounds", "10", "--device", "cpu", "--provider", "torch,torch", "--dtype", "fp32")
    words = ("--op", "scaled-copy", "--layout", "dense,sparse", "--scale-by", "3", *compared)
    out, err = ready(
        repository, "bench", "compare", *words, "--format", "json", "--output", tmp_path
    )
    assert [row["case"] for row in json.loads(out)["rows"]] == [
        "4096:scale-by=3.0",
        "4096:layout=sparse:scale-by=3.0",
    ]
    assert "bench/half.py is left out" in err
    for op, value, there in (
        ("scaled-copy", "nt", "dense, sparse"),
        ("matmul", "dense", "nn, nt, tn"),
    ):
        code, out, err = run_in(
            repository, "bench", "compare", "--op", op, "--layout", value, "-q", *compared
        )
        assert (code, out) == (2, "")
        assert (
            err
            == f"python -m bench compare: error: unknown layout '{value}'; choose from {there}\n"
        )


@pytest.mark.parametrize("ops", ["gelu", "matmul,gelu"])
def test_an_option_that_an_op_does_not_have_is_rejected(ops, error_of):
    words = ["compare", "--op", ops, "--provider", "torch,torch", "--layout", "no-such-value"]
    assert "--layout does not apply to gelu" in error_of(main(words))


def test_case_names_stay_stable():
    matmul, decode = options_of("matmul"), options_of("decode")

    def name(options, dtype="bf16", **values):
        return Case.of("op", dtype, {"m": 4, "n": 5}, options, values).name

    assert name(matmul, layout="nn", batch=1) == "4x5"
    assert name(matmul, layout="nt", batch=4) == "4x5:b4:nt"
    assert name(matmul, "fp8e4m3", layout="nt", batch=1) == "4x5:nt"  # even if it is the default
    assert name(decode, model="qwen2.5-0.5b", layers="all") == "4x5:qwen2.5-0.5b"
    assert name(decode, model="gpt2", layers="2") == "4x5:gpt2:layers=2"
