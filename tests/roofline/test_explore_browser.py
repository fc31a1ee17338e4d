"""The calculators in a browser that reaches this machine alone: each is opened, filled in, and
taken away.
"""

import csv
import io
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from urllib.request import urlopen

import pytest
from test_explore import CALCULATORS, typed

from results.show.picture import LABEL_PT
from roofline.estimate.answer import text_of_value

CHROMIUM = (
    shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
)
pytestmark = [
    pytest.mark.exhaustive,
    pytest.mark.skipif(
        CHROMIUM is None, reason="no chromium is installed: apt-get install chromium"
    ),
]
ROOT = Path(__file__).parents[2]


@pytest.fixture
def served(tmp_path):
    """The address of a server whose home and working directory are empty, and stay so but for
    Matplotlib's cache.
    """
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    home = tmp_path / "home"
    home.mkdir()
    environment = os.environ | {
        "PYTHONPATH": str(ROOT),
        "HOME": str(home),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    words = [sys.executable, "-m", "roofline", "explore", "--no-browser", "--port", str(port)]
    with (tmp_path / "said").open("wb") as said:
        server = subprocess.Popen(
            words, cwd=home, env=environment, stdout=said, stderr=said, start_new_session=True
        )
    try:
        yield answering(f"http://127.0.0.1:{port}", server)
        # Its list of fonts.
        assert {path.parent.name for path in home.rglob("*") if path.is_file()} <= {"matplotlib"}
    finally:
        server.send_signal(signal.SIGINT)
        assert server.wait(timeout=30) == 0


def answering(address, server):
    for _ in range(600):
        assert server.poll() is None
        try:
            with urlopen(f"{address}/_stcore/health", timeout=5):
                return address
        except OSError:
            time.sleep(0.1)
    raise AssertionError("the server never answered")


@pytest.fixture
def opened(served):
    driver = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    alone = ["--no-sandbox", "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1"]
    with driver.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=alone)
        page = browser.new_page(viewport={"width": 390, "height": 844}, color_scheme="dark")
        page.asked, page.wrong = [], []
        page.on("request", lambda request: page.asked.append(request.url))
        page.on("console", lambda said: page.wrong.append(said.text) if is_wrong(said) else None)
        page.on("pageerror", lambda error: page.wrong.append(str(error)))
        yield page
        browser.close()


def is_wrong(said):
    """Return whether a message is an error; Streamlit looks for its server below the address of a
    page first.
    """
    return said.type == "error" and "/_stcore/" not in said.location["url"]


SMALL_TEXTS = """() => { const small = [];
    const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    while (texts.nextNode()) { const { parentElement, textContent } = texts.currentNode;
        const pixels = parseFloat(getComputedStyle(parentElement).fontSize);
        const isShown = parentElement.getBoundingClientRect().width && !parentElement.closest("style, script, noscript");
        if (pixels < 12 && isShown && textContent.trim()) small.push([textContent, pixels]); }
    return small; }"""  # noqa: E501
PICTURES = "[data-testid=stImage] img"
PX_OF_POINT = "(found) => found.map((each) => each.clientWidth / (0.75 * each.naturalWidth))"
"""Scale of the pictures: a point is 4/3 pixels in their own size."""


def command_of(page):
    return page.locator("[data-testid=stCode] code").first.inner_text()


def taken(page, button):
    with page.expect_download() as download:
        page.get_by_role("button", name=button).first.click()
    return Path(download.value.path()).read_bytes()


def test_each_calculator_opens_answers_and_is_taken_away(request, served, opened, capsys):
    for name in CALCULATORS[:: request.config.getoption("--every")]:
        opened.goto(f"{served}/{name if name != CALCULATORS[0] else ''}")
        opened.get_by_text("Formula:").wait_for(timeout=60_000)
        assert opened.locator("[data-testid=stAlertContentError]").count() == 0
        assert command_of(opened).startswith("python -m roofline estimate ")
        assert opened.evaluate(SMALL_TEXTS) == [], name
        scales = opened.locator(PICTURES).evaluate_all(PX_OF_POINT)
        assert [scale for scale in scales if scale * LABEL_PT < 12] == [], name
    opened.goto(f"{served}/train?tokens=30T")
    opened.get_by_text("287.9 days").wait_for(timeout=60_000)
    field = opened.get_by_role("textbox", name="Number of devices")
    field.fill("2048")
    field.press("Enter")
    opened.get_by_text("143.9 days").first.wait_for(timeout=60_000)
    opened.get_by_text("--gpus 2048").first.wait_for(timeout=60_000)
    data = typed(capsys, command_of(opened))
    assert (data["gpus"], text_of_value("days", data["days"])) == (2048, "143.9 days")
    opened.wait_for_url(lambda url: "tokens=30T" in url and "gpus=2048" in url)
    for _ in range(100):  # the button at the end of the page is drawn last
        rows = csv.DictReader(io.StringIO(taken(opened, "download CSV").decode()))
        if (days := [float(row["days"]) for row in rows]) == [data["days"]]:
            break
        opened.wait_for_timeout(100)
    assert days == [data["days"]]
    assert opened.wrong == []
    assert [
        url
        for url in opened.asked
        if not url.startswith((served, served.replace("http", "ws"), "data:"))
    ] == []


def test_another_page_starts_with_its_example_after_a_slider_was_moved(served, opened):
    opened.set_viewport_size({"width": 1366, "height": 900})  # with the list of pages
    opened.goto(f"{served}/train")
    opened.get_by_text("143.9 days").first.wait_for(timeout=60_000)
    slider = opened.get_by_role("slider", name="gpus slider")
    slider.focus()
    slider.press("ArrowRight")
    opened.get_by_text("--gpus 2048").first.wait_for(timeout=60_000)
    opened.wait_for_url(lambda url: "gpus=2048" in url)
    opened.get_by_role("link", name="chinchilla").click()
    opened.get_by_text("12.63 B parameters").wait_for(timeout=20_000)
    assert opened.get_by_role("textbox", name="Number of devices").input_value() == "32"
    assert opened.wrong == []
