"""The page without a browser: its roofs and rows are the model's, names are text, and nothing else can run in it."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from plot_scenes import BOTH, CPU, CPU_MIXES, SCENES, calibrated, crowd, elementwise, environment, matmul
from run_scenes import RUNS, decoding, h100, one, profiled, versions

from results.compare.selection import EVERYTHING, load
from results.record import Environment, Record
from results.show.theme import contrast_to_white
from roofline.__main__ import main
from roofline.model import judge, limits_s
from roofline.page import document
from roofline.page.content import page_content
from roofline.page.document import TEMPLATES, embedded, page_html
from roofline.page.estimates import estimates_of
from roofline.page.roofs import theme_colors
from roofline.page.verdicts import verdicts_of
from roofline.plot.figure import PlotMachine, run_machine
from roofline.plot.scene import build_scene
from roofline.plot.style import DTYPE_COLORS

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


def content_of(machines: list[PlotMachine], dtypes: list[str] | None = None, **more: Any) -> dict[str, Any]:
    scene = build_scene(machines)
    return page_content(scene, dtypes or scene.dtypes, **more)


def save(path: Path, records: list[Record], stamp: Environment) -> Path:
    lines = [stamp.to_dict(), *(record.to_dict() for record in records)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return path


class Elements(HTMLParser):
    """Reads a page back: its start tags with their attributes, and the text of each script."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.inside = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self.inside = tag == "script"
        if self.inside:
            self.scripts.append("")

    def handle_data(self, data: str) -> None:
        if self.inside:
            self.scripts[-1] += data

    def handle_endtag(self, tag: str) -> None:
        self.inside = False


# Roofs and rows


@pytest.mark.parametrize("name", list(SCENES))
def test_ridges_and_ends_of_roofs_are_those_of_the_scene(name: str) -> None:
    scene = build_scene(SCENES[name][0])
    roofs = page_content(scene, scene.dtypes)["roofs"]
    flats = [roof for roof in roofs if roof["dtype"]]
    assert [(roof["ridge"], roof["value"]) for roof in flats] == [(flat.ridge, flat.peak.value) for flat in scene.flats]
    for roof in roofs:
        (x0, x1), (y0, y1) = roof["x"], roof["y"]
        assert x0 < x1
        if roof["dtype"]:
            assert y0 == y1 == roof["value"]
            assert x0 == roof["ridge"] or roof["ridge"] is None
        else:
            assert (y0 / x0, y1 / x1) == pytest.approx((roof["value"], roof["value"]))
    for slope in scene.slopes:
        ridges = [f.ridge for f in scene.flats if f.machine == slope.machine and f.bandwidth == slope.bandwidth]
        (own,) = [roof for roof in roofs if roof["level"] == "memory" and roof["value"] == slope.bandwidth.value]
        assert not ridges or own["x"][1] == max(ridge for ridge in ridges if ridge)


def test_mixes_are_a_level_of_their_own() -> None:
    roofs = content_of([PlotMachine(calibrated(CPU, CPU_MIXES))])["roofs"]
    found = [(roof["level"], roof["value"]) for roof in roofs if roof["level"]]
    assert found == [("memory", 60e9), ("mixes", 45e9), ("mixes", 40e9), ("mixes", 25e9)]


def test_rows_hold_what_the_model_says_and_points_are_the_scenes() -> None:
    machine = PlotMachine(BOTH, crowd(), (environment(),))
    scene = build_scene([machine])
    rows = page_content(scene, scene.dtypes)["rows"]
    for index, record in enumerate(machine.records):
        judged = judge(record, BOTH)
        for name in ("flops_per_s", "bytes_per_s", "intensity", "bound", "mfu", "mbu", "roofline_pct"):
            assert rows[name][index] == getattr(judged, name)
        limits = limits_s(record, BOTH)
        assert limits is not None
        assert (rows["least_s"][index], rows["sum_s"][index]) == (max(limits), sum(limits))
        assert rows["median_s"][index] == record.median_s
    drawn = [index for index, is_drawn in enumerate(rows["drawn"]) if is_drawn]
    places = [(rows["intensity"][i], rows["flops_per_s"][i], rows["low"][i], rows["high"][i]) for i in drawn]
    assert places == [(p.intensity, p.flops_per_s, p.low, p.high) for p in scene.points]


