"""Output and error messages of `python -m kernels`."""

import csv
import json
import subprocess
import sys
from pathlib import Path

import pytest
from compiled import NEWEST_VERSIONS

from kernels import launch, versions
from kernels.__main__ import main
from kernels.audit import catalog, command, limits, rows
from kernels.launch import INTERPRETED

pytestmark = pytest.mark.skipif(INTERPRETED, reason="interpreted kernels are not compiled")

ROOT = Path(__file__).resolve().parents[2]
SAMPLES = Path(__file__).with_name("samples_audit.py")
COPY = f"{SAMPLES}:masked_copy"
KNOWN = ("--signature", "x_ptr=*bf16:16,out_ptr=*bf16:16,n=i32:16", "--constexpr", "BLOCK=1024")
KEYS = {
    *(
        "kernel",
        "version",
        "arch",
        "dtype",
        "part",
        "shape_class",
        "registers",
        "stack_bytes",
        "spill_bytes",
    ),
    *(
        "shared_bytes",
        "occupancy",
        "load_bits",
        "store_bits",
        "mma",
        "instructions",
        "instructions_per_element",
    ),
    *(
        "issue_budget_instructions_per_element",
        "bound",
        "fp_fusion",
        "double_precision",
        "triton",
        "ptxas",
        "target",
    ),
}


def run(capsys, *arguments):
    try:
        code = main(arguments)
    except SystemExit as leaving:
        code = leaving.code
    output = capsys.readouterr()
    return code, output.out, output.err


@pytest.mark.exhaustive
def test_audit_json_has_all_keys(capsys):
    sizes = ("--elements", "1024", "--bytes", "4096", "--arch", "sm_89,sm_90,sm_120")
    code, out, _ = run(capsys, "audit", COPY, *KNOWN, "--format", "json", *sizes)
    assert code == 0
    document = json.loads(out)
    assert {row["gpu"] for row in document["rows"]} >= {"h100-sxm", "l40s", "rtx-5090"}
    for row in document["rows"]:
        assert set(row) >= KEYS
        assert (row["load_bits"], row["store_bits"], row["dtype"], row["mma"]) == (
            128,
            128,
            "bf16",
            None,
        )
        assert row["version"] is None
        assert row["bound"] == "memory"
        assert row["instructions_per_element"] == row["hot_instructions"] * 128 / 1024
        assert document["environment"]["ptxas"][row["arch"]] == row["ptxas"]


@pytest.mark.exhaustive
def test_audit_formats_have_the_same_rows(capsys):
    arguments = ("audit", COPY, *KNOWN, "--arch", "sm_90")
    _, as_csv, _ = run(capsys, *arguments, "--format", "csv")
    in_order = ("audit", COPY, "--signature", "*bf16:16, *bf16:16,i32:16,1024", "--arch", "sm_90")
    assert run(capsys, *in_order, "--format", "csv")[1] == as_csv
    [row] = csv.DictReader(as_csv.splitlines())
    assert (row["registers"], row["load_bits"], row["bound"]) == ("14", "128", "")
    _, table, notes = run(capsys, *arguments)
    assert "regs" in table.splitlines()[0]
    assert "compiled only, not run" in notes


@pytest.mark.exhaustive
def test_sass_prints_only_the_hot_path(capsys):
    code, out, _ = run(capsys, "audit", COPY, *KNOWN, "--arch", "sm_90", "--sass")
    assert code == 0
    assert out.splitlines()[0].endswith("the hot path, 19 instructions")
    assert "LDG.E.128" in out
    assert "NOP" not in out
    signature = ("--signature", "*fp32:16,*fp32,i32", "--constexpr", "BLOCK=1024")
    _, loop, _ = run(capsys, "audit", f"{SAMPLES}:summed", *signature, "--arch", "sm_90", "--sass")
    assert "one pass of the hot loop" in loop
    assert "SHFL" not in loop  # the sum over threads comes after the loop


