"""The page in a browser without a network: what a person clicks, types, hears and saves."""

from __future__ import annotations

import csv
import io
import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from plot_scenes import CPU, CPU_MIXES, SCENES, calibrated, elementwise, environment, matmul
from test_page import HOSTILE, content_of

from roofline.page.document import page_html
from roofline.plot.figure import run_machine

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = [
    pytest.mark.exhaustive,
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium is installed: apt-get install chromium"),
]
PICTURE = "#plot .main-svg"
FORBIDDEN = """new Promise((tell) => setTimeout(() => {
    let evaluated = false; try { evaluated = eval("true"); } catch {}
    const more = document.createElement("script"); more.textContent = "window.ran = true"; document.body.append(more);
    tell([evaluated, window.ran === true]); }))"""
"""What the policy of the page does not let happen: text that is evaluated, and a script that was not there."""
BOXES = """[...document.querySelectorAll("#plot .annotation-text-g")]
    .filter((one) => !/rotate\\((?!0)/.test(one.getAttribute("transform") ?? ""))
    .map((one) => [one.textContent, one.getBoundingClientRect()])
    .map(([text, box]) => [text, box.left, box.right, box.top, box.bottom])"""
"""The labels that are not slanted, as boxes in pixels."""


@dataclass
class Opened:
    """A page in the browser, with all that it asked for and said."""

    page: Any
    size: int
    """Of the file, bytes."""
    requests: list[str] = field(default_factory=list)
    said: list[str] = field(default_factory=list)

    def shown(self) -> int:
        """Return how many rows the page says it shows."""
        return int(self.page.evaluate("shownRows().length"))

    def column(self, title: str) -> list[str]:
        """Return the texts of a column of the table."""
        script = """(title) => { const heads = [...document.querySelectorAll("#rows thead button")];
            const at = heads.findIndex((head) => head.dataset.sort === title);
            return [...document.querySelectorAll("#rows tbody tr")].map((row) => row.children[at].textContent); }"""
        found: list[str] = self.page.evaluate(script, title)
        return found

    def wait_until(self, condition: str) -> None:
        """Wait for what follows an event; the page's policy forbids the browser's own way, which evaluates text."""
        for _ in range(2000):
            if self.page.evaluate(condition):
                return
            self.page.wait_for_timeout(25)
        raise AssertionError(f"this never came: {condition}")

    def is_quiet(self) -> bool:
        """Return whether nothing was asked for but the file, and nothing was said."""
        loaded = [url for url in self.requests if not url.startswith("blob:")]  # what the page itself saves
        return len(loaded) == 1 and loaded[0].startswith("file://") and not self.said


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    sync_playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed").sync_playwright
    with sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-dev-shm-usage"])
        yield started
        started.close()


@pytest.fixture
def visit(browser: Any, tmp_path: Path) -> Iterator[Any]:
    contexts = []

    def visit(content: dict[str, Any] | None, fragment: str = "", **options: Any) -> Opened:
        """Open the page of a content; of None the page of before."""
        target = tmp_path / "page with a blank.html"
        if content is not None:
            target.write_text(page_html(content), encoding="utf-8", errors="backslashreplace")
        contexts.append(browser.new_context(offline=True, accept_downloads=True, **options))
        contexts[-1].set_default_timeout(120_000)
        opened = Opened(contexts[-1].new_page(), target.stat().st_size)
        opened.page.on("request", lambda request: opened.requests.append(request.url))
        opened.page.on("console", lambda message: opened.said.append(message.text))
        opened.page.on("pageerror", lambda error: opened.said.append(str(error)))
        opened.page.on("dialog", lambda dialog: opened.said.append(dialog.message))
        opened.page.goto(target.as_uri() + fragment)
        opened.page.wait_for_selector(PICTURE)
        return opened

    yield visit
    for context in contexts:
        context.close()


