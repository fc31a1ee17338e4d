"""The page without a browser: its roofs and rows are the model's, names are text, and nothing else
can run in it.
"""

import base64
import hashlib
import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from plot_scenes import BOTH, CPU, SCENES, elementwise, environment, matmul, on, saved
from run_scenes import RUNS, decoding, one, profile_op, profiled, versions

from results.show.terminal import install_command
from results.store.runfile import load_run
from results.store.runs import EVERYTHING
from roofline.__main__ import main
from roofline.gpu_table import find_gpu
from roofline.machine import Ceiling, Machine
from roofline.picture import page
from roofline.picture.build import build_scene
from roofline.picture.interactive import modules_figure, roofline_figure
from roofline.picture.page import page_html, verdicts_of

HOSTILE = [
    "<script>alert(1)</script>",
    "</script><script>alert(2)</script>",
    "<!--<script>",
    "<b>bold</b><br>",
    "\"'`&amp;&lt;{{7*7}}",
    "naïve 核 🚀",
    "\u202eltr\u202c \u200f",
    "x" * 300,
    "lone \ud800 half",
]


class Elements(HTMLParser):
    """Reads a page back: its start tags with their attributes, and the text of each script."""

    def __init__(self, text):
        super().__init__()
        self.tags = []
        self.scripts = []
        self.inside = False
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self.inside = tag == "script"
        if self.inside:
            self.scripts.append("")

    def handle_data(self, data):
        if self.inside:
            self.scripts[-1] += data

    def handle_endtag(self, tag):
        self.inside = False


def page_of(runs, gpus=None, **more):
    return page_html(build_scene(runs, gpus or []), runs, **more)


def content(text):
    return json.loads(Elements(text).scripts[0])


@pytest.mark.parametrize("name", list(SCENES))
def test_roofs_and_points_are_those_of_the_scene(name):
    scene = build_scene(*SCENES[name])
    traces = json.loads(roofline_figure(scene).to_json())["data"]
    lines = [trace for trace in traces if trace["mode"] == "lines"]
    assert len(lines) == len(scene.roofs)
    for roof, trace in zip(scene.roofs, lines, strict=True):
        (x0, x1), (y0, y1) = (trace["x"][0], trace["x"][-1]), (trace["y"][0], trace["y"][-1])
        assert x0 < x1
        if roof.is_flat:
            assert y0 == y1 == roof.ceiling.value
            assert x0 == roof.ridge or roof.ridge is None
        else:
            assert (y0 / x0, y1 / x1) == pytest.approx((roof.ceiling.value, roof.ceiling.value))
            assert x1 == roof.ridge or roof.ridge is None
    drawn = {
        index: (x, y)
        for trace in traces
        if "customdata" in trace
        for index, x, y in zip(trace["customdata"], trace["x"], trace["y"], strict=True)
    }
    assert drawn == {index: (point.x, point.y) for index, point in enumerate(scene.points)}


def test_ridges_and_the_bounds_beside_them_are_named():
    """Datasheet of an H100: peaks over 3.35 TB/s."""
    layout = json.loads(roofline_figure(build_scene([], [find_gpu("h100-sxm")])).to_json())[
        "layout"
    ]
    notes = {note["text"]: note for note in layout["annotations"]}
    assert {text for text in notes if text.startswith("ridge ")} == {
        "ridge 20.0",
        "ridge 148",
        "ridge 295",
        "ridge 590",
    }
    left, right = notes["memory-bound"], notes["compute-bound"]
    assert 10 ** left["x"] == pytest.approx(66.9 / 3.35, rel=1e-3)
    assert 10 ** right["x"] == pytest.approx(1978.9 / 3.35, rel=1e-3)
    assert (left["xanchor"], right["xanchor"]) == ("right", "left")
    ridge = notes["ridge 295"]  # above its roof, where no other one is
    assert (ridge["xanchor"], ridge["yanchor"]) == ("right", "bottom")


def test_ridges_close_to_each_other_have_one_label():
    entries = [
        Ceiling("flops", dtype, peak, "measured", "a test")
        for dtype, peak in (("bf16", 8e14), ("fp16", 8.1e14), ("fp32", 1e13))
    ]
    machine = CPU.with_entries([*entries, Ceiling("bandwidth", "copy", 1e12, "measured", "a test")])
    layout = json.loads(roofline_figure(build_scene([], [machine])).to_json())["layout"]
    texts = [note["text"] for note in layout["annotations"]]
    assert [text for text in texts if text.startswith("ridge ")] == ["ridge 810", "ridge 10"]


