"""A user's function as a provider: how it is found and loaded, and errors of invalid ones."""

import json
import os
import subprocess
import sys

import pytest
import torch

from bench.harness.measure.isolated import load_problem
from bench.harness.measure.rows import Row
from bench.harness.op import Case
from bench.harness.providers.registry import load
from bench.harness.providers.user_kernel import UserKernelError, find
from bench.harness.timing import protocol
from bench.matmul import OPS as MATMUL
from tests.bench import commands
from tests.bench.user_kernels import CPU, ELEMENTWISE

GELU = ELEMENTWISE["gelu"]
TEXT = """
import torch
from torch.nn.functional import gelu as imported

THREE = 3

def gelu(x, out):
    torch.ops.aten.gelu.out(x, out=out)

def returned(x):
    return torch.nn.functional.gelu(x)

def two(x, y):
    return x

def any_number(*inputs, **more):
    return imported(*inputs)

def option(x, approximate="none", *, out=None):
    return None

_hidden = lambda x: x
"""


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setitem(protocol.LIMITS, "cpu", commands.QUICK)


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """Return the file `mine.py` in the working directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])  # as for `python -m`
    file = tmp_path / "mine.py"
    file.write_text(TEXT)
    return file


@pytest.mark.parametrize(
    ("function", "takes_out"),
    [
        ("gelu", True),
        ("returned", False),
        ("any_number", False),
        ("option", True),
        ("imported", False),
    ],
)
def test_a_function_gets_out_if_it_has_that_parameter(mine, function, takes_out):
    provider = load(f"mine.py:{function}", GELU, "elementwise", CPU)
    assert provider.takes_out is takes_out
    assert len(provider.source_sha256) == 64
    assert provider.restored == ()


def test_a_matmul_function_may_take_fp8_scales(mine):
    mine.write_text(
        "def two(a, b): pass\ndef four(a, b, c, d, out): pass\ndef three(a, b, *, c): pass\n"
    )
    assert not load("mine.py:two", MATMUL[0], "matmul", CPU).takes_out
    assert load("mine.py:four", MATMUL[0], "matmul", CPU).takes_out
    with pytest.raises(UserKernelError, match="missing a required"):
        load("mine.py:three", MATMUL[0], "matmul", CPU)


def test_modules_are_found_without_running_their_packages(mine, monkeypatch):
    package = mine.parent / "package_of_a_test" / "inner"
    package.mkdir(parents=True)
    for folder in (package.parent, package):
        (folder / "__init__.py").write_text("raise SystemExit")
    (package / "kernel.py").write_text("def f(x): return x\n")
    monkeypatch.syspath_prepend(str(mine.parent))
    assert find("package_of_a_test.inner.kernel:f").file == package / "kernel.py"
    assert "no 'g'; it has: f" in find("package_of_a_test.inner.kernel:g").problem
    assert "'kernels' is not found" in find("package_of_a_test.inner.kernels:g").problem


BAD = [
    ("nosuch.py:f", "there is no file nosuch.py"),
    ("mine.py:nosuch", "mine.py has no 'nosuch'; it has: gelu, returned, two, any_number, option"),
    ("./text.txt:f", "./text.txt is not a Python file; its name must end in .py"),
    ("mine:f", "mine has no 'f'; it has: gelu, "),
    ("nosuch.module:f", "there is no module 'nosuch.module': 'nosuch' is not found"),
    ("mine.py:", "expected path/to/file.py:function or package.module:function"),
    (":f", "expected path/to/file.py:function or package.module:function"),
    ("mine.py:a:b", "there is no file mine.py:a"),
    ("broken.py:f", "broken.py is not Python in line 2: "),
    ("binary.py:f", "binary.py is not Python"),
    ("empty.py:f", "empty.py has no 'f'; it has: no function at its top level"),
]


@pytest.fixture
def others(mine):
    """Add invalid files to the directory of `mine.py`, and return it."""
    folder = mine.parent
    (folder / "text.txt").write_text("def f(x): pass\n")
    (folder / "broken.py").write_text("import torch\ndef f(x:\n    pass\n")
    (folder / "binary.py").write_bytes(b"\x7fELF\x00\x01")
    (folder / "empty.py").write_text("")
    return folder


@pytest.mark.parametrize(("word", "message"), BAD)
def test_an_invalid_provider_alone_is_rejected_before_the_run(
    others, error_of, monkeypatch, word, message
):
    monkeypatch.setattr(
        "bench.harness.device.device.detect",
        lambda requested: pytest.fail("the device was asked for"),
    )
    err = error_of(commands.here("elementwise", "--op", "gelu", "--provider", word))
    assert err.startswith(f"python -m bench.elementwise: error: provider '{word}'")
    assert message in err


def test_a_directory_may_have_a_colon_in_its_name(mine):
    folder = mine.parent / "a:b"
    folder.mkdir()
    (folder / "mine.py").write_text("def gelu(x):\n    return x\n")
    source = find(f"{folder}/mine.py:gelu#2")
    assert (source.file, source.function, source.problem) == (folder / "mine.py", "gelu", None)


def test_a_malformed_provider_is_rejected_with_others_too(mine, capsys):
    assert commands.here("elementwise", "--op", "gelu", "--provider", "torch,mine.py:f()") == 2
    assert "expected path/to/file.py:function" in capsys.readouterr().err


def test_functions_that_cannot_be_loaded_fail_alone(others, runs, capsys):
    commands.keep_ceilings(runs)
    (others / "stops.py").write_text("import sys\nsys.exit(3)\ndef f(x): pass\n")
    (others / "raises.py").write_text(
        "import torch\nraise ImportError('not here')\ndef f(x): pass\n"
    )
    wanted = {
        "nosuch.py:f": "there is no file nosuch.py",
        "mine.py:nosuch": "mine.py has no 'nosuch'",
        "broken.py:f": "broken.py is not Python in line 2",
        "raises.py:f": "importing raises.py failed: ImportError: not here (line 2)",
        "stops.py:f": "importing it called sys.exit(3)",
        "mine.py:two": "two(x, y) does not accept the arguments of gelu",
    }
    words = [
        "--op",
        "gelu",
        "--dtype",
        "fp32",
        "--shape",
        "4096",
        "--cache",
        "warm",
        "--format",
        "json",
    ]
    assert (
        commands.here(
            "elementwise", *words, "--provider", ",".join([*wanted, "torch", "mine.py:gelu"])
        )
        == 1
    )
    out = capsys.readouterr().out
    found = {record["provider"]: record for record in json.loads(out)["records"]}
    assert {found["torch"]["status"], found["mine.py:gelu"]["status"]} == {"ok"}
    for provider, reason in wanted.items():
        assert found[provider]["status"] == "failed"
        assert found[provider]["reason"].startswith(reason)


IMPORTS = [
    (
        "raise ValueError('two\\nlines')\ndef f(x): pass",
        "importing mine.py failed: ValueError: two (line 1)",
    ),
    ("import os\ndef f(x): pass\nos.abort()", "importing it: crashed: SIGABRT (aborted)"),
    (
        "def f(x): pass\nwhile True: pass",
        "importing it: the import did not end within 2 s; increase --timeout",
    ),
    ("f = 3", "mine.py has no function 'f' once it is imported"),
    ("def f(x, y): pass", "f(x, y) does not accept the arguments of copy, 1 input (x)"),
    ("def f(): pass", "too many positional arguments; see --op copy --signature"),
    ("def f(out): pass", "multiple values for argument 'out'"),
    ("def f(x, out, /): pass", "f(x, out, /) does not accept the arguments of copy"),
    (
        "import triton\n@triton.jit\ndef f(x, out): pass",
        "'f' is a Triton kernel; name a function that launches it",
    ),
]


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("text", "message"), IMPORTS)
def test_problems_of_an_import_are_one_line(mine, text, message):
    mine.write_text(f"{text}\n")
    row = Row(
        ELEMENTWISE["copy"], Case("copy", "fp32", {"n": 64}), "mine.py:f", family="elementwise"
    )
    problem = load_problem(row, CPU, 2 if "while True" in text else 60)
    assert message in problem
    assert "\n" not in problem


def signature(family, *words):
    done = subprocess.run(
        [sys.executable, "-m", f"bench.{family}", "--signature", *words],
        cwd=commands.ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert done.stderr == ""
    return done.stdout


@pytest.mark.exhaustive
def test_signature_shows_shapes_dtypes_and_output():
    text = signature("matmul", "--dtype", "bf16")
    assert "def matmul(a, b, out):" in text
    for line in (
        "a    (m, k)  torch.bfloat16",
        "b    (k, n)  torch.bfloat16",
        "out  (m, n)  torch.bfloat16",
    ):
        assert f"    {line}\n" in text


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("family", "op", "shape"), [("norm", "residual-rmsnorm", "64x48"), ("adamw", "adamw", "4096")]
)
def test_the_printed_signature_is_a_working_provider(tmp_path, runs, capsys, family, op, shape):
    commands.keep_ceilings(runs)
    file = tmp_path / "mine.py"
    words = ["--op", op, "--dtype", "fp32"]
    file.write_text(signature(family, *words))
    function = op.replace("-", "_")
    options = f"--shape {shape} --cache warm --format csv --provider {file}:{function}"
    assert commands.here(family, *words, *options.split()) == 0
    assert ",ok," in capsys.readouterr().out


TRITON = """
import torch, triton, triton.language as tl
@triton.jit
def kernel(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + at, mask=at < n)
    tl.store(out + at, tl.where(value < 0, 0.0, value), mask=at < n)  # NaN stays NaN