MISTAKES = {
    "no file": (
        ["nowhere.py:kernel"],
        "nowhere.py:kernel: expected path/to/file.py:kernel of an existing file",
    ),
    "no kernel": ([f"{SAMPLES}:nothing", *KNOWN], "no kernel 'nothing'; it has masked_copy, "),
    "missing argument": (
        [COPY],
        "argument 'x_ptr' of masked_copy is missing; add it to --signature",
    ),
    "unknown type": (
        [COPY, "--signature", "*bf17,*bf16,i32"],
        "'x_ptr': unknown type '*bf17' (choose from i1",
    ),
    "unknown argument": (
        [COPY, "--signature", "x_ptr=*bf16,y=i32"],
        "unknown argument 'y' (choose from x_ptr, out_ptr, n,",
    ),
    "too many": (
        [COPY, "--signature", "*bf16,*bf16,i32,8,9"],
        "5 types, expected 4: x_ptr, out_ptr, n, BLOCK",
    ),
    "architecture": (
        [COPY, *KNOWN, "--arch", "sm_91"],
        "unknown architecture 'sm_91' (choose from sm_80, sm_86,",
    ),
    "name": (["gelo"], "unknown kernel 'gelo'; did you mean "),
    "dtype": (["gelu", "--dtype", "bf17"], "unknown dtype 'bf17'; did you mean bf16?"),
    "version": (["gelu", "--version", "v99"], "unknown version 'v99'; choose from v1, "),
    "nothing left": (["matmul/v4", "--arch", "sm_80"], "no kernel matches all of matmul/v4, sm_80"),
    "two kinds": (["gelu", COPY], "samples_audit.py:masked_copy, remove other names"),
    "option of files": (["gelu", "--elements", "8"], "--elements requires your own kernel"),
    "warps": ([COPY, *KNOWN, "--num-warps", "64"], "expected 1, 2, 4, 8, 16 or 32 warps, got '64'"),
    "does not compile": (
        [
            f"{SAMPLES}:does_not_compile",
            "--signature",
            "*i32:16",
            "--constexpr",
            "BLOCK=128",
            "--arch",
            "sm_90",
        ],
        # Triton 3.6 writes more before it than 3.8 does.
        "Cannot make_shape_compatible: incompatible dimensions",
    ),
}


@pytest.mark.parametrize(("arguments", "wanted"), MISTAKES.values(), ids=MISTAKES)
def test_audit_mistake_gets_a_one_line_error(capsys, arguments, wanted):
    code, out, err = run(capsys, "audit", *arguments)
    assert code == 2
    assert out == ""
    [line] = err.splitlines()
    assert line.startswith("python -m kernels audit: error: ")
    assert wanted in line


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("import sys\nsys.exit('stop')", "import failed: SystemExit: stop"),
        ("raise ValueError('first line\\nsecond line')", "import failed: ValueError: first line"),
        ("x = 1", "no kernel 'kernel'; it has no triton.jit function"),
    ],
)
def test_audit_of_an_invalid_file_gets_a_one_line_error(capsys, tmp_path, text, wanted):
    (tmp_path / "mine.py").write_text(text)
    code, out, err = run(capsys, "audit", f"{tmp_path / 'mine.py'}:kernel", "--signature", "i32")
    assert (code, out) == (2, "")
    [line] = err.splitlines()
    assert wanted in line


def test_output_of_a_user_file_goes_to_stderr(capsys, tmp_path):
    text = SAMPLES.read_text(encoding="utf-8").replace(
        "    inside =", "    tl.static_print('hello')\n    inside ="
    )
    (tmp_path / "loud.py").write_text(f"print('good morning')\n{text}", encoding="utf-8")
    name = f"{tmp_path / 'loud.py'}:masked_copy"
    code, out, err = run(capsys, "audit", name, *KNOWN, "--arch", "sm_90", "--format", "json")
    assert code == 0
    assert "good morning" in err
    assert "hello" in err
    assert len(json.loads(out)["rows"]) == 1


