"""The result of `bench.sweep`: a DataFrame that draws its rates by size."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd  # noqa: TID253  # the first sweep imports this module

from bench.harness.cli.arguments import UsageError
from results.compare.flags import LOST_TIME
from results.show.picture import save_picture
from roofline.picture.charts import draw_lines

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAMES = {"bytes_per_s": "B/s", "flops_per_s": "FLOP/s", "median_s": "seconds"}


class SweepFrame(pd.DataFrame):
    """A row for each function, shape and dtype."""

    def plot(  # type: ignore[override]  # `pd.DataFrame(frame).plot` is that of pandas
        self, path: Path | str | None = None, y: str = "bytes_per_s", theme: str = "light"
    ) -> Figure:
        """Plot a column by size, a line for each function, as `triton.testing.perf_report` does.

        The size is the extent that varies; if several do, their product. `y` is `bytes_per_s`,
        `flops_per_s` or `median_s`. The path ends in .png, .svg or .pdf; a notebook shows what is
        returned.
        """
        if y not in NAMES or self[y].isna().all():
            raise UsageError(f"no row has {y!r:.60}; use y= with one of {', '.join(NAMES)}")
        timed = self[self[y].notna()]
        extents = timed.filter(like="shape_d")
        sizes = extents.loc[:, extents.nunique() > 1].T.drop_duplicates().prod()
        lines = {}
        for names, rows in timed.groupby(["provider", "dtype"], sort=False):
            points = zip(sizes[rows.index].astype(int), rows[y], strict=True)
            lines[" ".join(map(str, names))] = sorted(points)
        disturbed = timed["flags"].str.contains("|".join(LOST_TIME)).sum()
        words = [*timed["device_slug"].unique(), *timed["cache"].unique()]
        if disturbed:
            words.append(f"other work took time from {disturbed} of {len(timed)} points")
        figure = draw_lines(NAMES[y], "size", NAMES[y], lines, theme, ", ".join(words))
        figure.axes[0].set_ylabel("")  # each tick has the unit
        if path is not None:
            save_picture(figure, Path(path))
        return figure
