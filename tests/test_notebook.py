"""What a notebook shows of measurements, comparisons, profiles and estimates."""

from html import unescape

import nbformat
import pytest
import torch
from nbclient import NotebookClient

import bench
from bench.harness.timing import protocol
from roofline import estimate
from tests.bench.commands import QUICK, keep_ceilings

CELLS = (
    "import bench, torch\nfrom roofline import estimate\nx = torch.randn(64, 64)",
    "estimate.mfu(params='70e9', tokens_per_s=5000, gpus=8, peak=275e12)",
    "bench.profile(torch.nn.Linear(64, 64), x, on='h100-sxm')",
    (
        "functions = {'a': torch.relu, 'b': torch.relu, 'wrong': "
        "torch.neg}\nbench.compare(functions, x, budget_s=0.1)"
    ),
    "record = bench.measure(torch.relu, x, budget_s=0.1)\nrecord",
    (
        "bench.elementwise.run(op='relu', dtype='fp32', shape=64, device='cpu', budget=1, "
        "quiet=True).plot()"
    ),
    "import roofline\nroofline.draw(gpu='h100-sxm', dtype='bf16')",
)


@pytest.fixture(scope="module")
def shown(tmp_path_factory):
    """Run the cells in a kernel; return for each what it shows, by MIME type."""
    notebook = nbformat.v4.new_notebook(cells=list(map(nbformat.v4.new_code_cell, CELLS)))
    path = tmp_path_factory.mktemp("notebook")
    keep_ceilings(path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ROOFMARK_RUNS", str(path))
        NotebookClient(notebook, timeout=120, resources={"metadata": {"path": str(path)}}).execute()
    return [cell.outputs for cell in notebook.cells]


@pytest.mark.exhaustive
def test_a_notebook_shows_tables_and_pictures_and_nothing_else(shown):
    imports, *tables, record, plot, drawn = (
        [output for output in outputs if "data" in output] for outputs in shown
    )
    assert imports == []
    for (result,) in tables:
        assert "<table>" in result["data"]["text/html"]
        assert "\x1b" not in result["data"]["text/html"]
    assert "relu 64x64 fp32" in record[0]["data"]["text/html"]
    assert plot[0]["data"]["image/png"]
    assert drawn[0]["data"]["image/png"]
    assert not [
        output for outputs in shown for output in outputs if output.get("text", "x").strip() == ""
    ]


@pytest.mark.exhaustive
def test_a_wrong_candidate_is_a_line_of_the_comparison(shown):
    assert "its result differs from the baseline's" in unescape(shown[3][-1]["data"]["text/html"])


def test_a_table_has_its_notes_and_escapes_names(monkeypatch):
    monkeypatch.setitem(protocol.LIMITS, "cpu", QUICK)
    x = torch.randn(64)
    verdicts = bench.compare({"a": torch.relu, "<b>b</b>": torch.relu}, x, rounds=6)
    html = verdicts._repr_html_()
    assert "&lt;b&gt;b&lt;/b&gt;" in html
    assert "<b>" not in html
    assert "<td>SAME</td>" in html or "<td>UNSURE</td>" in html
    assert "<th>reason</th>" in html
    frame = bench.compare({"a": torch.relu, "b": torch.neg}, x, rounds=6).to_dataframe()
    assert list(frame["verdict"]) == ["UNMATCHED"]


def test_an_answer_prints_as_its_worked_solution():
    answer = estimate.mfu(params="70e9", tokens_per_s=5000, gpus=8, peak=275e12)
    assert "95.5%" in repr(answer)
    assert answer._repr_html_().count("<tr>") > 4
