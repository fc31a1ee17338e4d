"""The findings of `python -m bench doctor`, from facts and measurements to a line each: ok, note or bad."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from results.show.table import format_percent, format_rate, format_time
from results.stats.comparison import SAME, Comparison

if TYPE_CHECKING:
    from bench.harness.device.device import Device
    from bench.harness.timing.protocol import Settling
    from results.record import Record
    from roofline.ceilings import Ceilings

OK, NOTE, BAD = "ok", "note", "bad"
"""Status of a finding: as it should be; worth knowing; measurements are wrong or too noisy until it is fixed."""

BUSY_SHARE = 0.25  # load average, as a fraction of the cores, above which other processes are running
TICK_S = {"cpu": 1e-6, "cuda": 2e-6, "rocm": 2e-6}  # largest timer resolution for samples of a millisecond
COARSE_CHANGE_PCT = 5.0  # smallest detectable change above which a comparison on this machine says little
ENOUGH = {"published": 0.8, "datasheet": 0.6}
"""Minimum fraction of the expected value, by its kind: one shape is measured, and no datasheet is ever reached."""

FAR_OFF = 0.5  # fraction of the expected value below which something is wrong
REPORTED_FLAGS = ("not-captured", "above-roof", "throttled", "not-cold")  # small cases always carry others
PUBLISHED = Path(__file__).with_name("published.toml")


@dataclass(frozen=True)
class Finding:
    """One check and its result; `measured` and `expected` in SI base units."""

    name: str
    status: str
    value: str
    advice: str = ""
    measured: float | None = None
    unit: str | None = None
    expected: float | None = None
    source: str | None = None
    """Source of the expected value."""


def finding(name: str, value: str, advice: str = "", is_bad: bool = False) -> Finding:
    """Return a finding: `bad`, or `note` if there is advice, or `ok`."""
    return Finding(name, BAD if is_bad else NOTE if advice else OK, value, advice)


# ---- the host and the GPU --------------------------------------------------------------------------------------------


def host_findings(facts: Mapping[str, Any], device: Device) -> Iterator[Finding]:
    """Yield the state of the host's cores; `facts` are `host.state`, `cores_allowed` and `cgroup_quota_cores`."""
    cores, quota, load = facts["cores_allowed"], facts["cgroup_quota_cores"], facts["load_average"]
    yield finding("cores", f"{cores} allowed" + (f", {device.threads} threads are used" if device.threads else ""))
    if quota is not None:
        is_kept = (device.threads or 0) <= max(1.0, quota)
        advice = "fewer threads are used" if is_kept else "the threads are stopped again and again; use fewer"
        is_short = cores is not None and quota < cores
        text = f"the control group may use {quota:g} cores' worth of time"
        yield finding("cpu quota", text, advice if is_short else "")
    if load is not None and cores:
        advice = "wait until nothing else runs; noisy rows are flagged `preempted`"
        yield finding("load", f"{load:g} over the last minute", advice if load > BUSY_SHARE * cores else "")
    if (governor := facts["governor"]) is not None:
        is_slow = governor in ("powersave", "conservative") and not device.is_gpu
        yield finding("governor", governor, "the clock follows the load slowly: measure longer" if is_slow else "")


def tick_finding(tick_s: float, device_type: str) -> Finding:
    """Return whether the timer resolution is fine enough for samples of a millisecond."""
    advice = "short kernels are flagged `tick-limited`; give them larger cases"
    return finding("timer resolution", f"{tick_s * 1e9:.3g} ns", advice if tick_s > TICK_S[device_type] else "")