def test_equal_input_gives_equal_bytes(tmp_path):
    pages = []
    for seed in "123":
        path = tmp_path / f"{seed}.html"
        command = [sys.executable, "-m", "roofline", "page", "--gpu", "h100-sxm", "-o", str(path)]
        subprocess.run(command, check=True, env=os.environ | {"PYTHONHASHSEED": seed})
        pages.append(path.read_bytes())
    assert pages[0] == pages[1] == pages[2]


def test_rows_are_those_of_the_terminal_with_their_points():
    skipped = matmul(
        64, "bf16", 1.0, status="skipped", median_s=None, ci95_s=None, reason="no memory"
    )
    runs = [on(CPU, matmul(1024, "bf16", 8e11), skipped, elementwise("copy", 2**20, 0, 0.009))]
    table = content(page_of(runs))["table"]
    rows = [dict(zip(table["titles"], row["cells"], strict=True)) for row in table["rows"]]
    assert [row["point"] for row in table["rows"]] == [0, None, None]
    assert (rows[0]["op"], rows[0]["GFLOP/s"], rows[0]["bound"]) == ("matmul", "800", "compute")
    assert (rows[1]["status"], rows[1]["reason"]) == ("skipped", "no memory")
    assert "no memory" in table["rows"][1]["details"]


def test_runs_whose_rates_have_other_units_share_a_table():
    runs = [on(CPU, matmul(1024, "bf16", 8e11)), on(BOTH, matmul(1024, "bf16", 5e14))]
    table = content(page_of(runs))["table"]
    rows = [dict(zip(table["titles"], row["cells"], strict=True)) for row in table["rows"]]
    assert [(row["GFLOP/s"], row["TFLOP/s"]) for row in rows] == [("800", ""), ("", "500")]


def test_every_flag_and_bound_is_explained():
    records = [
        matmul(
            512,
            "bf16",
            1e11,
            flags=("preempted", "of-the-future"),
            flag_reasons={"preempted": "much"},
        )
    ]
    text = page_of([on(CPU, *records)])
    for word in ("preempted", "of-the-future", "compute", "median", "% roof"):
        assert f"<dt>{word} <span" in text


def test_modules_are_a_tree_whose_times_add_up():
    times = {"layers.*.mlp.up": 0.3, "layers.*.mlp.down": 0.2, "head": 0.1, "": 0.05}
    records = [
        replace(
            record,
            details=profile_op(module=module, time_s=times[module], share=times[module]),
        )
        for record, module in zip(profiled(), times, strict=False)
    ]
    figure = modules_figure(records)
    assert figure is not None
    (tree,) = json.loads(figure.to_json())["data"]
    values = dict(zip(tree["ids"], tree["values"], strict=True))
    assert values["step"] == pytest.approx(0.65)
    for name in values:
        inner = [
            values[n]
            for n, parent in zip(tree["ids"], tree["parents"], strict=True)
            if parent == name
        ]
        assert not inner or sum(inner) == pytest.approx(values[name])
    assert {"layers.*", "mlp", "up", "head", "outside of any module"} <= set(tree["labels"])
    assert modules_figure(versions()) is None
    assert set(content(page_of(one(BOTH, records)))["figures"]) == {"plot", "modules"}


def sampled(rate, size=512, **changes):
    """Return a product at a rate, with samples 1 % around its median."""
    record = matmul(size, "bf16", rate, **changes)
    samples = tuple((record.median_s or 0) * (1 + 0.001 * i) for i in range(-10, 11))
    return replace(record, samples_s=samples, visits=(7, 7, 7))


def run_file(folder, name, record, sha):
    return saved(folder / f"{name}.jsonl", [record], environment(run_id=name, git={"sha": sha}))


def test_runs_are_compared_with_the_first(tmp_path):
    found = {"a": sampled(4e11), "b": sampled(8e11), "c": sampled(8e11, 1024)}
    paths = [run_file(tmp_path, name, record, name) for name, record in found.items()]
    run_file(tmp_path, "again", found["a"], "a")
    faster, none = verdicts_of(paths, EVERYTHING)
    assert [row["verdict"] for row in faster["rows"]] == ["FASTER"]
    assert faster["rows"][0]["ratio"] == pytest.approx(0.5)
    assert none["rows"] == []
    assert none["headline"].startswith("nothing to compare")
    text = page_of(
        [(load_run(path).environment, load_run(path).records) for path in paths],
        verdicts=[faster, none],
    )
    assert (
        "<h3>bench.matmul 2026-11-20 21:03:12 a → bench.matmul 2026-11-20 21:03:12 b</h3>" in text
    )
    assert "<summary>Runs without a comparison: 1</summary>" in text
    assert "<p>nothing to compare" not in text
    assert re.search(r'<td class="number">0.500</td><td class="number">0.\d+ to 0.\d+</td>', text)
    noisy = faster | {"rows": [faster["rows"][0] | {"ci95": [0.1, 9.0]}]}
    page = page_of([], [BOTH], verdicts=[noisy])
    assert '<td class="number">-</td><td class="number">too noisy</td>' in page
    assert verdicts_of(paths[:1], EVERYTHING) == []
    assert (faster["runs"], none["runs"]) == (["a", "b"], ["a", "c"])