def test_audit_reports_a_kernel_that_cannot_launch(capsys, monkeypatch):
    monkeypatch.setitem(limits.MULTIPROCESSORS, 90, limits.Multiprocessor("h100-sxm", 64, 32, 1000))
    sizes = ("--elements", "1024", "--bytes", "4096")
    code, out, err = run(
        capsys, "audit", COPY, *KNOWN, *sizes, "--arch", "sm_90", "--format", "json"
    )
    [row] = json.loads(out)["rows"]
    assert (code, row["occupancy"], row["bound"]) == (0, 0, None)
    assert "| sm_90: cannot be launched: a program needs too much of: shared memory\n" in err
    assert row["obstacle"] == "shared memory"


def test_audit_rejects_the_interpreter(capsys, monkeypatch):
    monkeypatch.setattr(launch, "INTERPRETED", True)
    code, out, err = run(capsys, "audit", "gelu")
    assert (code, out) == (2, "")
    assert "TRITON_INTERPRET is set" in err


@pytest.mark.parametrize(
    ("arguments", "wanted"), [(["audit", "--help"], "--signature"), (["list"], "softmax")]
)
def test_help_and_list_import_nothing_heavy(arguments, wanted):
    code = f"""
import sys
from kernels.__main__ import main
try:
    main({arguments})
finally:
    print(*sorted({{"torch", "triton", "numpy"}} & set(sys.modules)), file=sys.stderr)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stderr == "\n"
    assert wanted in done.stdout


def test_list_has_the_operations_and_dtypes_of_every_variant(capsys):
    code, out, _ = run(capsys, "list", "--format", "json")
    assert code == 0
    listed = json.loads(out)["rows"]
    assert all(
        {"family", "op", "version", "dtypes", "file", "change"} == set(row) for row in listed
    )
    assert all(len(row["change"]) > 10 for row in listed)
    compiled = {
        (choice.version.family, choice.version.name, choice.variant.op, choice.variant.dtype)
        for choice in catalog.choices()
    }
    assert compiled == {
        (row["family"], row["version"], row["op"], dtype)
        for row in listed
        for dtype in row["dtypes"]
    }
    files = {
        f"kernels/{path.parent.name}/{path.name}" for path in (ROOT / "kernels").glob("*/v*_*.py")
    }
    assert {row["file"] for row in listed} == files | {
        f"kernels/{name}.py" for name in versions.CALIBRATION
    }


@pytest.fixture
def chosen(monkeypatch):
    found = []
    monkeypatch.setattr(rows, "audit_all", lambda choices: found.extend(choices) or [])
    monkeypatch.setattr(command, "_print", lambda *_: None)
    return found


def test_audit_without_a_name_compiles_the_quick_set(capsys, chosen):
    assert run(capsys, "audit")[0] == 0
    quick = catalog.quick(catalog.choices())
    assert chosen == quick
    assert len(chosen) < 350  # 0.4 s of a core each: about a minute on two
    assert {choice.arch for choice in chosen} == set(catalog.ARCHES)
    assert {choice.version for choice in chosen if choice.arch == 90} == set(NEWEST_VERSIONS)
    del chosen[:]
    assert run(capsys, "audit", "--arch", "sm_90")[0] == 0
    assert chosen == [choice for choice in quick if choice.arch == 90]


@pytest.mark.parametrize(
    ("words", "is_meant"),
    [
        (("--all",), lambda choice: True),
        (("gelu",), lambda choice: choice.variant.op == "gelu"),
        (("gelu/v1",), lambda choice: choice.variant.op == "gelu" and choice.version.name == "v1"),
        (("--dtype", "fp16"), lambda choice: choice.variant.dtype == "fp16"),
        (("--version", "v1"), lambda choice: choice.version.name == "v1"),
        (("norm", "softmax"), lambda choice: choice.version.family in ("norm", "softmax")),
    ],
    ids=["all", "op", "op-and-version", "dtype", "version", "families"],
)
def test_audit_compiles_all_selected_variants(capsys, chosen, words, is_meant):
    assert run(capsys, "audit", *words)[0] == 0
    assert chosen == list(filter(is_meant, catalog.choices()))
