"""The module tree of a profile: how long each module of a model and each operation in it takes, as flame bars."""

from __future__ import annotations

from typing import Any

from results.record import Record
from roofline.plot.scene import PlotMachine

WHOLE = "step"
OUTSIDE = "outside of any module"


def modules_of(machines: tuple[PlotMachine, ...]) -> list[dict[str, Any]]:
    """Return the nodes of the tree, each after its parent; none where no record is a row of a profile.

    A node has `id`, `parent` (the index of a node, None for the root), `name`, `path` from the root, `time_s` with all
    that is in it, and `calls`.
    """
    nodes: dict[tuple[str, ...], dict[str, Any]] = {}
    for record in (record for machine in machines for record in machine.records):
        time_s, count = record.extra.get("time_s"), record.extra.get("count")
        if "module" not in record.extra or not isinstance(time_s, int | float) or not time_s > 0:
            continue
        path = (WHOLE, *_path(record), record.op)
        for depth in range(1, len(path) + 1):
            place = path[:depth]
            parent = nodes[place[:-1]]["id"] if depth > 1 else None
            node = nodes.setdefault(
                place,
                {
                    "id": len(nodes),
                    "parent": parent,
                    "name": place[-1],
                    "path": " › ".join(place),
                    "time_s": 0.0,
                    "calls": 0,
                },
            )
            node["time_s"] += time_s
            node["calls"] += count if isinstance(count, int) and depth == len(path) else 0
    return list(nodes.values())


def _path(record: Record) -> tuple[str, ...]:
    """Return the modules around an operation, from the outside in; `layers.*` is one, the sum of its layers."""
    parts: list[str] = []
    for part in filter(None, str(record.extra["module"] or "").split(".")):
        if part == "*" and parts:
            parts[-1] += ".*"
        else:
            parts.append(part)
    return tuple(parts) or (OUTSIDE,)
