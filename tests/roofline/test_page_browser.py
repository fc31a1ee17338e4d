"""The page in a browser without a network: what a person clicks, types, hears and saves."""

import shutil
from dataclasses import replace

import pytest
from plot_scenes import BOTH, CPU, CPU_MIXES, SCENES, calibrated, elementwise, matmul, on
from run_scenes import profile_op, profiled
from test_page import HOSTILE, page_of

CHROMIUM = (
    shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
)
pytestmark = [
    pytest.mark.exhaustive,
    pytest.mark.skipif(
        CHROMIUM is None, reason="no chromium is installed: apt-get install chromium"
    ),
]
PICTURE = "#plot .main-svg"
FORBIDDEN = """new Promise((tell) => setTimeout(() => {
    let evaluated = false; try { evaluated = eval("true"); } catch {}
    const more = document.createElement("script"); more.textContent = "window.ran = true"; document.body.append(more);
    tell([evaluated, window.ran === true]); }))"""  # noqa: E501
"""What the policy of the page does not let happen: text that is evaluated, and a script that was
not there.
"""


class Opened:
    """A page in the browser, with all that it asked for and said."""

    def __init__(self, page, target):
        self.page = page
        self.requests = []
        self.said = []
        page.on("request", lambda request: self.requests.append(request.url))
        page.on("console", lambda message: self.said.append(message.text))
        page.on("pageerror", lambda error: self.said.append(str(error)))
        page.goto(target.as_uri())
        page.wait_for_selector(PICTURE)

    def column(self, title):
        script = """(title) => { const heads = [...document.querySelectorAll("#rows thead button")];
            const at = heads.findIndex((head) => head.textContent === title);
            return [...document.querySelectorAll("#rows tbody tr")].map((row) => row.children[at].textContent); }"""  # noqa: E501
        return self.page.evaluate(script, title)

    def is_quiet(self):
        """Return whether nothing was asked for but the file, and nothing was said."""
        return len(self.requests) == 1 and self.requests[0].startswith("file://") and not self.said


@pytest.fixture(scope="module")
def browser():
    sync_playwright = pytest.importorskip(
        "playwright.sync_api", reason="playwright is not installed"
    ).sync_playwright
    with sync_playwright() as driver:
        started = driver.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--disable-dev-shm-usage"]
        )
        yield started
        started.close()


@pytest.fixture
def visit(browser, tmp_path):
    contexts = []

    def visit(text, **options):
        target = tmp_path / "page with a blank.html"
        target.write_text(text, encoding="utf-8", errors="backslashreplace")
        contexts.append(browser.new_context(offline=True, **options))
        contexts[-1].set_default_timeout(30_000)
        return Opened(contexts[-1].new_page(), target)

    yield visit
    for context in contexts:
        context.close()


def test_a_person_filters_sorts_and_chooses_rows(visit):
    opened = visit(page_of(*SCENES["a crowd"][:2]))
    page = opened.page
    assert page.locator("#status").inner_text().startswith("46 of 46 rows")
    page.get_by_label("Filter").fill("triton-v1 8192")
    assert page.locator("#status").inner_text().startswith("2 of 46 rows")
    assert set(opened.column("provider")) == {"triton-v1"}
    page.get_by_label("Filter").fill("gelu")
    page.get_by_role("button", name="median").click()
    times = opened.column("median")
    page.get_by_role("button", name="median").click()
    assert opened.column("median") == times[::-1]
    assert times[0].endswith("us")
    page.get_by_label("Filter").fill("")
    page.locator("#plot").scroll_into_view_if_needed()
    spot = page.locator("#plot .scatterlayer .points path").first.bounding_box()
    page.mouse.move(spot["x"] + spot["width"] / 2, spot["y"] + spot["height"] / 2)
    page.wait_for_selector("#plot .hoverlayer .hovertext")
    page.mouse.click(spot["x"] + spot["width"] / 2, spot["y"] + spot["height"] / 2)
    page.wait_for_selector("#rows tr[aria-current=true]")
    assert "samples" in page.locator("#details").inner_text()
    assert opened.is_quiet(), (opened.requests, opened.said)


def test_shared_columns_leave_and_what_was_reached_is_in_sight(visit):
    rows = [matmul(n, "bf16", 8e11, flags=("preempted",)) for n in (512, 1024)]
    rows += [elementwise("copy", 2**20, 0, 0.009), matmul(64, "bf16", 1e9, reason="of no use")]
    size = {"width": 1366, "height": 800}
    opened = visit(page_of([on(CPU, *rows), on(CPU, rows[0], run_id="b")]), viewport=size)
    heads = opened.page.locator("#rows thead th")
    titles = heads.all_inner_texts()
    assert titles[-1] == "reason"
    assert {"dtype", "provider", "status", "options"}.isdisjoint(titles)
    sizes = opened.page.locator("#rows td.number").all_inner_texts()
    assert str(2**20) not in sizes  # a case is a name
    said = opened.page.locator("#status").inner_text()
    assert said.startswith("5 of 5 rows; all: ")
    assert "provider torch" in said
    for title in ("median", "% roof", "MFU", "bound", "flags"):
        box = heads.nth(titles.index(title)).bounding_box()
        assert box["x"] + box["width"] <= 1366, title
    assert opened.column("flags")[:2] == ["preempted", "preempted"]


