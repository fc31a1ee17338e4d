"""The examples of the sections "From Python" run as they are written, page by page."""

import re
import shutil
from pathlib import Path

import pytest

from tests.bench.commands import QUICK, keep_ceilings

ROOT = Path(__file__).resolve().parent.parent
PAGES = ("roofline/README.md", "results/README.md", pytest.param("bench/README.md", marks=pytest.mark.exhaustive))


def examples(page):
    section = (ROOT / page).read_text(encoding="utf-8").partition("## From Python\n")[2].partition("\n## ")[0]
    return re.findall(r"^```python\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", PAGES)
def test_the_python_examples_of_a_page_run(page, tmp_path, monkeypatch, capsys):
    published = next((ROOT / "results" / "published").rglob("*-matmul-*.jsonl"))
    shutil.copy(published, tmp_path)
    monkeypatch.setenv("RIDGEPOINT_RUNS", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    keep_ceilings(tmp_path)
    for place in ("api.function", "loop"):  # no test believes what it measures here
        monkeypatch.setattr(f"bench.harness.{place}.limits_of", lambda device: QUICK)
    found, names = examples(page), {}
    assert found
    for example in found:
        exec(compile(example, page, "exec"), names)
