"""`python -m roofline explore`: every calculator is gone through, with the numbers of its
command.
"""

import json
import shlex
import socket
import sys

import pytest
from test_estimate import call

from results.show.terminal import install_command
from roofline.__main__ import main
from roofline.commands import explore
from roofline.estimate import QUESTIONS
from roofline.estimate.answer import text_of_value

streamlit = pytest.importorskip(
    "streamlit", reason="the calculators need Streamlit: pip install -e '.[explore]'"
)
streamlit.logger.set_log_level("ERROR")  # its test client warns of itself

CALCULATORS = tuple(QUESTIONS)


@pytest.fixture(autouse=True)
def main_module(monkeypatch):
    """Give back what `__main__` was: a page under test replaces it for good."""
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])


def draw_page(page):
    from roofline.explore.app import draw

    draw(page)


def opened(page, **address):
    from streamlit.testing.v1 import AppTest

    app = AppTest.from_function(draw_page, args=(page,), default_timeout=60)
    app.query_params.update(address)
    return app.run()


def shown(text):
    return text.replace("\\", "")


def errors_of(app):
    assert not app.exception, [found.message for found in app.exception]
    return [shown(error.value) for error in app.error]


def typed(capsys, command):
    words = shlex.split(command)
    assert words[:4] == ["python", "-m", "roofline", "estimate"]
    capsys.readouterr()
    assert call(*words[4:], "--format", "json") == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("page", ["tensor", "matmul", "memory", "train", "infer", "parallel"])
def test_each_calculator_shows_the_numbers_of_its_command(page, capsys):
    app = opened(page)
    assert errors_of(app) == []
    data = typed(capsys, app.code[0].value)
    told = {
        text_of_value(key, value)
        for key, value in data.items()
        if isinstance(value, int | float | str)
    }
    said = [shown(text.value) for text in (*app.header, app.markdown[0])]
    first, others = said[0], said[1].split("; ")[1:]
    assert set(others) <= told
    assert first in told or page == "matmul"  # which has an answer for each row
    assert f"**Formula:** {data['formula']}" in [shown(text.value) for text in app.markdown]
    assert len(app.download_button) >= 1


def test_a_fraction_is_a_slider_and_labels_are_words(capsys):
    app = opened("train")
    slider = app.slider(key="mfu")
    assert (slider.value, slider.label) == (0.5, "Fraction of the dense peak")
    slider.set_value(0.25).run()
    assert "--mfu 0.25" in app.code[0].value
    assert typed(capsys, app.code[0].value)["days"] == pytest.approx(2 * 143.945, rel=1e-4)
    labels = [field.label for field in (*app.text_input, *app.selectbox, *app.slider)]
    assert all(label[0].isupper() for label in labels if not label.startswith("over: "))
    assert app.text_input(key="gpus").help.startswith("--gpus: ")


def test_a_number_has_a_slider_that_types_into_its_field():
    app = opened("train")
    sliders = {slider.key: slider.value for slider in app.select_slider}
    assert sliders == {"params slider": "70e9", "tokens slider": "15e12", "gpus slider": "1024"}
    app.select_slider(key="gpus slider").set_value("2048").run()
    assert app.text_input(key="gpus").value == "2048"
    assert app.header[0].value == "71.97 days"
    slider = app.select_slider(key="params slider")
    assert slider.options[0] == "1e6"
    assert slider.options[-1] == "500e12"
    app.text_input(key="params").set_value("13B").run()
    assert app.select_slider(key="params slider").value == "13B"
    app.select_slider(key="params slider").set_value("1e9").run()
    assert "--params 1e9" in app.code[0].value
    assert "13B" in app.select_slider(key="params slider").options
    app.text_input(key="params").set_value("many").run()
    assert "'many' is not a number" in errors_of(app)[0]
    assert "params slider" not in [slider.key for slider in app.select_slider]


def test_the_command_has_checkpoints_of_the_address_and_no_defaults(capsys):
    app = opened("memory", checkpoint="every-2")
    assert errors_of(app) == []
    assert "--checkpoint every-2" in app.code[0].value
    assert "--zero" not in app.code[0].value
    assert app.text_input(key="sequence").placeholder == "2048"
    typed(capsys, app.code[0].value)


