"""KEEP: the record of one measurement, the store, statistics, comparison.

The tables, comparisons and exports import `roofline.model`, which evaluates records against limits.

From Python, `results.load` returns saved runs as a pandas frame, and `results.StoreError` is what
it raises.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

    from results.store.runfile import StoreError as StoreError

__all__ = ["StoreError", "load"]


def load(
    run: str | os.PathLike[str] = "latest",
    *,
    runs: str | os.PathLike[str] | None = None,
    op: str | Iterable[str] = (),
    dtype: str | Iterable[str] = (),
    case: str | Iterable[str] = (),
    provider: str | Iterable[str] = (),
    machine: str | None = None,
    since: str | None = None,
) -> pd.DataFrame:
    """Return saved measurements as a pandas frame: a row for each record, with what it means on its
    machine.

    Columns are in SI base units: `median_s`, `ci95_low_s` and `ci95_high_s` are seconds per launch,
    `samples_s` the list of all samples, `flops` and `bytes_*` counts of one launch, `flops_per_s`
    and `bytes_per_s` rates; `mfu` and `mbu` are fractions, `roofline_pct` percent. What is not
    known is missing. Lines of a file that cannot be used are told by a warning.

    Args:
        run: the path of a run file; a folder of them, all of which are read; or `latest`, a run's
            id or the beginning of one, or a git revision, as `python -m results show` takes it.
        runs: the folder in which runs are found by name; by default where all are kept.
        op: only these ops, a name or several; so are the next three.
        dtype: only these dtypes.
        case: only these cases, as a table names them.
        provider: only these providers.
        machine: of a folder, or for `latest`: only runs of this machine, as
            `python -m results list` names it.
        since: the same, only runs since then: `30m`, `12h`, `2d`, `1w` ago, or a date such as
            `2026-11-20`.

    Raises:
        StoreError: there is no such run, or it cannot be read.
        ValueError: `since` is no time.
    """
    import warnings
    from pathlib import Path

    from results.show.rows import to_frame
    from results.store.runfile import StoreError
    from results.store.runs import Selection, list_runs
    from results.store.runs import since as moment

    since_s = None if since is None else moment(since)
    given = {"op": op, "dtype": dtype, "case": case, "provider": provider}
    selected = {
        name: frozenset([value] if isinstance(value, str) else value)
        for name, value in given.items()
    }
    chosen = Selection(selected, machine, since_s)
    folder = Path(runs) if runs is not None else None
    names = [os.fspath(run)]
    if Path(run).is_dir():
        names = [str(each.path) for each in list_runs(Path(run)) if each.error or chosen.fits(each)]
        if not names:
            raise StoreError(f"no run in {run} has a matching record")
    loaded = [chosen.load(name, folder) for name in names]
    for each in loaded:
        for problem in each.problems:
            warnings.warn(problem, stacklevel=2)
    return to_frame(loaded)


def __getattr__(name: str) -> Any:
    """Return `StoreError`, imported when it is first asked for: `import results` takes the standard
    library alone.
    """
    if name == "StoreError":
        from results.store.runfile import StoreError

        return StoreError
    raise AttributeError(f"module 'results' has no attribute '{name}'")