@pytest.fixture(scope="module")
def hostile():
    """Return the page of a run in which every name is hostile."""
    records = [
        matmul(
            64,
            "bf16",
            1e10,
            provider=name,
            op=name,
            case=name,
            flags=(name,),
            flag_reasons={name: name},
        )
        for name in HOSTILE
    ]
    device = {"slug": HOSTILE[0], "name": HOSTILE[1], "type": "cpu"}
    machine = replace(CPU, note=HOSTILE[1])
    names = {name: name for name in HOSTILE}
    stamp = environment(device=device, host=names, argv=tuple(HOSTILE), run_id="a", machine=machine)
    return page_of([(stamp, records)], title=HOSTILE[1])


def test_only_the_scripts_of_the_policy_are_in_the_page(hostile):
    elements = Elements(hostile)
    policies = [attrs["content"] for tag, attrs in elements.tags if attrs.get("http-equiv")]
    assert len(elements.scripts) == 3
    hashes = [
        base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        for text in elements.scripts[1:]
    ]
    allowed = (
        f"default-src 'none'; script-src 'sha256-{hashes[0]}' 'sha256-{hashes[1]}'; "
        f"style-src 'unsafe-inline'; "
    )
    assert policies == [allowed + "img-src data: blob:; base-uri 'none'; form-action 'none'"]


def test_names_are_text(hostile):
    elements = Elements(hostile)
    (op,) = (
        number for number, title in enumerate(content(hostile)["table"]["titles"]) if title == "op"
    )
    assert [row["cells"][op] for row in content(hostile)["table"]["rows"]] == HOSTILE
    assert not any(
        name in ("src", "href", "style") or name.startswith("on")
        for _, a in elements.tags
        for name in a
    )
    assert not {tag for tag, _ in elements.tags} & {
        "iframe",
        "img",
        "link",
        "object",
        "embed",
        "form",
    }
    assert "alert(1)" not in elements.scripts[2]
    assert "7*7" in hostile  # a template in a name is not filled in


@pytest.mark.parametrize("name", ["6 GPUs", "train_step", "flagged", "a profile"])
def test_every_kind_of_run_becomes_a_page(name):
    runs = RUNS[name][0]
    rows = content(page_of(runs))["table"]["rows"]
    assert len(rows) == sum(len(records) for _, records in runs)


def refused(arguments, capsys):
    assert main([str(argument) for argument in arguments]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1, said.err
    return said.err.removeprefix("python -m roofline page: error: ").rstrip()


def test_the_command_writes_a_page(tmp_path, capsys):
    run = saved(tmp_path / "run.jsonl", decoding(), environment(machine=BOTH))
    target = tmp_path / "new" / "report.html"
    assert main(["page", str(run), "--gpu", "h100-sxm", "-o", str(target)]) == 0
    assert capsys.readouterr().out == f"{target}\n"
    text = target.read_text(encoding="utf-8")
    assert len(content(text)["table"]["rows"]) == 6
    assert f"{BOTH.slug}, h100-sxm</h1>" in text


def test_what_cannot_be_shown_is_one_line(tmp_path, capsys):
    run = saved(tmp_path / "run.jsonl", versions(), environment(machine=Machine("cpu")))
    target = tmp_path / "a.html"
    assert refused(["page", "-o", target], capsys).startswith("expected a RUN")
    assert refused(["page", run, "-o", "a.png"], capsys) == "the name of a page must end in .html"
    assert refused(["page", run, "-o", target], capsys).startswith("no ceiling is known for cpu")
    assert refused(["page", "--gpu", "h900", "-o", target], capsys).startswith("unknown GPU 'h900'")
    assert "known: fp64" in refused(
        ["page", "--gpu", "h100-sxm", "--dtype", "x", "-o", target], capsys
    )
    assert not target.exists()


def test_without_the_extra_the_command_says_how_to_get_it(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(page, "find_spec", lambda name: None if name == "plotly" else name)
    said = refused(["page", "--gpu", "h100-sxm", "-o", tmp_path / "a.html"], capsys)
    assert said == f"a page requires plotly: {install_command('page')}"