def gpu_findings(facts: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield what NVML reports; `facts` are those of `gpu_state.facts`."""
    if problem := facts["errors"].get("nvml"):
        advice = "clocks, power and throttling will be missing from every row; times are not affected"
        yield finding("nvml", f"not readable: {problem}", advice)
        return
    clock_hz, max_hz = facts["sm_clock_hz"], facts["max_sm_clock_hz"]
    if max_hz is not None:
        now = "" if clock_hz is None else f"{clock_hz / 1e6:.0f} MHz now, "
        yield finding("SM clock", f"{now}{max_hz / 1e6:.0f} MHz at most")
    limit_w, default_w = facts["power_limit_w"], facts["power_limit_default_w"]
    if limit_w is not None and default_w is not None and limit_w < default_w:
        advice = "results are those of the lower limit; compare only with runs under it"
        yield finding("power limit", f"{limit_w:g} W, {default_w:g} W by default", advice)
    elif limit_w is not None:
        yield finding("power limit", f"{limit_w:g} W")
    if limiting := [event for event in facts["clock_events"] or () if event not in ("idle", "gpu_idle")]:
        yield finding("clock events", ", ".join(limiting), "the clock is limited now; see `throttle` of rows")
    if facts["other_processes"] is not None:
        yield _sharing_finding([process["pid"] for process in facts["other_processes"]], facts.get("own_process_seen"))
    if rows := facts["remapped_rows"]:
        if rows.get("failed"):
            yield finding("memory", "row remapping failed", "the card is beyond repair: have it replaced", is_bad=True)
        elif rows.get("pending"):
            advice = "the GPU must be reset by its administrator"
            yield finding("memory", "a row remapping is pending", advice, is_bad=True)
        else:
            yield finding("memory", "no row remapping pending")


def _sharing_finding(pids: list[int], is_own_seen: bool | None) -> Finding:
    name, is_hidden = "other processes", is_own_seen is False
    # This process uses the GPU too. If none listed has its id, a container gives it another than the driver lists.
    if not pids:
        return finding(name, "none seen")
    if is_hidden and len(pids) == 1:
        text = f"one compute process: {pids[0]}; in a container it is this one, under its id on the host"
        return finding(name, text, "if this is not a container, wait for it or stop it")
    text = f"{len(pids)} compute processes: {', '.join(map(str, pids[:5]))}"
    text += "; one of them may be this one" if is_hidden else ""
    return finding(name, text, "wait for them or stop them", is_bad=True)


# ---- measurements ----------------------------------------------------------------------------------------------------


def noise_findings(
    comparison: Comparison, change_pct: float, settling: Settling, case: str, disturbed: str | None
) -> Iterator[Finding]:
    """Yield whether the device settled, whether one kernel came out as fast as itself, and the detectable change.

    `disturbed` is what took the cores or the clock away during the comparison; None if nothing did.
    """
    state = f"{'after' if settling.settled else 'not within'} {settling.seconds:.2g} s of work"
    advice = "something else changes the clock or takes the cores; look for it, and wait"
    yield finding("settled", state, "" if settling.settled else advice)
    if disturbed:
        yield finding("other work", disturbed, "wait until nothing else runs, or stop it", is_bad=True)
    text, is_bad = f"{comparison.verdict}: {comparison.reason} ({comparison.pairs} pairs of matmul {case})", True
    advice = "too noisy for comparisons of 1 %: let nothing else run, or give a larger --budget"
    if comparison.verdict == SAME:
        advice, is_bad = "", False
    yield finding("one kernel against itself", text, advice, is_bad)
    advice = "a quieter machine, or more time for each comparison" if change_pct > COARSE_CHANGE_PCT else ""
    yield finding("smallest change that would be seen", f"{change_pct:.2g} %", advice)


def row_finding(record: Record, ceilings: Ceilings, is_large: bool) -> Finding:
    """Return whether the result of a row is right, its time, and the rate of a large row with the expected rate."""
    name = f"{record.op} {record.dtype} {record.case}, {record.provider}"
    if record.status in ("failed", "invalid"):
        return Finding(name, BAD, f"{record.status}: {record.reason}", "its result or its time cannot be used")
    if record.status != "ok" or record.median_s is None:
        return Finding(name, NOTE, f"{record.status}: {record.reason}")
    reasons = record.flag_reasons
    advice = "; ".join(f"{flag}: {reasons.get(flag, '')}" for flag in record.flags if flag in REPORTED_FLAGS)
    if not is_large:
        value = f"{format_time(record.median_s)}; verified"
        return replace(finding(name, value, advice), measured=record.median_s, unit="s")
    if record.op == "matmul":
        judged_row = judged(name, ceilings, "flops", record.dtype, (record.flops or 0) / record.median_s)
    else:
        moved = (record.bytes_read or 0) + (record.bytes_written or 0)
        judged_row = judged(name, ceilings, "bandwidth", "copy", moved / record.median_s)
    status = NOTE if advice and judged_row.status == OK else judged_row.status
    return replace(judged_row, status=status, advice=f"{judged_row.advice} {advice}".strip())


def judged(name: str, ceilings: Ceilings, quantity: str, of: str, value: float) -> Finding:
    """Return the finding for a rate or a time, with a verdict if a published or datasheet value of the GPU is known."""
    from roofline.ceilings import QUANTITIES

    unit, known = QUANTITIES[quantity], expected_of(ceilings, quantity, of)
    text = format_time(value) if unit == "s" else format_rate(value, unit)
    if known is None:
        return Finding(name, OK, text, "", value, unit)
    expected, kind, source = known
    share = expected / value if unit == "s" else value / expected
    status, advice = verdict(share, kind)
    expected_text = format_time(expected) if unit == "s" else format_rate(expected, unit)
    text += f", {format_percent(100 * share)} of the {expected_text} expected ({kind})"
    return Finding(name, status, text, advice, value, unit, expected, source)


def expected_of(ceilings: Ceilings, quantity: str, name: str) -> tuple[float, str, str] | None:
    """Return the expected value, its kind (`published` or `datasheet`) and its source; None if none is known."""
    for record in tomllib.loads(PUBLISHED.read_text(encoding="utf-8"))["record"]:
        if ceilings.slug in record["gpus"] and (record["quantity"], record["name"]) == (quantity, name):
            return record["value"], "published", record["source"]
    of = "memory" if quantity == "bandwidth" else name
    for entry in ceilings.entries:
        if (entry.quantity, entry.name, entry.kind) == (quantity, of, "datasheet"):
            return entry.value, "datasheet", entry.source
    return None


def verdict(share: float, kind: str) -> tuple[str, str]:
    """Return status and advice for a fraction of a `published` or `datasheet` value."""
    if kind == "datasheet" and share > 1:
        return BAD, "faster than the datasheet: the time, or the entry of the GPU, is wrong"
    if share < FAR_OFF:
        return BAD, "less than half: check clocks, power limit and other processes before measuring anything"
    if share < ENOUGH[kind]:
        return NOTE, "below what is expected: check the clock and the power limit"
    return OK, ""
