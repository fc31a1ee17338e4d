"""A user's op file in any directory: measured, compared, rejected in one line."""

import json
import runpy
import subprocess
import sys

import pytest

from bench.__main__ import families, main
from bench.harness import op_file
from bench.harness.cli.arguments import UsageError
from bench.harness.op_file import OpFileError, own_families
from results.store.runfile import load_run
from tests.bench import commands
from tests.bench.new_op import SCALED_COPY

SOFTMAX = op_file.BENCH / "softmax.py"

FAST = """
import torch

def fast(x, out):
    torch.softmax(x, -1, out=out)
"""


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """Return the path of an op file: a copy of `bench/softmax.py` with another name."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "soft_cap.py"
    path.write_text(
        SOFTMAX.read_text(encoding="utf-8").replace('name="softmax"', 'name="soft-cap"'),
        encoding="utf-8",
    )
    return path


@pytest.mark.exhaustive
def test_a_copy_of_an_op_file_runs(mine, runs):
    commands.keep_ceilings(runs)
    words = "--dtype fp32 bf16 --shape 10x100 --device cpu --budget 20 --provider torch"
    done = subprocess.run(
        [sys.executable, mine.name, *words.split()],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (saved,) = commands.run_files(runs)
    assert "-soft_cap-" in saved.name
    run = load_run(saved)
    assert [(record.op, record.dtype, record.status) for record in run.records] == [
        ("soft-cap", "fp32", "ok"),
        ("soft-cap", "bf16", "ok"),
    ]
    assert run.environment.argv[:2] == ("python", str(mine))
    assert (run.records[0].flops, run.records[0].bytes_read, run.records[0].bytes_written) == (
        5000,
        4000,
        4000,
    )


def test_a_copy_of_an_op_file_can_be_measured_from_python(mine):
    made = runpy.run_path(str(mine))["run"]
    assert "soft_cap" in made.__doc__
    with pytest.raises(UsageError, match="fp99"):
        made(dtype="fp99")


@pytest.mark.usefixtures("quick")
def test_ops_of_a_file_are_measured_with_others_and_their_output_goes_to_stderr(mine, capsys):
    mine.write_text(mine.read_text() + "\nprint('soft_cap is here')\n")
    words = "--dtype fp32 --shape 64 --provider torch --device cpu --format json --no-save"
    assert main(["elementwise", "--op", "relu,soft_cap.py", *words.split()]) == 0
    out, err = capsys.readouterr()
    found = [(record["op"], record["status"]) for record in json.loads(out)["records"]]
    assert found == [("relu", "ok"), ("soft-cap", "ok")]
    assert "soft_cap is here" in err


UNUSUAL = """
import torch
from bench.harness.op import Op
from roofline.work import elementwise_work

SHAPES = {"cpu": ("4096",), "cuda": ("4096",)}
OPS = (
    Op(
        name="no-inputs",
        formula="out (n) = 1",
        axes=("n",),
        default_shapes=SHAPES,
        make_inputs=lambda case, tensor: (),
        output_shape=lambda case: (4096,),
        reference=lambda: torch.ones(4096),
        eager=lambda out: out.fill_(1.0),
        work=lambda case: elementwise_work(4096, 0, 1, case.dtype),
        dtypes=("fp32",),
    ),
    Op(
        name="in-c",
        formula="out (n) = x (n) where z (n), else y (n)",
        axes=("n",),
        default_shapes=SHAPES,
        make_inputs=lambda case, tensor: (tensor(4096) < 0, tensor(4096), tensor(4096)),
        output_shape=lambda case: (4096,),
        reference=torch.where,
        eager=torch.where,
        work=lambda case: elementwise_work(4096, 3, 1, case.dtype),
        dtypes=("fp32",),
    ),
)

def ones():
    return torch.ones(4096)

def zeros():
    return torch.zeros(4096)

def chosen(z, x, y):
    return torch.where(z, x, y)
