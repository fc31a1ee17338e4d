"""The two sides of a comparison: which runs and which providers, what they are called, whether they may be compared."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from results.compare.load import is_users, revision_text
from results.record import Environment, Record
from results.stats.comparison import DEFAULT_MARGIN, FASTER, SLOWER
from results.store.runfile import Run, StoreError

MODES = ("provider", "version", "git")
"""What can tell the candidate from the baseline, instead of the run."""

VERSION = re.compile(r".*-v\d+(-.*)?|.+:.+")
"""Providers that are versions of a kernel: `triton-v2`, `path/to/file.py:function`."""

USUAL_BASELINE = "torch"

SAME_MACHINE = ("clock_mode", "power_limit_w", "governor", "turbo")
"""Keys of the settings, the preflight or the device of a run that must agree where both runs tell them."""


class CompareError(StoreError):
    """The two cannot be compared; the message says why and what to do."""


@dataclass(frozen=True)
class CompareOptions:
    """How to compare."""

    by: str | None = None
    """One of `MODES`; None where the run tells candidate from baseline."""
    baseline: str | None = None
    """Name of the baseline's provider."""
    margin: float = DEFAULT_MARGIN
    force: bool = False
    """Whether runs that differ in what must agree are compared all the same."""

    @property
    def by_provider(self) -> bool:
        """Whether the provider tells candidate from baseline."""
        return self.by in ("provider", "version")


def check_request(first: Run, second: Run, request: CompareOptions, is_one_run: bool) -> None:
    """Raise CompareError for options that do not go with each other or with the runs."""
    if is_one_run and not request.by_provider:
        what = "--by git needs two runs" if request.by == "git" else "one run"
        raise CompareError(f"{what}: name a second one, or compare its providers: --by provider")
    if request.baseline is not None and not request.by_provider:
        raise CompareError(f"--baseline {request.baseline} names a provider: add --by provider")
    if request.by == "git":
        first_git, second_git = revisions(first, second)
        if None in (first_git, second_git):
            raise CompareError(
                "--by git: a run does not tell its revision (a function whose file git does not hold has none); "
                "leave --by away to compare run with run"
            )
        if first_git == second_git and not request.force:
            changed = _changed_sources(first, second)
            but = f", but {', '.join(changed)} changed: commit before measuring, or" if changed else ";"
            raise CompareError(f"--by git: both runs are of revision {first_git}{but} leave --by away to compare them")


def revision(environment: Environment) -> str | None:
    """Return the git revision of the code that measured, see `revision_text`."""
    return revision_text(environment.git)


def revision_of(one: Record, environment: Environment) -> str | None:
    """Return the git revision of the kernel that a record measured: a user's own is not that of the measuring code."""
    return revision_text(one.source_git) if is_users(one) else revision(environment)


def revisions(first: Run, second: Run) -> tuple[str | None, str | None]:
    """Return the revisions that tell two runs apart, None where they are not known.

    Those of the users' kernels where there are any; those of the measuring code, which holds all other kernels, where
    those of the users are alike or not known.
    """
    users = [
        dict.fromkeys(revision_text(one.source_git) for one in run.records if is_users(one)) for run in (first, second)
    ]
    pairs = [tuple(None if None in names else " + ".join(map(str, names)) for names in users)] if all(users) else []
    if all(any(not is_users(one) for one in run.records) for run in (first, second)):
        pairs.append((revision(first.environment), revision(second.environment)))
    told = [pair for pair in pairs if None not in pair]
    different = [pair for pair in told if pair[0] != pair[1]]
    before, after = (*different, *told, *pairs, (None, None))[0]
    return before, after


def _changed_sources(first: Run, second: Run) -> list[str]:
    before, after = ({one.provider: one.source_sha256 for one in run.records} for run in (first, second))
    return [name for name in before if None not in (known := (before[name], after.get(name))) and known[0] != known[1]]


