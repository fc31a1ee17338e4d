"""The HTML report: roofline, rows, verdicts and explanations."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Sequence
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from results.compare.comparison import compare, nothing_common
from results.compare.output import describe as describe_row
from results.compare.output import headlines, json_row
from results.compare.sides import CompareOptions
from results.record import Object
from results.show.grid import Row, texts_of
from results.show.picture import on_dark
from results.show.table import describe, table_cells
from results.show.terminal import install_command, one_line
from results.show.words import BOUNDS, COLUMNS, FLAGS, Word
from results.stats.comparison import TOO_NOISY
from results.store.runfile import Run, StoreError, load_run
from results.store.runs import Selection
from roofline.picture.interactive import MAX_BARS, modules_figure, roofline_figure
from roofline.picture.scene import Measured, PlotError, Scene
from roofline.picture.texts import caption, title_lines

if TYPE_CHECKING:
    from jinja2 import Template
    from markupsafe import Markup

TEMPLATES = Path(__file__).parent / "templates"
REQUIRED = ("plotly", "jinja2")
EXPLAINED = (
    "median",
    "95% CI",
    "TFLOP/s",
    "GB/s",
    "FLOP/B",
    "bound",
    "% roof",
    "MFU",
    "MBU",
    "n",
    "first call",
)
FACTS = ("device", "host", "versions", "git", "settings", "preflight")


def check_extra(required: Sequence[str] = REQUIRED) -> None:
    missing = [name for name in required if find_spec(name) is None]
    if missing:
        raise PlotError(f"a page requires {' and '.join(missing)}: {install_command('page')}")


def page_html(
    scene: Scene,
    runs: Sequence[Measured] = (),
    title: str | None = None,
    verdicts: Sequence[Row] = (),
) -> str:
    """Return the page of a scene as self-contained HTML."""
    from markupsafe import Markup
    from plotly.offline import get_plotlyjs

    scripts = [get_plotlyjs(), (TEMPLATES / "page.js").read_text(encoding="utf-8")]
    names, subtitle = title_lines(scene)
    records = list(chain.from_iterable(own for _, own in runs))
    figures = {"plot": roofline_figure(scene), "modules": modules_figure(records)}
    named = [(scene.run_name(index), environment) for index, (environment, _) in enumerate(runs)]
    table = _table(scene, runs)
    marks = ["Area: share of time"] if scene.is_profile else []
    if not scene.is_profile and 0 < len(scene.points) <= MAX_BARS:
        marks.append("Bars: 95 % CI of the median")
    drawn = {name: json.loads(figure.to_json()) for name, figure in figures.items() if figure}
    unknown = Word("flag", "An unknown flag; see its reason in the row.")
    flags = dict.fromkeys(chain.from_iterable(record.flags for record in records))
    words = [(flag, FLAGS.get(flag, unknown)) for flag in flags]
    words += [*BOUNDS.items(), *((name, COLUMNS[name]) for name in EXPLAINED)]
    colors = dict.fromkeys(re.findall(r"#[0-9A-Fa-f]{6}\b", json.dumps(drawn)))
    return template("page.html").render(
        title=one_line(title, 200) if title is not None else names,
        subtitle=subtitle,
        caption=caption(scene, marks),
        figures=list(drawn),
        has_rows=bool(records),
        verdicts=[known for known in verdicts if known["rows"]],
        not_compared=[known for known in verdicts if not known["rows"]],
        run_names={environment.run_id: name for name, environment in named},
        too_noisy=TOO_NOISY,
        machines=scene.machines,
        roofs=scene.roofs,
        runs=named,
        facts=FACTS,
        words=words,
        policy=policy(scripts),
        style=stylesheet(),
        data={
            "figures": drawn,
            "dark": {color: on_dark(color) for color in sorted(colors)},
            "table": table,
        },
        scripts=list(map(Markup, scripts)),
    )


def template(name: str) -> Template:
    from jinja2 import Environment as Templates
    from jinja2 import FileSystemLoader, StrictUndefined

    templates = Templates(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
    )
    templates.policies["json.dumps_kwargs"] = {"allow_nan": False, "separators": (",", ":")}
    return templates.get_template(name)


def stylesheet() -> Markup:
    """Return the style of all pages, which is not escaped."""
    from markupsafe import Markup

    return Markup((TEMPLATES / "page.css").read_text(encoding="utf-8"))


def _table(scene: Scene, runs: Sequence[Measured]) -> Object:
    points = {id(point.record): index for index, point in enumerate(scene.points)}
    rows: list[Object] = []
    for number, (environment, records) in enumerate(runs):
        for record, texts in zip(records, texts_of(table_cells(environment, records)), strict=True):
            known: Object = {"point": points.get(id(record)), "median_s": record.median_s}
            known |= {"details": "\n".join(describe(record))}
            rows.append(known | {"cells": {"run": scene.run_name(number)} | texts})
    titles = list(dict.fromkeys(chain.from_iterable(row["cells"] for row in rows)))
    for row in rows:
        row["cells"] = [row["cells"].get(title, "") for title in titles]
    return {"titles": titles, "rows": rows}


def policy(scripts: Sequence[str]) -> str:
    """Return the Content Security Policy (W3C, level 3): these scripts, no requests; Plotly needs
    inline styles.
    """
    hashes = [
        base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts
    ]
    allowed = " ".join(f"'sha256-{digest}'" for digest in hashes)
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data: "
        "blob:; base-uri 'none'; form-action 'none'"
    )


def verdicts_of(paths: Sequence[Path], chosen: Selection) -> list[Object]:
    """Return the comparisons of the first run with the others, or of the providers of a single run.

    Each is a JSON object with `runs` (ids of baseline and candidate), `headline`, `rows` with the
    keys of `results compare --format json`, `unmatched` and `notes`. Runs that cannot be compared
    have no rows, and a `headline` with the reason.
    """
    runs = [chosen.records_of(load_run(path)) for path in paths]
    if (
        len(runs) == 1
        and len({record.provider for record in runs[0].records if record.status == "ok"}) > 1
    ):
        return [_compared(runs[0], None)]
    return [_compared(runs[0], other) for other in runs[1:]]


def _compared(first: Run, other: Run | None) -> Object:
    known = {"runs": [run.environment.run_id for run in (first, other or first)]}
    try:
        compared = compare(first, other, CompareOptions(by=None if other else "provider"))
        if not compared.rows:
            raise StoreError(nothing_common(compared.unmatched))
    except StoreError as error:
        return known | {"headline": str(error), "rows": [], "unmatched": [], "notes": []}
    return known | {
        "headline": headlines(compared)[0],
        "rows": list(map(json_row, compared.rows)),
        "unmatched": list(map(describe_row, compared.unmatched)),
        "notes": list(compared.notes),
    }