def test_a_person_toggles_isolates_searches_sorts_saves_and_comes_back(visit: Any) -> None:
    content = content_of(*SCENES["a crowd"])
    opened = visit(content)
    page, rows = opened.page, content["rows"]
    everything = len(rows["op"])
    assert opened.shown() == everything

    # What the table says is what the data holds.
    for name, scale in (("flops_per_s", "FLOP/s"), ("bytes_per_s", "B/s")):
        for text, value in zip(opened.column(name), rows[name], strict=True):
            assert text == "" if value is None else number(text, scale) == pytest.approx(value, rel=5e-3)

    # What is drawn is what the data holds, and no label lies on another or is cut off.
    drawn = page.evaluate(
        "(({ x, y, customdata }) => [x, y, customdata])(byId('plot').data.find((one) => one.customdata))"
    )
    places = zip(rows["intensity"], rows["flops_per_s"], rows["drawn"], range(everything), strict=True)
    assert list(zip(*drawn, strict=True)) == [(x, y, row) for x, y, is_drawn, row in places if is_drawn]
    assert page.evaluate(
        "byId('plot').data.filter((one) => one.mode === 'lines' && !one.fill).map((one) => one.x)"
    ) == [roof["x"] for roof in content["roofs"] if roof["dtype"] in (None, *content["shown_dtypes"])]
    boxes = page.evaluate(BOXES)
    assert len(boxes) >= 6
    overlapping = [(a, b) for a in boxes for b in boxes if a[0] < b[0] and overlaps(a[1:], b[1:])]
    assert overlapping == []

    page.get_by_label("only gelu").click()
    assert opened.shown() == rows["op"].count("gelu")
    assert set(opened.column("op")) == {"gelu"}
    page.get_by_role("button", name="Show everything").click()
    page.locator("#groups fieldset", has_text="provider").get_by_role("checkbox").nth(2).uncheck()
    assert opened.shown() == everything - rows["provider"].count("triton-v1")
    assert page.evaluate("document.activeElement.type") == "checkbox"
    page.get_by_role("button", name="Show everything").click()

    page.get_by_label("Search").fill("triton-v1 8192")
    opened.wait_until("shownRows().length === 2")
    page.get_by_label("Search").fill("")
    opened.wait_until(f"shownRows().length === {everything}")

    # A roof that is pointed at tells its value and where it comes from.
    at = """(roof) => { const { xaxis, yaxis } = byId("plot")._fullLayout, box = byId("plot").getBoundingClientRect();
        return [box.left + xaxis._offset + 0.97 * xaxis._length, box.top + yaxis._offset + yaxis.d2p(roof.value)]; }"""
    for roof in [one for one in content["roofs"] if one["dtype"] in content["shown_dtypes"]][:2]:
        page.mouse.move(*page.evaluate(at, roof))
        opened.wait_until(f"byId('tip').innerText.startsWith({json.dumps(roof['label'])}) && !byId('tip').hidden")
        assert roof["source"] in page.locator("#tip").inner_text()
    page.mouse.move(0, 0)
    page.locator("[data-view=bandwidth]").click()
    vertical = next(one for one in content["roofs"] if one["level"] == "memory")
    at = """(roof) => { const { xaxis, yaxis } = byId("plot")._fullLayout, box = byId("plot").getBoundingClientRect();
        return [box.left + xaxis._offset + xaxis.d2p(roof.value), box.top + yaxis._offset + 0.1 * yaxis._length]; }"""
    page.mouse.move(*page.evaluate(at, vertical))
    opened.wait_until(f"byId('tip').innerText.startsWith({json.dumps(vertical['label'])}) && !byId('tip').hidden")
    page.mouse.move(0, 0)
    page.locator("[data-view=roofline]").click()

    page.evaluate("window.before = byId('plot').data")
    page.get_by_label("sort by median").click()
    assert page.evaluate("byId('plot').data === window.before"), "sorting drew the picture anew"
    medians = [value for value in rows["median_s"] if value is not None]
    order = page.evaluate("sortedRows(shownRows()).map((i) => rows.median_s[i])")
    assert order[: len(medians)] == sorted(medians, reverse=True)
    assert set(order[len(medians) :]) <= {None}

    # Every point by keyboard, and the one that is chosen is told.
    page.locator("#plot").focus()
    drawn = sum(rows["drawn"])
    seen = set()
    for _ in range(drawn):
        page.keyboard.press("ArrowRight")
        seen.add(page.evaluate("state.picked"))
    assert seen == {index for index, is_drawn in enumerate(rows["drawn"]) if is_drawn}
    page.keyboard.press("Home")
    picked = page.evaluate("state.picked")
    assert rows["case"][picked] in page.locator("#card").inner_text()
    assert page.locator("#told").text_content().startswith(f"{rows['op'][picked]} {rows['case'][picked]} bf16 torch: ")
    page.keyboard.press("Enter")
    same = list(zip(rows["op"], rows["dtype"], rows["provider"], strict=True))
    assert opened.shown() == same.count(same[picked])
    page.keyboard.press("Escape")
    assert opened.shown() == everything

    # A click on a point is the same as Enter; a row of the table chooses its point.
    spot = page.locator("#plot .scatterlayer .points path").last.bounding_box()
    page.mouse.move(spot["x"] + spot["width"] / 2, spot["y"] + spot["height"] / 2)
    page.wait_for_selector("#tip:not([hidden])")
    page.mouse.click(spot["x"] + spot["width"] / 2, spot["y"] + spot["height"] / 2)
    opened.wait_until("state.isolated")
    page.get_by_role("button", name="Show everything").click()
    page.locator("#rows tbody button").nth(3).click()
    assert page.evaluate("state.picked") == page.evaluate("sortedRows(shownRows())[3]")
    assert page.evaluate("document.activeElement.closest('tr').getAttribute('aria-current')") == "true"

    # Another view and another theme, and the link brings all of it back.
    for view in ("time", "bandwidth", "roofline", "time"):
        page.locator(f"[data-view={view}]").click()
    page.get_by_role("button", name="Zoom in").click()
    page.get_by_label("Theme").select_option("dark")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(21, 24, 28)"
    before = page.evaluate("[state.view, state.theme, state.picked, state.sort, state.ranges.time, shownRows().length]")
    again = visit(None, "#" + urlsplit(page.url).fragment)
    kept = "[state.view, state.theme, state.picked, state.sort, state.ranges.time, shownRows().length]"
    after = again.page.evaluate(kept)
    assert after[:4] == before[:4]
    assert after[4] == [pytest.approx(end, rel=1e-4) for end in before[4]]
    assert after[5] == before[5]
    assert parse_qs(urlsplit(page.url).fragment)["view"] == ["time"]

    # What is saved.
    with page.expect_download() as waiting:
        page.get_by_role("button", name="CSV").click()
    saved = list(csv.DictReader(io.StringIO(Path(waiting.value.path()).read_text(encoding="utf-8"))))
    assert sorted(float(row["median_s"]) for row in saved if row["median_s"]) == sorted(medians)
    with page.expect_download() as waiting:
        page.get_by_role("button", name="PNG").click()
    assert Path(waiting.value.path()).read_bytes().startswith(b"\x89PNG")
    assert opened.is_quiet(), (opened.requests, opened.said)
    assert again.is_quiet(), (again.requests, again.said)