def source_words(before: Record, after: Record, verdict: str) -> str:
    """Return what the hashes of a kernel's file add to the reason of a verdict, nothing where that is not worth a word.

    Args:
        before: a record of the baseline.
        after: a record of the candidate.
        verdict: of the two, by their times.
    """
    if before.provider != after.provider or None in (before.source_sha256, after.source_sha256):
        return ""
    revision = revision_text(before.source_git)
    is_one_revision = revision == revision_text(after.source_git)
    if before.source_sha256 != after.source_sha256:
        return f"; its source file changed{f' at revision {revision}' if revision and is_one_revision else ''}"
    return "; its source file is the same" if verdict in (FASTER, SLOWER) or not is_one_revision else ""


def baseline_side(run: Run, request: CompareOptions) -> tuple[str | None, list[Record]]:
    """Return the provider that is the baseline, where providers are compared, and the records of that side."""
    if not request.by_provider:
        return None, list(run.records)
    names = list(dict.fromkeys(one.provider for one in run.records))
    if request.by == "version":
        names = sorted((name for name in names if VERSION.fullmatch(name)), key=_version_number)
    if not names:
        raise CompareError(f"{run.path}: no provider is a version of a kernel (triton-v1, file.py:function)")
    usual = USUAL_BASELINE if USUAL_BASELINE in names else names[0]
    chosen = request.baseline or usual
    if chosen not in names:
        raise CompareError(f"--baseline {chosen} is not among the providers: {', '.join(names)}")
    return chosen, [one for one in run.records if one.provider == chosen]


def _version_number(name: str) -> tuple[int, str]:
    found = re.search(r"-v(\d+)", name)
    return (int(found[1]) if found else 0, name)


def candidate_side(run: Run, request: CompareOptions, baseline: str | None) -> list[Record]:
    """Return the records to hold against the baseline, a provider's name or None."""
    if baseline is None:
        return list(run.records)
    found = [one for one in run.records if one.provider != baseline]
    if request.by == "version":
        found = [one for one in found if VERSION.fullmatch(one.provider)]
    if not found:
        what = "version of a kernel" if request.by == "version" else "provider"
        raise CompareError(f"{run.path}: there is no other {what} than {baseline} to compare with it")
    return found


def labels_of(first: Run, second: Run, request: CompareOptions, baseline: str | None) -> tuple[str, str]:
    """Return what the two sides are called."""
    if baseline is not None:
        others = list(dict.fromkeys(one.provider for one in second.records if one.provider != baseline))
        if request.by == "version":
            others = [name for name in others if VERSION.fullmatch(name)]
        return baseline, others[0] if len(others) == 1 else f"{len(others)} providers"
    before, after = revisions(first, second)
    if request.by == "git" or (None not in (before, after) and before != after):
        return str(before), str(after)
    return first.environment.run_id, second.environment.run_id


def differences(first: Environment, second: Environment, force: bool) -> list[str]:
    """Return what else differs between two runs, worth a note.

    Raises:
        CompareError: they differ in what must agree, and it is not forced.
    """
    refused = [
        f"{name} {before} against {after}"
        for name, before, after in (
            ("GPU" if first.device["type"] != "cpu" else "device", first.device["name"], second.device["name"]),
            ("device type", first.device["type"], second.device["type"]),
            ("threads", first.device.get("threads"), second.device.get("threads")),
            *((key, _fact(first, key), _fact(second, key)) for key in SAME_MACHINE),
        )
        if before is not None and after is not None and before != after
    ]
    if refused and not force:
        raise CompareError(f"not the same machine: {'; '.join(refused)}; --force compares them all the same")
    notes = [f"compared by force: {text}" for text in refused]
    names = dict.fromkeys((*first.versions, *second.versions))
    changed = [
        f"{name} {first.versions.get(name)} to {second.versions.get(name)}"
        for name in names
        if first.versions.get(name) != second.versions.get(name)
    ]
    return notes + ([f"other versions: {', '.join(changed)}"] if changed else [])


def _fact(environment: Environment, key: str) -> Any:
    places = (environment.settings, environment.preflight, environment.device)
    return next((place[key] for place in places if place.get(key) is not None), None)
