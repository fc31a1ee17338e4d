"""Functions of the adversary, as solutions of a problem in the format of flashinfer-bench."""

import json

import pytest

from bench import __main__ as command
from results.store.runfile import load_run
from tests.validation.adversary.catalog import ROOT, subjects
from tests.validation.test_adversary import CAUGHT

GELU = "import torch\n\ndef run(x):\n    return torch.nn.functional.gelu(x)\n"
X = {"shape": ["n"], "dtype": "float32"}
DEFINITION = {
    "name": "gelu",
    "axes": {"n": {"type": "var"}},
    "inputs": {"x": X},
    "outputs": {"y": X},
    "reference": GELU,
}
WORKLOAD = {"uuid": "one", "axes": {"n": 8200}, "inputs": {"x": {"type": "random"}}}


def solution(content, function):
    spec = {
        "language": "python",
        "entry_point": f"main.py::{function}",
        "destination_passing_style": False,
    }
    sources = [{"path": "main.py", "content": content}]
    return {"definition": "gelu", "spec": spec, "sources": sources}


@pytest.mark.exhaustive
def test_solutions_of_the_adversary_are_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "definition.json").write_text(json.dumps(DEFINITION))
    (tmp_path / "workload.jsonl").write_text(json.dumps(WORKLOAD))
    files = {"honest": solution(GELU, "run")}
    for each in subjects():
        if each.name in CAUGHT["op"]:
            files[each.name] = solution((ROOT / each.file).read_text(), each.name)
    for name, content in files.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(content))
    names = [f"{name}.json" for name in files]
    words = ["definition.json", "--workload", "workload.jsonl", *names, "--rounds", "12"]
    assert command.main(["compare", *words, "--device", "cpu", "-q", "-o", "run.jsonl"]) == 1
    records = {each.provider: each for each in load_run(tmp_path / "run.jsonl").records}
    assert records.pop("definition.json").status == records.pop("honest.json").status == "ok"
    assert len(records) == len(CAUGHT["op"])
    for each in records.values():
        assert each.status in ("invalid", "failed"), each.provider
