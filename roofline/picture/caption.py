"""Title and caption of a roofline plot, and its arrows. The caption counts what is not drawn."""

from __future__ import annotations

import re
from collections import Counter
from itertools import pairwise

from results.show.terminal import one_line
from roofline.picture.labels import MAX_LABELED_SERIES
from roofline.picture.scene import Point, Scene
from roofline.picture.style import short_case

VERSION = re.compile(r"(.*?)[-_ ]?v(\d+)")
"""Name and version of a provider such as `triton-v2`."""


def version_steps(scene: Scene) -> list[tuple[Point, Point]]:
    """Return the pairs of points to connect by arrows: consecutive versions or runs."""
    if len(scene.points) > MAX_LABELED_SERIES or scene.is_profile:
        return []
    groups: dict[tuple[object, ...], list[tuple[str | int, Point]]] = {}
    for point in scene.points:
        record = point.record
        case = (point.machine, record.op, record.dtype, record.case, point.detail, record.cache)
        if match := VERSION.fullmatch(record.provider):
            groups.setdefault((*case, point.run, match[1], "version"), []).append((int(match[2]), point))
        start = scene.runs[point.run].started_at
        groups.setdefault((*case, record.provider, "run"), []).append((start, point))
    steps = []
    for group in groups.values():
        ordered = sorted(group, key=lambda entry: entry[0])
        steps += [(old, new) for (before, old), (after, new) in pairwise(ordered) if before != after]
    return steps


def title_lines(scene: Scene) -> tuple[str, str]:
    """Return the title (machines) and the subtitle (operations and kinds of ceilings)."""
    is_overlay = len(scene.machines) > 1
    names = ", ".join(one_line(known.slug if is_overlay else known.name, 60) for known in scene.machines)
    kinds = " and ".join(filter(None, (", ".join(scene.kinds[:-1]), scene.kinds[-1])))
    if not scene.points:
        return names, f"Roofline: {kinds} ceilings"
    ops, cases, dtypes, providers = scene.names.values()
    words = [one_line(ops[0]) if len(ops) == 1 else f"{len(ops)} operations"]
    if len(cases) == 1 and len(scene.points) > 1:
        words.append(short_case(cases[0]))
    elif scene.shared:
        words.append(one_line(scene.shared.replace(":", " "), 40))
    words += [one_line(dtypes[0], 12)] if len(dtypes) == 1 else []
    words += [f"by {one_line(providers[0], 48)}"] if len(providers) == 1 else []
    return names, f"Roofline: {' '.join(words)}, under {kinds} ceilings"


def caption(scene: Scene, unlabeled: int = 0, without: tuple[str, ...] = ()) -> str:
    """Return the caption: provenance, meaning of the marks, and what is not drawn.

    `without` are first words of the explanations of marks that the renderer does not draw, such as `Bars`.
    """
    parts = []
    if scene.points:
        parts += [_provenance(scene), *_how_points_are_drawn(scene)]
        doubts = Counter(flag for point in scene.points for flag in point.doubts)
        if doubts:
            parts.append("Crossed out: " + ", ".join(f"{count} {one_line(flag, 24)}" for flag, count in doubts.items()))
    elif "datasheet" in scene.kinds:
        parts.append("Dense peaks, without structured sparsity")
    if above := [point.excess for point in scene.points if point.excess]:
        causes = one_line("; ".join(dict.fromkeys(above)), 240)
        mark = "Above a ceiling" if scene.is_profile or "Ringed" in without else "Ringed"
        parts.append(f"{mark}: {len(above)} {causes}")
    parts = [part for part in parts if not part.startswith(without)]
    if unlabeled:
        parts.append(f"Without a label: {unlabeled} of {len(scene.points)} points")
    if scene.left_out:
        parts.append("Not drawn: " + ", ".join(f"{count} {reason}" for reason, count in scene.left_out.items()))
    notes = [one_line(known.note, 240) for known in scene.machines if known.note]
    parts += [note[:1].upper() + note[1:] for note in notes]
    return " ".join(part if part.endswith("…") else f"{part.rstrip('.')}." for part in parts)


def _how_points_are_drawn(scene: Scene) -> list[str]:
    if scene.is_profile:
        drawn_pct = 100 * sum(point.share or 0 for point in scene.points)
        module = "module, " * scene.has_modules
        return [f"Labels: {module}operation, share of time", f"Area: that share, {drawn_pct:.0f} % in all points"]
    share = ", share of the roofline" if any(point.roofline_pct is not None for point in scene.points) else ""
    if share and any(len(known.mixes) > 1 for known in scene.machines):
        share += " at its own mix of reads and writes"
    parts = [f"Labels: shape{share}", "Bars: 95 % CI of the median"]
    if version_steps(scene):
        parts.append("Arrows: from version to version, or from run to run")
    if any(point.cap for point in scene.points):
        parts.append("Caps: FLOPs over the launch floor, if below the roof")
    if any(roof.ceiling.band for roof in scene.roofs if not roof.is_mix):
        parts.append("Bands: p5 to p95 of the samples behind a measured roof, or the 95 % CI of their median")
    return parts


def _provenance(scene: Scene) -> str:
    versions = [
        f"{name} {one_line(str(run.versions[name]), 24)}"
        for run in scene.runs
        for name in ("torch", "triton", "cuda", "driver")
        if run.versions.get(name)
    ]
    threads = [f"{run.device['threads']} threads" for run in scene.runs if run.device.get("threads")]
    caches = sorted({f"{point.record.cache} cache" for point in scene.points if point.record.cache})
    fills = sorted({f"{one_line(point.record.fill, 12)} data" for point in scene.points if point.record.fill})
    days = sorted({one_line(run.started_at[:10], 10) for run in scene.runs})
    when = " to ".join(dict.fromkeys((days[0], days[-1])))
    return ", ".join([*dict.fromkeys(versions), *dict.fromkeys(threads), *caches, *fills, when])
