"""The op definition of a record: what its hash covers, and that every record has it."""

import hashlib
from dataclasses import replace
from pathlib import Path

import pytest

from bench.__main__ import families
from bench.harness import op_file, worker
from bench.harness.device.device import cpu_device
from bench.harness.measure.isolated import measure_isolated
from bench.harness.measure.rows import Row
from bench.harness.op import Case
from bench.harness.op_file import modules_sha256, op_sha256, options_of
from results.store.runfile import load_run
from roofline.work import VECTOR_OPS
from tests.bench import commands

OPS = {op.name: (family, op) for family, ops in families().items() for op in ops}
FILE = '''"""Two ops."""

from bench.harness.op import Op

# a comment
SCALE = 2  # another
OTHER = 5


def scaled(x):
    """What it does."""
    # why
    return x * SCALE


def make_op(name, factor, function):
    return Op(name=name, formula="", axes=("n",), make_inputs=lambda case, tensor: (tensor(factor),),
              output_shape=lambda case: (1,), reference=function, eager=function, work=lambda case: factor)


OPS = (make_op("one", 1, scaled), make_op("two", 2, lambda x: x + OTHER))
'''  # noqa: E501


@pytest.fixture(autouse=True)
def roofs(runs):
    commands.keep_ceilings(runs)


def hashes(path, text):
    """Return the hashes of both ops of a file."""
    file = path / f"op_file_{hashlib.sha256(text.encode()).hexdigest()[:10]}.py"
    file.write_bytes(text.encode())
    return [op_sha256(str(file), name) for name in ("one", "two")]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("# why", "# because"),
        ("What it does.", "Less.\n\n    More."),
        ("\n\n\n", "\n"),
        ("OPS =", "UNUSED = 1\nOPS ="),
        ("lambda x: x + OTHER", "(\n    lambda x: x\n    + OTHER)"),
        ('formula=""', 'formula="", default_shapes={"cpu": ("8",)}'),
    ],
)
def test_comments_layout_and_unused_code_are_not_hashed(tmp_path, before, after):
    assert before in FILE
    assert hashes(tmp_path, FILE.replace(before, after)) == hashes(tmp_path, FILE)


@pytest.mark.parametrize(
    ("before", "after", "changed"),
    [
        ("SCALE = 2", "SCALE = 3", [True, False]),
        ("x * SCALE", "x + SCALE", [True, False]),
        ("OTHER = 5", "OTHER = 6", [False, True]),
        ("x + OTHER", "x - OTHER", [False, True]),
        ('"one", 1', '"one", 3', [True, False]),
        ("lambda case: (1,)", "lambda case: (2,)", [True, True]),
    ],
)
def test_only_code_that_an_op_reaches_is_hashed(tmp_path, before, after, changed):
    assert FILE.count(before) == 1
    old, new = (hashes(tmp_path, text) for text in (FILE, FILE.replace(before, after)))
    assert [one != other for one, other in zip(old, new, strict=True)] == changed


def test_an_op_that_no_call_names_has_the_hash_of_its_file(tmp_path):
    looped = FILE.replace('make_op("one", 1, scaled)', "*[make_op(n, 1, scaled) for n in 'one']")
    changed = looped.replace("OTHER = 5", "OTHER = 6").replace("# why", "")
    commented = looped.replace("# why", "")
    old, same, new = (hashes(tmp_path, text)[0] for text in (looped, commented, changed))
    assert old == same != new


def test_every_op_of_a_family_has_its_own_hash():
    found = [op_sha256(family, name, op.defined_in) for name, (family, op) in OPS.items()]
    assert None not in found
    assert len(set(found)) == len(found)


def records_in(folder):
    (path,) = Path(folder).glob("*.jsonl")
    return load_run(path).records


def test_rows_that_are_not_ops_have_the_hash_of_their_command(tmp_path):
    words = "--op h2d --size 4KiB --budget 0.001"
    assert commands.here("transfer", *words.split(), "--output", tmp_path) in (0, 2)
    module = op_file.read_catalog().commands["transfer"]
    expected = modules_sha256(["bench.transfer", *module.MODULES])
    assert {record.op_sha256 for record in records_in(tmp_path)} == {expected}
    assert expected is not None


def test_an_op_edited_during_a_run_fails_in_the_worker(monkeypatch):
    row = Row(OPS["relu"][1], Case("relu", "fp32", {"n": 64}), "torch", family="elementwise")
    other = replace(row.blank(), status="ok", op_sha256="f" * 64)
    monkeypatch.setattr(worker, "call", lambda *arguments, **limits: (other, ""))
    record = measure_isolated(row, cpu_device(), None, None, timeout_s=60)
    assert record.status == "failed"
    assert "the definition of relu changed during the run" in record.reason


@pytest.mark.parametrize("name", OPS)
def test_units_agree_with_those_of_older_records(name):
    """Older records have no `units`: `VECTOR_OPS` lists their vector ops."""
    family, op = OPS[name]
    shape = dict(zip(op.axes, op.extents((64,), op.axes), strict=True))
    case = Case(
        name,
        op.dtypes[0],
        shape,
        {option.name: option.default(op.dtypes[0]) for option in options_of(family)},
    )
    if name in VECTOR_OPS:
        assert Row(op, case, "torch").blank().units == "vector"
    elif family in ("matmul", "matvec", "attention", "grouped_matmul", "decode"):
        assert Row(op, case, "torch").blank().units == "matrix"
