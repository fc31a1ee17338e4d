"""Fallback to older kernel versions, and the source hash of a record."""

from dataclasses import replace

import pytest
from test_providers import A100, CPU, FOR_HOPPER, H100, KERNEL, OPS, TUNED, versions  # noqa: F401  the fixture

from bench.__main__ import main as bench_main
from bench.harness.device import device
from bench.harness.measure import measure_row as row_protocol
from bench.harness.measure import rows
from bench.harness.op import Case
from bench.harness.providers.registry import default_providers, load
from kernels import versions as kernel_files
from tests.bench import commands

ROOT = kernel_files.PACKAGE.parent


ONLY_EVEN = """\
def add(x, y, out):
    if x.numel() % 2:
        raise ValueError("add v11: an odd number of elements; version 10 takes any")
    out.copy_(x + y)


KERNELS = {"add": add}
"""


@pytest.fixture
def on_a_gpu(versions, monkeypatch):  # noqa: F811
    """Add a newest version that supports only even sizes, and simulate a GPU on the CPU."""
    (versions / "v11_even.py").write_text(ONLY_EVEN)
    as_gpu = load
    monkeypatch.setattr(
        row_protocol, "load", lambda name, op, family, device: as_gpu(name, op, family, H100)
    )
    monkeypatch.setattr(rows, "unavailable", lambda *_: None)

    def measure(n, older=None):
        older = default_providers("elementwise", H100) if older is None else older
        case = Case("add", "fp32", {"n": n})
        limits = replace(commands.QUICK, min_samples=3, target_half_width=1.0)
        names = ["triton-v11"]
        planned = rows.plan(OPS["add"], case, names, CPU, rows.Settings(), older, "elementwise")
        return [row_protocol.measure_row(row, CPU, None, limits) for row in planned]

    return measure


def test_a_case_runs_on_the_newest_version_that_supports_it(on_a_gpu):
    why = "add v11: an odd number of elements; version 10 takes any"
    [even], [odd] = on_a_gpu(1000), on_a_gpu(1001)
    assert (even.provider, even.status, even.passed_over) == ("triton-v11", "ok", {})
    assert (odd.provider, odd.status, odd.passed_over) == ("triton-v10", "ok", {"triton-v11": why})
    assert odd.to_dict()["passed_over"] == odd.passed_over


@pytest.mark.parametrize("older", [{}, {"triton-v11": ("triton-v11", "triton-v11")}])
def test_without_a_fallback_the_newest_version_gives_the_reason(on_a_gpu, older):
    [odd] = on_a_gpu(1001, older=older)
    assert (odd.provider, odd.status) == ("triton-v11", "skipped")
    assert odd.reason == "add v11: an odd number of elements; version 10 takes any"


def test_the_source_hash_covers_imports_within_the_package(versions):  # noqa: F811
    package = versions.parent
    (versions / "v11_parts.py").write_text(
        "from kernels.elementwise.tiles import BLOCK\n\n\ndef late():\n    from . import late_one\n"
        + KERNEL
    )
    (versions / "tiles.py").write_text("import torch\nfrom kernels import shared\nBLOCK = 64\n")
    for path in (versions / "late_one.py", package / "shared.py", versions / "unused.py"):
        path.write_text("")
    names = [
        path.relative_to(package).as_posix()
        for path in kernel_files.source_files("kernels.elementwise.v11_parts")
    ]
    assert names[0] == "elementwise/v11_parts.py"
    assert sorted(names[1:]) == [
        "__init__.py",
        "elementwise/__init__.py",
        "elementwise/late_one.py",
        "elementwise/tiles.py",
        "shared.py",
    ]
    before = kernel_files.source_sha256("kernels.elementwise.v11_parts")
    (versions / "unused.py").write_text("# another text")
    assert kernel_files.source_sha256("kernels.elementwise.v11_parts") == before
    for name in names:
        text = (package / name).read_text()
        (package / name).write_text(text + "# another text\n")
        assert kernel_files.source_sha256("kernels.elementwise.v11_parts") != before, name
        (package / name).write_text(text)
    assert kernel_files.source_sha256("kernels.elementwise.v11_parts") == before


class PlannedError(Exception):
    """Raised instead of planning, with the fallbacks."""


OLDER = ("triton-v4", "triton-v3", "triton-v2", "triton-v1")


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        ([], {"torch": (), "triton-v5": OLDER}),
        (["--provider", "triton-v4"], {"triton-v4": ()}),
        (["--provider", "torch,triton-v4"], {"torch": (), "triton-v4": ()}),
        (["--provider", "triton"], {"triton-v5": OLDER}),
    ],
)
def test_only_versions_that_are_not_named_have_fallbacks(monkeypatch, words, wanted):
    def planned(op, case, names, under_test, settings, older, family=""):
        raise PlannedError(dict(older))

    monkeypatch.setattr(device, "detect", lambda word: H100)
    monkeypatch.setattr(rows, "plan", planned)
    with pytest.raises(PlannedError) as caught:
        bench_main(["matmul", "--no-save", "--dtype", "bf16", *words])
    assert caught.value.args == (wanted,)