def test_rows_name_their_run_machine_and_clock() -> None:
    slow = environment(run_id="20261121T000000Z-slow")
    first = PlotMachine(CPU, (matmul(64, "bf16", 1e10), matmul(64, "bf16", 2e10)), (environment(), slow), (1, 1))
    second = run_machine(
        environment(run_id="other", hardware=BOTH.to_dict()),
        [matmul(64, "bf16", 1e12, telemetry={"sm_clock_hz": 1.7e9})],
    )
    content = content_of([first, second])
    runs = [content["runs"][run]["run_id"] for run in content["rows"]["run"]]
    assert runs == [environment().run_id, "20261121T000000Z-slow", "other"]
    assert content["rows"]["machine"] == [0, 0, 1]
    assert content["rows"]["sm_clock_hz"] == [None, None, 1.7e9]


def test_what_is_not_measured_or_has_no_flops_is_a_row_without_a_point() -> None:
    skipped = matmul(64, "bf16", 1.0, status="skipped", median_s=None, ci95_s=None, reason="no memory")
    content = content_of([run_machine(environment(), [skipped, elementwise("copy", 2**20, 0, 0.009)])])
    assert content["rows"]["drawn"] == [False, False]
    assert content["rows"]["reason"] == ["no memory", None]
    assert content["rows"]["bytes_per_s"][1] == pytest.approx(0.009 * 4.8e12)
    text = "1 row measured; 1 memory-bound; 1 skipped; 1 without FLOPs, in a picture of their own."
    assert content["summary"] == text


def test_an_empty_run_and_a_gpu_alone_have_no_rows() -> None:
    assert content_of([run_machine(environment(), [])])["summary"] == "No row was measured: the ceilings alone."
    assert content_of([PlotMachine(BOTH)])["rows"] == {}


def test_values_beyond_any_number_are_not_known() -> None:
    rows = content_of([run_machine(environment(), [matmul(64, "bf16", 1e10, telemetry={"power_w": float("inf")})])])
    assert rows["rows"]["power_w"] == [None]
    embedded(rows)


def test_colors_can_be_seen_on_both_backgrounds() -> None:
    (background,) = re.findall(r'"dark"\] \{ --paper: (#\w+);', (TEMPLATES / "page.css").read_text(encoding="utf-8"))
    dark = contrast_to_white(*(int(background[start : start + 2], 16) / 255 for start in (1, 3, 5)))
    for color in DTYPE_COLORS.values():
        light, on_dark = theme_colors(color)
        assert light == color
        parts = [int(on_dark[start : start + 2], 16) / 255 for start in (1, 3, 5)]
        assert dark / contrast_to_white(*parts) >= 4.5


def test_labels_are_those_of_the_static_picture() -> None:
    content = content_of(one(BOTH, versions()))
    named = {label["text"]: content["rows"]["provider"][label["row"]] for label in content["labels"]}
    assert named["torch 71 %"] == "torch"
    assert len(named) == 5


def test_steps_caps_and_fillings_are_those_of_the_static_picture() -> None:
    machines = one(h100(), versions())
    content = content_of(machines)
    providers = content["rows"]["provider"]
    steps = [(providers[before], providers[after]) for before, after in content["steps"]]
    assert steps == [(f"triton-v{n}", f"triton-v{n + 1}") for n in (1, 2, 3)]
    small = content_of(one(h100(), [matmul(64, "bf16", 1e9), matmul(8192, "bf16", 6e14, cache="warm")]))
    assert small["rows"]["cap"] == [pytest.approx(2 * 64**3 / 2.1e-6), None]
    assert (small["filled_by"], small["fillings"]) == (["cache"], ["from memory", "from cache"])


