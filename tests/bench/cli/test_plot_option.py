"""`--plot`: a plot of the run, in the format of its suffix."""

import json

import pytest

from results.store.runfile import load_run
from roofline.picture import figure
from tests.bench import commands

pytestmark = pytest.mark.usefixtures("quick")


@pytest.fixture
def drawn(monkeypatch):
    """Return the list of plotted scenes."""
    scenes, draw = [], figure.draw_roofline

    def watched(scene, *arguments, **style):
        scenes.append(scene)
        return draw(scene, *arguments, **style)

    monkeypatch.setattr(figure, "draw_roofline", watched)
    return scenes


@pytest.mark.exhaustive
def test_the_plot_has_the_ceilings_and_records_of_the_run(capsys, runs, tmp_path, drawn):
    path = tmp_path / "roofline.svg"
    assert commands.here("matmul", "--shape", "64", "--dtype", "bf16,fp32", "--plot", path) == 0
    run = load_run(commands.run_files(runs)[0])
    (scene,) = drawn
    assert scene.machines == (run.environment.machine,)
    assert [point.record for point in scene.points] == list(run.records)


def test_a_plot_is_replaced_and_stdout_stays_pure_json(capsys, tmp_path):
    path = tmp_path / "roofline.png"
    path.write_text("an older picture")
    words = ("--op", "relu", "--shape", "1024", "--no-save", "--format", "json", "--plot", path)
    assert commands.here("elementwise", *words) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["records"][0]["op"] == "relu"
    assert err.splitlines()[-1] == f"plot: {path}"
    assert path.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