@pytest.mark.parametrize(("width", "scheme"), [(1366, "light"), (390, "dark")])
def test_hostile_names_are_text_and_the_page_is_readable(visit, width, scheme):
    records = [
        matmul(
            64 * (1 + index),
            "bf16",
            1e9 * 2**index,
            provider=name,
            op=name,
            case=name,
            flags=(name,),
        )
        for index, name in enumerate(HOSTILE)
    ]
    records.append(elementwise("copy", 2**20, 0, 0.009))
    run = on(calibrated(CPU, CPU_MIXES), *records, host={name: name for name in HOSTILE})
    size = {"width": width, "height": 800}
    opened = visit(page_of([run], title=HOSTILE[1]), viewport=size, color_scheme=scheme)
    page = opened.page
    shown = [name.replace("\ud800", "\ufffd") for name in HOSTILE]
    assert [name.replace("\ud800", "\ufffd") for name in opened.column("op")] == [*shown, "copy"]
    assert page.locator("h1").inner_text() == HOSTILE[1]
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    is_dark = page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(23, 23, 23)"
    assert is_dark == (scheme == "dark")
    axe = pytest.importorskip(
        "axe_playwright_python.sync_playwright", reason="axe is not installed"
    ).Axe()
    found = axe.run(page).response["violations"]
    assert [
        (one["id"], one["help"], [node["html"][:200] for node in one["nodes"]]) for one in found
    ] == []
    assert opened.is_quiet(), (opened.requests, opened.said)
    assert page.evaluate(FORBIDDEN) == [False, False]


def test_a_profile_has_no_legend_of_equal_circles_and_facts_have_units(visit):
    facts = {"host": {"memory_bytes": 2**31}, "preflight": {"tick_s": 4e-8, "long_s": 2}}
    opened = visit(page_of([on(BOTH, *profiled()[:8], **facts)]))
    assert opened.page.locator("#plot .legend").count() == 0
    facts = opened.page.locator(".facts").all_inner_texts()
    assert "2.0 GiB" in " ".join(facts)
    assert "0.04 us" in " ".join(facts)
    assert "2 s" in " ".join(facts)


def test_modules_on_a_telephone_have_names(visit):
    times = {"layers.*.mlp.up": 0.3, "layers.*.mlp.down": 0.2, "head": 0.1}
    rows = []
    for record, (module, time_s) in zip(profiled(), times.items(), strict=False):
        details = profile_op(module=module, time_s=time_s, share=time_s)
        rows.append(replace(record, details=details))
    page = visit(page_of([on(BOTH, *rows)]), viewport={"width": 390, "height": 800}).page
    texts = page.locator("#modules .slicetext:visible")
    sizes = texts.evaluate_all("(all) => all.map((text) => text.getBoundingClientRect().height)")
    assert len([size for size in sizes if size >= 12]) >= 3


def test_long_names_of_a_profile_leave_its_flags_in_sight(visit):
    rows = []
    for index, record in enumerate(profiled()[:8]):
        long = {"op": f"{record.op}{index}" + "_backward" * 9, "case": f"{index}x4096," * 20}
        options = {"module": f"blocks.{index}.attention" * 5, "phase": "backward"}
        rows.append(replace(record, **long, options=options, flags=("unmodelled",)))
    opened = visit(page_of([on(BOTH, *rows)]), viewport={"width": 1366, "height": 800})
    heads = opened.page.locator("#rows thead th")
    titles = heads.all_inner_texts()
    for title in ("median", "% roof", "MFU", "bound", "flags"):
        box = heads.nth(titles.index(title)).bounding_box()
        assert box["x"] + 40 <= 1366, title
    cell = opened.page.locator("#rows tbody tr").first.locator("td").nth(titles.index("case"))
    assert cell.get_attribute("title") == rows[0].case


def test_labels_of_roofs_keep_off_the_axis_on_a_telephone(visit):
    page = visit(
        page_of(*SCENES["a CPU with points"][:2]), viewport={"width": 390, "height": 800}
    ).page
    boxes = (
        "(found) => found.map((element) => element.getBoundingClientRect()).map(({ left, "
        "right }) => [left, right])"
    )
    labels = page.locator("#plot .annotation").evaluate_all(boxes)
    numbers = page.locator("#plot .yaxislayer-above .ytick").evaluate_all(boxes)
    assert min(left for left, _ in labels) > max(right for _, right in numbers)