def overlaps(one: list[float], other: list[float]) -> bool:
    """Return whether two boxes (left, right, top, bottom) overlap by more than a pixel."""
    return one[0] + 1 < other[1] and other[0] + 1 < one[1] and one[2] + 1 < other[3] and other[2] + 1 < one[3]


def number(text: str, unit: str) -> float:
    value, _, prefixed = text.partition(" ")
    return float(value) * {"": 1, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}[prefixed.removesuffix(unit)]


def test_hostile_names_are_text_and_nothing_stands_in_the_way_of_a_reader(visit: Any) -> None:
    records = [
        matmul(64 * (1 + index), "bf16", 1e9 * 2**index, provider=name, op=name, case=name, flags=(name,))
        for index, name in enumerate(HOSTILE)
    ]
    records.append(elementwise("copy", 2**20, 0, 0.009))
    stamp = environment(hardware=calibrated(CPU, CPU_MIXES).to_dict(), host={name: name for name in HOSTILE})
    opened = visit(content_of([run_machine(stamp, records)], title=HOSTILE[1]))
    page = opened.page
    shown = [name.replace("\ud800", "\ufffd") for name in HOSTILE]
    assert [name.replace("\ud800", "\ufffd") for name in opened.column("op")] == [*shown, "copy"]
    assert page.locator("h1").inner_text() == HOSTILE[1]
    labels = page.evaluate("[...document.querySelectorAll('#plot .annotation-text')].map((one) => one.textContent)")
    assert any("<script>" in label for label in labels)
    assert any("<b>" in label for label in labels)
    page.locator("#rows tbody button").nth(0).click()
    assert HOSTILE[0] in page.locator("#card").inner_text()
    page.locator("[data-view=bandwidth]").click()
    page.locator("[data-view=roofline]").click()
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe is not installed").Axe()
    for theme in ("light", "dark"):
        page.get_by_label("Theme").select_option(theme)
        found = axe.run(page).response["violations"]
        assert [(one["id"], one["help"], [node["html"][:200] for node in one["nodes"]]) for one in found] == []
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert opened.is_quiet(), (opened.requests, opened.said)
    assert page.evaluate(FORBIDDEN) == [False, False]
