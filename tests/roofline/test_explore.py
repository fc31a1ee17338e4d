"""`python -m roofline explore`: every calculator is gone through, with the numbers of its command."""

from __future__ import annotations

import json
import shlex
import socket

import pytest
from test_estimate import call

from roofline.__main__ import main
from roofline.accounting.answers.answer import in_words
from roofline.commands import explore

streamlit = pytest.importorskip("streamlit", reason="the calculators need Streamlit: pip install -e '.[explore]'")
streamlit.logger.set_log_level("ERROR")  # its test client warns of itself

CALCULATORS = sorted(path.stem for path in (explore.APP.parent / "calculators").glob("[a-z]*.py"))


def draw_page(page):
    from importlib import import_module

    from roofline.explore.page import draw

    draw(import_module(f"roofline.explore.calculators.{page}"))


def opened(page, **address):
    """Return the page of a calculator, as its address has it."""
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
    """Return what the command beside an answer prints for programs."""
    words = shlex.split(command)
    assert words[:4] == ["python", "-m", "roofline", "estimate"]
    capsys.readouterr()
    assert call(*words[4:], "--format", "json") == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("page", CALCULATORS)
def test_each_calculator_shows_the_numbers_of_its_command(page, capsys):
    app = opened(page)
    assert errors_of(app) == []
    data = typed(capsys, app.code[0].value)
    said = " ".join(shown(text.value) for text in (*app.header, *app.subheader))
    told = {in_words(key, value) for key, value in data.items() if isinstance(value, int | float)}
    assert not app.header or any(words in said for words in told)
    assert f"**Formula:** {data['formula']}" in [shown(text.value) for text in app.markdown]
    assert len(app.download_button) >= 1


def test_a_slider_types_the_number_and_the_address_keeps_it(capsys):
    app = opened("train", gpu="a100-sxm-80gb")
    assert app.header[0].value == "456.5 days"
    app.select_slider(key="train gpus slider").set_value(2048).run()
    assert app.text_input(key="train gpus").value == "2048"
    assert app.query_params == {"gpu": "a100-sxm-80gb", "gpus": "2048"}
    data = typed(capsys, app.code[0].value)
    assert data["gpus"] == 2048
    assert app.header[0].value == in_words("days", data["days"])


def test_what_is_left_out_and_what_is_wrong_is_said_in_words():
    app = opened("train")
    field = app.text_input(key="train tokens")
    for text, said in (("", "are required: --tokens"), ("--help", "'--help' must be a number"), ("-1", "'-1' must be")):
        field.set_value(text).run()
        assert said in errors_of(app)[0]


def test_the_server_is_for_this_machine_alone_and_sends_nothing():
    from streamlit import config

    words = dict(word.removeprefix("--").split("=") for word in explore.options(8600, True))
    assert (words["server.address"], words["server.port"], words["server.headless"]) == ("127.0.0.1", "8600", "true")
    assert words["browser.gatherUsageStats"] == words["server.showEmailPrompt"] == "false"
    assert set(words) <= set(config.get_config_options())


def test_a_port_that_is_taken_or_none_and_a_missing_extra_are_one_line(capsys, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["explore", "--port", str(port)]) == 2
        assert capsys.readouterr().err.count("\n") == 1
    for text in ("80", "70000", "x"):
        with pytest.raises(SystemExit, match="2"):
            main(["explore", "--port", text])
        assert "must be a port" in capsys.readouterr().err
    monkeypatch.setattr(explore, "find_spec", lambda name: None)
    assert main(["explore", "--no-browser"]) == 2
    assert "pip install -e '.[explore]'" in capsys.readouterr().err


def test_a_calculator_is_a_file_of_the_folder_and_a_page():
    from streamlit.testing.v1 import AppTest

    from roofline.explore.app import found

    assert AppTest.from_file(str(explore.APP), default_timeout=60).run().title[0].value == found()[0].TITLE
    assert sorted(module.__name__.rpartition(".")[2] for module in found()) == CALCULATORS