def test_a_product_is_drawn_under_its_roofs():
    assert opened("matmul", gpu=["h100-sxm"]).get("image")


def test_all_gpus_are_those_of_the_command(capsys):
    for page in ("infer", "matmul", "memory"):  # with a sweep, with roofs and with parts
        app = opened(page, gpu=["all"])
        assert errors_of(app) == []
        assert "all" in app.multiselect(key="gpu").options
        ranked = typed(capsys, app.code[0].value)["rows"]
        assert [row["gpu"] for row in ranked[:3]] == list(app.table[0].value["GPU"])[:3]
    assert "utilization of its own GPU" in errors_of(opened("mfu", gpu=["all"]))[0]


def test_the_server_is_for_this_machine_alone_and_sends_nothing():
    from streamlit import config

    words = dict(word.removeprefix("--").split("=") for word in explore.options(8600, True))
    assert (words["server.address"], words["server.port"], words["server.headless"]) == (
        "127.0.0.1",
        "8600",
        "true",
    )
    assert words["browser.gatherUsageStats"] == words["server.showEmailPrompt"] == "false"
    assert set(words) <= set(config.get_config_options())


def test_a_port_that_is_taken_or_none_and_a_missing_extra_are_one_line(capsys, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["explore", "--port", str(port)]) == 2
        assert f"Port {port} is not available" in capsys.readouterr().err
    for text in ("80", "70000", "x"):
        with pytest.raises(SystemExit, match="2"):
            main(["explore", "--port", text])
        assert "must be a port" in capsys.readouterr().err
    monkeypatch.setattr(explore, "find_spec", lambda name: None)
    assert main(["explore", "--no-browser"]) == 2
    assert install_command("explore") in capsys.readouterr().err


HOSTILE = (
    "",
    "-1",
    "nan",
    "1e999",
    "७०",
    "--help",
    "'; rm -rf /",
    "[x](http://example.org)",
    "<b>1</b>",
    "\0",
    "a" * 500,
    "1" * 500,
)


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("page", "name"), [("train", "tokens"), ("tensor", "shape"), ("dtype", "value")]
)
def test_hostile_values_are_answered_in_words(page, name):
    app = opened(page)
    for text in HOSTILE:
        app.text_input(key=name).set_value(text).run()
        assert errors_of(app) or app.code
        assert bool(app.error) != bool(app.code)


@pytest.mark.exhaustive
def test_a_model_by_dimensions_or_by_a_file_is_that_of_the_command(capsys, tmp_path, monkeypatch):
    sizes = {"layers": 16, "width": 2048, "heads": 32, "ffn": 8192, "vocab": 128256}
    app = opened("params", **{name: str(size) for name, size in sizes.items()})
    assert "expected one model" in errors_of(app)[0]  # and that of the example
    app.selectbox(key="model").set_value("-").run()
    app.text_input(key="kv-heads").set_value("8").run()
    assert typed(capsys, app.code[0].value)["total"] == 1498482688
    app.toggle(key="tied").set_value(True).run()
    assert typed(capsys, app.code[0].value)["total"] == 1235814400  # Llama 3.2 1B
    config = {
        "model_type": "gpt2",
        "n_layer": 2,
        "n_embd": 64,
        "n_head": 4,
        "vocab_size": 100,
        "n_positions": 32,
    }
    (tmp_path / "my config.json").write_text(json.dumps(config))
    monkeypatch.chdir(tmp_path)
    app = opened("params")
    app.selectbox(key="model").set_value("-").run()
    app.text_input(key="config").set_value("my config.json").run()
    assert errors_of(app) == []
    assert "'my config.json'" in app.code[0].value
    assert text_of_value("total", typed(capsys, app.code[0].value)["total"]) == app.header[0].value


def test_an_option_is_varied_as_in_a_sweep(capsys):
    app = opened("infer", over="batch=1,8")
    assert errors_of(app) == []
    words = shlex.split(app.code[1].value)
    assert words[4:6] == ["sweep", "infer"]
    assert words[-2:] == ["--over", "batch=1,8"]
    assert "--batch" not in words
    capsys.readouterr()
    assert call(*words[4:], "--format", "json") == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert sorted({row["batch"] for row in rows}) == [1, 8]
    app.text_input(key="over").set_value("batch").run()
    assert "--over 'batch' is not" in errors_of(app)[0]