def test_every_flag_and_bound_of_the_rows_is_explained() -> None:
    records = [matmul(512, "bf16", 1e11, flags=("preempted", "of-the-future"), flag_reasons={"preempted": "much"})]
    records.append(matmul(512, "bf16", 1e11, op="host-gap"))
    content = content_of([run_machine(environment(), records)])
    words = {word["name"]: word["meaning"] for word in content["words"]}
    assert {"preempted", "of-the-future", "compute-bound", "host-gap", "median", "% roof"} <= set(words)
    assert all(words.values())
    assert content["rows"]["doubtful"] == [True, False]
    assert content["rows"]["flags"] == [{"preempted": "much", "of-the-future": ""}, {}]


# Modules and verdicts


def test_modules_are_a_tree_whose_times_add_up() -> None:
    times = {"layers.*.mlp.up": 0.3, "layers.*.mlp.down": 0.2, "head": 0.1, "": 0.05}
    records = [
        replace(record, extra={"module": module, "time_s": times[module], "share": times[module], "count": 2})
        for record, module in zip(profiled(), times, strict=False)
    ]
    nodes = content_of(one(BOTH, records))["modules"]
    assert nodes[0]["name"] == "step"
    for node in nodes:
        inner = [other["time_s"] for other in nodes if other["parent"] == node["id"]]
        assert not inner or sum(inner) == pytest.approx(node["time_s"])
        assert node["parent"] is None or node["parent"] < node["id"]
    assert nodes[0]["time_s"] == pytest.approx(0.65)
    assert {"layers.*", "mlp", "up", "head", "outside of any module"} <= {node["name"] for node in nodes}
    assert content_of(one(BOTH, versions()))["modules"] == []


def test_runs_are_compared_with_the_first(tmp_path: Path) -> None:
    def measured(name: str, rate: float, size: int = 512) -> Path:
        record = matmul(size, "bf16", rate)
        samples = tuple((record.median_s or 0) * (1 + 0.001 * i) for i in range(-10, 11))
        return save(
            tmp_path / name,
            [replace(record, samples_s=samples, visits=(7, 7, 7))],
            environment(run_id=name, git={"sha": name}),
        )

    paths = [measured("a", 4e11), measured("b", 8e11), measured("c", 8e11, 1024)]
    save(tmp_path / "a again.jsonl", list(load(paths[0]).records), environment(run_id="again", git={"sha": "a"}))
    faster, none = verdicts_of(paths, EVERYTHING)
    assert [row["verdict"] for row in faster["rows"]] == ["FASTER"]
    assert faster["rows"][0]["ratio"] == pytest.approx(0.5)
    assert none["rows"] == []
    assert "a and c: no comparison, because there is nothing to compare" in none["headline"]
    assert verdicts_of(paths[:1], EVERYTHING) == []
    assert (faster["runs"], none["runs"]) == (["a", "b"], ["a", "c"])


def test_providers_of_one_run_are_compared_with_torch(tmp_path: Path) -> None:
    records = [
        replace(
            record, samples_s=tuple((record.median_s or 0) * (1 + 0.001 * i) for i in range(-10, 11)), visits=(7, 7, 7)
        )
        for record in (matmul(512, "bf16", rate, provider) for provider, rate in (("torch", 4e11), ("mine", 8e11)))
    ]
    path = save(tmp_path / "run", records, environment(run_id="run"))
    (found,) = verdicts_of([path], EVERYTHING)
    assert [(row["provider_candidate"], row["verdict"]) for row in found["rows"]] == [("mine", "FASTER")]
    rows = content_of([run_machine(environment(run_id="run"), records)], verdicts=[found])["rows"]
    assert rows["baseline"] == [None, 0]


