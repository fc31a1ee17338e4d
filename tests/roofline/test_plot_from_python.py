"""The picture as a call, in other colors, on axes of one's own; and rows checked against their
share of the roof.
"""

import re
from pathlib import Path

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from plot_scenes import (
    assert_apart,
    corners,
    matmul,
    saved,
    scene,
    texts,
)

import roofline
from results.show.picture import THEMES, contrast_to_white, save_picture
from results.store.runfile import StoreError
from roofline.__main__ import main
from roofline.picture.figure import draw_roofline

GOOD = [matmul(n, "bf16", 8e11) for n in (512, 1024)]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("theme", THEMES)
def test_words_can_be_read_on_the_background_of_each_theme(theme):
    figure = draw_roofline(scene("a crowd"), theme=theme)
    behind = contrast_to_white(*to_rgb(figure.get_facecolor()))
    ticks = [
        label
        for axes in figure.axes
        for label in (*axes.get_xticklabels(), *axes.get_yticklabels())
    ]
    for text in (*texts(figure), *ticks, *(axes.xaxis.label for axes in figure.axes)):
        own = contrast_to_white(*to_rgb(text.get_color()))
        assert max(own / behind, behind / own) >= 4.5, text.get_text()


def test_drawn_from_python_it_is_what_the_command_draws(tmp_path):
    path = saved(tmp_path / "run.jsonl", GOOD)
    for theme in THEMES:
        assert main(["plot", str(path), "-o", str(tmp_path / "command.svg"), "--theme", theme]) == 0
        save_picture(roofline.draw(path, theme=theme), tmp_path / "python.svg")
        assert (tmp_path / "python.svg").read_bytes() == (tmp_path / "command.svg").read_bytes()


def test_on_axes_of_ones_own_roofs_and_labels_stand_where_the_model_says():
    figure = Figure(figsize=(14, 6))
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2)
    right.plot([1, 2], [1, 2])
    shown = scene("a CPU with points")
    assert draw_roofline(shown, axes=left, theme="dark") is figure
    lines = [line.get_data() for line in left.lines if line.get_zorder() == 3]
    starts = {(round(float(xs[0]), 6), round(float(ys[0]))) for xs, ys in lines}
    for (flat,) in shown.flats:
        assert flat.ridge is not None
        assert (round(flat.ridge, 6), round(flat.ceiling.value)) in starts
    assert figure.axes == [left, right]
    assert len(right.lines) == 1
    assert not figure.texts
    box = left.get_window_extent()
    shapes = [(text.get_text(), corners(figure, text)) for text in left.texts if text.get_text()]
    assert len(shapes) > 6
    assert_apart(shapes)
    for text, shape in shapes:
        assert (shape >= (box.x0, box.y0)).all(), text
        assert (shape <= (box.x1 + 1, box.y1 + 1)).all(), text


def test_what_cannot_be_drawn_from_python_is_an_error_in_one_line(tmp_path):
    for arguments in (
        {"gpu": "h100-sxm", "theme": "sepia"},
        {},
        {"gpu": "h100-sxm", "dtype": "fp3"},
    ):
        with pytest.raises(ValueError, match=r"^[^\n]+$"):
            roofline.draw(**arguments)
    with pytest.raises(StoreError, match=r"^[^\n]+$"):
        roofline.draw("nowhere", folder=tmp_path)
    with pytest.raises(roofline.UnknownGpuError, match=r"^[^\n]+$"):
        roofline.draw(gpu="h100")


def test_the_picture_of_the_readme_is_what_its_command_draws(tmp_path):
    root = Path(__file__).parents[2]
    (run,) = re.findall(
        r"Drawn by `python -m roofline plot (\S+) -o roofline.png`",
        (root / "README.md").read_text(),
    )
    published = root / Path(run).parent / "roofline.png"
    assert main(["plot", str(root / run), "-o", str(tmp_path / "roofline.png")]) == 0
    widths = [path.read_bytes()[16:20] for path in (published, tmp_path / "roofline.png")]
    assert widths[0] == widths[1]
    assert f"]({published.relative_to(root)})" in (root / "README.md").read_text()