"""


@pytest.mark.usefixtures("quick")
def test_ops_without_inputs_and_in_c_are_measured_in_their_own_dtype(mine, capsys):
    mine.write_text(UNUSUAL)
    words = "--device cpu --format json --no-save"
    functions = ",".join(f"soft_cap.py:{name}" for name in ("ones", "zeros", "chosen"))
    main(["soft_cap.py", *words.split(), "--provider", f"torch,{functions}"])
    rows = json.loads(capsys.readouterr().out)["records"]
    assert {row["dtype"] for row in rows} == {"fp32"}
    assert [(row["op"], row["provider"].rpartition(":")[2], row["status"]) for row in rows] == [
        ("no-inputs", "torch", "ok"),
        ("no-inputs", "ones", "ok"),
        ("no-inputs", "zeros", "invalid"),
        ("no-inputs", "chosen", "failed"),
        ("in-c", "torch", "ok"),
        ("in-c", "ones", "failed"),
        ("in-c", "zeros", "failed"),
        ("in-c", "chosen", "ok"),
    ]


def test_help_of_an_op_file_shows_docstring_path_and_signature(mine, capsys):
    with pytest.raises(SystemExit) as caught:
        main(["soft_cap.py", "--help"])
    assert caught.value.code == 0
    assert main(["soft_cap.py", "--signature"]) == 0
    out = capsys.readouterr().out
    said = ("Softmax of rows: out = exp(x - max(x))", "python soft_cap.py --dtype bf16")
    for text in (*said, "from soft_cap import OPS", "def soft_cap(x, out):"):
        assert text in out


@pytest.mark.exhaustive
def test_an_own_op_is_compared_with_a_user_function(mine, runs, capsys):
    commands.keep_ceilings(runs)
    (mine.parent / "k.py").write_text(FAST)
    words = "compare --dtype fp32 --shape 10x100 --device cpu --rounds 20 --format json -q"
    capsys.readouterr()
    ours = "--op soft_cap.py:soft-cap --provider torch,k.py:fast"
    assert main([*words.split(), *ours.split()]) in (0, 1)
    assert [row["candidate"] for row in json.loads(capsys.readouterr().out)["rows"]] == [
        "k.py:fast"
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "it has no OPS and no LISTED"),
        ("OPS = (undefined,)", "NameError: name 'undefined' is not defined (line 1)"),
        (
            SCALED_COPY.replace('name="scaled-copy",', 'name="scaled-copy", units="tensor",'),
            "units of 'scaled-copy' must be matrix or vector, got 'tensor'",
        ),
        (SCALED_COPY.replace("scaled-copy", "gelu"), "bench/elementwise.py also has an op 'gelu'"),
    ],
)
@pytest.mark.parametrize("command", [["compare", "--provider", "torch,torch"], ["elementwise"]])
def test_an_unfinished_op_file_is_a_one_line_error(tmp_path, error_of, command, text, said):
    path = tmp_path / "half.py"
    path.write_text(text)
    err = error_of(main([*command, "--op", str(path)]))
    assert f"error: half.py cannot be used: {said}" in err


def test_a_missing_file_or_op_is_a_one_line_error(mine, capsys):
    capsys.readouterr()
    assert main(["elementwise", "--op", "nowhere.py"]) == 2
    assert "nowhere.py cannot be used: FileNotFoundError" in capsys.readouterr().err
    assert main(["elementwise", "--op", "soft_cap.py:softcup"]) == 2
    assert "unknown op of soft_cap.py 'softcup'; did you mean soft-cap?" in capsys.readouterr().err


def test_two_files_may_not_define_the_same_op(tmp_path):
    for name in ("one", "two"):
        (tmp_path / f"{name}.py").write_text(SCALED_COPY)
    words = [str(tmp_path / "one.py"), str(tmp_path / "two.py")]
    assert [
        op.name for op in own_families([*words[:1], *words[:1], "gelu"], families())[words[0]]
    ] == ["scaled-copy"]
    with pytest.raises(
        OpFileError, match=r"two\.py cannot be used: .*one\.py also has an op 'scaled-copy'"
    ):
        own_families(words, families())


def test_modules_beside_an_op_file_come_last_in_the_path(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "beside_a_lazy_file.py").write_text("VALUE = 2\n")
    file = tmp_path / "lazy.py"
    file.write_text(
        "def found():\n    import beside_a_lazy_file\n\n    return beside_a_lazy_file.VALUE\n"
    )
    module = op_file.import_file(file)
    assert (sys.path[-1], sys.path.count(str(tmp_path))) == (str(tmp_path), 1)
    assert module.found() == 2


IN_PLACE = SCALED_COPY.replace("return x + x", "return x.add_(x)")


@pytest.mark.exhaustive
@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(("declared", "status"), [("", "invalid"), ("in_place=True, ", "ok")])
def test_an_op_that_changes_its_inputs_declares_it(tmp_path, capsys, declared, status):
    path = tmp_path / "own.py"
    path.write_text(IN_PLACE.replace("eager=scaled,", f"eager=scaled, {declared}"))
    words = "--dtype fp32 --shape 64 --provider torch --device cpu --format json --no-save -q"
    main(["elementwise", "--op", str(path), *words.split()])
    (record,) = json.loads(capsys.readouterr().out)["records"]
    assert (record["status"], record["reason"]) == (
        status,
        None if declared else "changes its inputs",
    )


@pytest.mark.parametrize("command", [["elementwise"], ["compare"]])
def test_in_place_needs_a_function_of_ones_own(capsys, command):
    words = ["--op", "relu", "--provider", "torch,torch-compile", "--in-place", "--no-save"]
    assert main([*command, *words]) == 2
    assert "--in-place is for your own functions; name one in --provider" in capsys.readouterr().err