def test_rows_tell_their_verdict_and_which_row_is_their_baseline(tmp_path: Path) -> None:
    machines, paths = [], []
    for name, rate in (("a", 4e11), ("b", 8e11)):
        records = [
            matmul(n, "bf16", rate, provider=p, options={"z": 1, "a": 2}) for p in ("x", "y") for n in (512, 1024)
        ]
        records = [replace(record, samples_s=(record.median_s or 1.0,) * 21, visits=(7, 7, 7)) for record in records]
        paths.append(save(tmp_path / name, records, environment(run_id=name, git={"sha": name})))
        machines.append(run_machine(environment(run_id=name), records))
    save(tmp_path / "again.jsonl", records, environment(run_id="again", git={"sha": "b"}))
    verdicts = verdicts_of(paths, EVERYTHING)
    rows = content_of(machines, verdicts=verdicts)["rows"]
    assert rows["baseline"] == [None] * 4 + [0, 1, 2, 3]
    assert rows["verdict"] == [None] * 4 + ["FASTER, time ratio 0.500 to a"] * 4


def test_verdicts_of_a_page_allow_for_the_spread_of_earlier_runs(tmp_path: Path) -> None:
    def saved(name: str, rate: float, sha: str) -> Path:
        record = matmul(512, "bf16", rate)
        record = replace(record, samples_s=(record.median_s or 1.0,) * 21, visits=(7, 7, 7))
        return save(tmp_path / f"{name}.jsonl", [record], environment(run_id=name, git={"sha": sha}))

    paths = [saved("a", 4e11, "a"), saved("b", 5e11, "b")]
    saved("again", 4e11, "a")
    assert [row["verdict"] for row in verdicts_of(paths, EVERYTHING)[0]["rows"]] == ["FASTER"]
    for name, rate in (("slow", 2e11), ("fast", 8e11)):
        saved(name, rate, "a")
    assert [row["verdict"] for row in verdicts_of(paths, EVERYTHING)[0]["rows"]] == ["UNSURE"]


# Estimates


def test_estimates_are_places_in_the_view(tmp_path: Path) -> None:
    row = {"gpu": "h100-sxm", "dtype": "bf16", "decode_flops": 10**9, "decode_bytes": 10**12, "decode_seconds": 0.5}
    path = tmp_path / "infer.json"
    path.write_text(json.dumps({"rows": [row | {"decode_bound": "memory"}]}), encoding="utf-8")
    (one,) = estimates_of([path])
    assert one["name"] == "infer decode h100-sxm bf16"
    assert (one["intensity"], one["flops_per_s"], one["bound"]) == (1e-3, 2e9, "memory")
    view = content_of([PlotMachine(BOTH)], estimates=[one])["view"]
    assert view["x"][0] < -3 < view["x"][1]
    assert view["y"][0] < math.log10(2e9) < view["y"][1]


@pytest.mark.parametrize(
    ("text", "said"), [("{", "is no JSON"), ("[]", "has no FLOPs"), ('{"flops": 1}', "has no FLOPs"), (None, "No such")]
)
def test_a_file_without_an_estimate_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str | None, said: str
) -> None:
    path = tmp_path / "estimate.json"
    if text is not None:
        path.write_text(text, encoding="utf-8")
    refusal = refused(["page", "--gpu", "h100-sxm", "--estimate", path, "-o", tmp_path / "a.html"], capsys)
    assert refusal.startswith(f"--estimate {path}")
    assert said in refusal


# The document


@pytest.fixture(scope="module")
def hostile() -> tuple[dict[str, Any], str]:
    """Return the content and the page of a run in which every name is hostile."""
    records = [
        matmul(64, "bf16", 1e10, provider=name, op=name, case=name, flags=(name,), flag_reasons={name: name})
        for name in HOSTILE
    ]
    device = {"slug": HOSTILE[0], "name": HOSTILE[1], "type": "cpu"}
    host = {name: name for name in HOSTILE}
    stamp = environment(device=device, host=host, argv=tuple(HOSTILE), run_id=HOSTILE[0].replace("/", ""))
    machine = run_machine(stamp, records)
    content = content_of([replace(machine, ceilings=replace(machine.ceilings, note=HOSTILE[1]))], title=HOSTILE[1])
    return content, page_html(content)