def relu(x):
    out = torch.empty_like(x)
    kernel[(triton.cdiv(x.numel(), 1024),)](x, out, x.numel(), 1024)
    return out
"""


@pytest.mark.exhaustive
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize("interprets", ["0", "1"])
def test_triton_kernels_without_a_gpu_run_in_the_interpreter(tmp_path, runs, interprets):
    pytest.importorskip("triton")
    commands.keep_ceilings(runs)
    (tmp_path / "my_kernels.py").write_text(TRITON)
    (tmp_path / "mine.py").write_text("import my_kernels\ndef relu(x): return my_kernels.relu(x)\n")
    words = [
        sys.executable,
        "-m",
        "bench.elementwise",
        "--op",
        "relu",
        "--dtype",
        "fp32",
        "--size",
        "4KiB",
    ]
    words += [
        "--provider",
        f"{tmp_path}/mine.py:relu,triton",
        "--device",
        "cpu",
        "--budget",
        "20",
        "--format",
        "json",
    ]
    environment = os.environ | {"TRITON_INTERPRET": interprets, "ROOFMARK_RUNS": str(runs)}
    done = subprocess.run(
        words,
        env=environment,
        cwd=commands.ROOT,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    records = json.loads(done.stdout)["records"]
    if interprets == "1":
        assert [record["provider"] for record in records][1:] == ["triton-v3"]
        for record in records:
            assert (record["status"], record["mfu"], record["roofline_pct"]) == ("ok", None, None)
            assert "interpreted" in record["flags"]
    else:
        assert [record["status"] for record in records] == ["failed", "skipped"]
        assert all("TRITON_INTERPRET=1" in record["reason"] for record in records)