def test_only_the_scripts_of_the_policy_are_in_the_page(hostile: tuple[dict[str, Any], str]) -> None:
    elements = Elements(hostile[1])
    policies = [attrs["content"] for tag, attrs in elements.tags if attrs.get("http-equiv")]
    assert len(elements.scripts) == 3
    hashes = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in elements.scripts[1:]]
    allowed = f"default-src 'none'; script-src 'sha256-{hashes[0]}' 'sha256-{hashes[1]}'; style-src 'unsafe-inline'; "
    assert policies == [allowed + "img-src data: blob:; base-uri 'none'; form-action 'none'"]


def test_names_are_text_and_the_data_reads_back(hostile: tuple[dict[str, Any], str]) -> None:
    content, page = hostile
    elements = Elements(page)
    assert json.loads(elements.scripts[0]) == json.loads(json.dumps(content))
    assert not any(name in ("src", "href", "style") or name.startswith("on") for _, a in elements.tags for name in a)
    assert {tag for tag, _ in elements.tags} & {"iframe", "img", "link", "object", "embed", "form"} == {"form"}
    assert "alert(1)" not in elements.scripts[2]
    assert "7*7" in page  # a template in a name is not filled in


def test_the_page_is_below_six_megabytes(hostile: tuple[dict[str, Any], str]) -> None:
    assert len(hostile[1].encode("utf-8", "backslashreplace")) < 6e6


@pytest.mark.parametrize("name", ["versions", "6 GPUs", "decode", "train_step", "flagged", "a profile"])
def test_every_kind_of_run_becomes_data(name: str) -> None:
    content = content_of(RUNS[name][0])
    assert json.loads(embedded(content).replace(r"\u003c", "<")) == json.loads(json.dumps(content))
    assert content["rows"]["op"]


# The command


def refused(arguments: list[object], capsys: pytest.CaptureFixture[str]) -> str:
    assert main([str(argument) for argument in arguments]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1, said.err
    return said.err.removeprefix("python -m roofline page: error: ").rstrip()


def test_the_command_writes_a_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = save(tmp_path / "run.jsonl", decoding(), environment(hardware=BOTH.to_dict()))
    target = tmp_path / "new" / "report.html"
    assert main(["page", str(run), "--gpu", "h100-sxm", "-o", str(target)]) == 0
    assert capsys.readouterr().out == f"{target}\n"
    content = json.loads(Elements(target.read_text(encoding="utf-8")).scripts[0])
    assert content["shown_dtypes"] == ["bf16"]
    assert [machine["slug"] for machine in content["machines"]] == [BOTH.slug, "h100-sxm"]


def test_what_cannot_be_shown_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = save(tmp_path / "run.jsonl", versions(), environment(hardware={}))
    page = tmp_path / "a.html"
    assert refused(["page", "-o", page], capsys).startswith("nothing to show: give a RUN")
    assert refused(["page", "latest", "-o", tmp_path / "a.png"], capsys).endswith("allowed: .html, .htm")
    assert refused(["page", run, "-o", page], capsys).startswith("no ceiling is known for cpu")
    assert refused(["page", "--gpu", "h900", "-o", page], capsys).startswith("unknown GPU 'h900'")
    for dtype, hint in (("fp8", "did you mean fp8e"), ("nothing", "known: fp64, fp32")):
        message = refused(["page", "--gpu", "h100-sxm", "--dtype", dtype, "-o", page], capsys)
        assert message.startswith(f"unknown dtype '{dtype}'; {hint}")
    assert not page.exists()


def test_without_the_extra_the_command_says_how_to_get_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(document, "find_spec", lambda name: None if name == "plotly" else name)
    said = refused(["page", "--gpu", "h100-sxm", "-o", tmp_path / "a.html"], capsys)
    assert said == "a page needs plotly: python -m pip install -e '.[page]'"
