"""The lines of `python -m bench doctor` that need no measurement, and the verdict of those that were measured."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
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

BUSY_SHARE = 0.25
"""Load average, as a fraction of the cores, above which other processes are running."""

TICK_S = {"cpu": 1e-6, "cuda": 2e-6, "rocm": 2e-6}
"""Largest timer resolution that a sample of a millisecond tolerates: 0.1 % of it, 0.2 % on a GPU."""

COARSE_CHANGE_PCT = 5.0
"""Smallest detectable change above which a comparison on this machine says little."""

ENOUGH = {"published": 0.8, "datasheet": 0.6}
"""Minimum fraction of the expected value, by its kind: one shape is measured, and no datasheet is ever reached."""

FAR_OFF = 0.5
"""Fraction of the expected value below which something is wrong."""

REPORTED_FLAGS = ("not-captured", "above-roof", "throttled", "not-cold")
"""Flags of a row that matter here; small cases always carry others."""

PUBLISHED = Path(__file__).with_name("published.toml")


@dataclass(frozen=True)
class Finding:
    """One check and its result."""

    name: str
    status: str
    """`ok`, `note` or `bad`."""
    value: str
    """The result as text."""
    advice: str = ""
    """What to do about it."""
    measured: float | None = None
    """In SI base units."""
    unit: str | None = None
    expected: float | None = None
    source: str | None = None
    """Source of the expected value."""


@dataclass(frozen=True)
class SelfComparison:
    """One kernel timed as two providers."""

    comparison: Comparison
    smallest_change_pct: float
    settling: Settling
    case: str
    disturbed: str | None = None
    """What took the cores or the clock away during the comparison; None if nothing did."""


def finding(name: str, value: str, advice: str = "") -> Finding:
    """Return a finding: `note` if there is advice, else `ok`."""
    return Finding(name, NOTE if advice else OK, value, advice)


# ---- the host --------------------------------------------------------------------------------------------------------


def host_findings(facts: Mapping[str, Any], device: Device) -> list[Finding]:
    """Return the state of the host's cores; `facts` are those of `host.facts`."""
    cores, quota, load = facts["cores_allowed"], facts["cgroup_quota_cores"], facts["load_average"]
    threads = "" if device.threads is None else f", {device.threads} threads are used"
    found = [finding("cores", f"{cores} allowed{threads}")]
    if quota is not None:
        is_kept = (device.threads or 0) <= max(1.0, quota)
        advice = "fewer threads are used" if is_kept else "the threads are stopped again and again; use fewer"
        is_short = cores is not None and quota < cores
        text = f"the control group may use {quota:g} cores' worth of time"
        found.append(finding("cpu quota", text, advice if is_short else ""))
    if load is not None and cores:
        advice = "wait until nothing else runs; noisy rows are flagged `preempted`"
        found.append(finding("load", f"{load:g} over the last minute", advice if load > BUSY_SHARE * cores else ""))
    governor = facts["governor"]
    if governor is not None:
        is_slow = governor in ("powersave", "conservative") and not device.is_gpu
        found.append(finding("governor", governor, "the clock follows the load slowly: measure longer" * is_slow))
    return found


def tick_finding(tick_s: float, device_type: str) -> Finding:
    """Return whether the timer resolution is fine enough for samples of a millisecond."""
    advice = "short kernels are flagged `tick-limited`; give them larger cases"
    return finding("timer resolution", f"{tick_s * 1e9:.3g} ns", advice if tick_s > TICK_S[device_type] else "")


# ---- the GPU ---------------------------------------------------------------------------------------------------------


def gpu_findings(facts: Mapping[str, Any]) -> list[Finding]:
    """Return what NVML reports; `facts` are those of `gpu_state.facts`."""
    problem = facts["errors"].get("nvml")
    if problem:
        advice = "clocks, power and throttling will be missing from every row; times are not affected"
        return [finding("nvml", f"not readable: {problem}", advice)]
    return [*_clock_findings(facts), *_sharing_findings(facts), *_health_findings(facts)]


def _clock_findings(facts: Mapping[str, Any]) -> list[Finding]:
    found = []
    clock, most = facts["sm_clock_hz"], facts["max_sm_clock_hz"]
    if most is not None:
        now = "" if clock is None else f"{clock / 1e6:.0f} MHz now, "
        found.append(finding("SM clock", f"{now}{most / 1e6:.0f} MHz at most"))
    limit, default = facts["power_limit_w"], facts["power_limit_default_w"]
    if limit is not None and default is not None and limit < default:
        advice = "results are those of the lower limit; compare only with runs under it"
        found.append(finding("power limit", f"{limit:g} W, {default:g} W by default", advice))
    elif limit is not None:
        found.append(finding("power limit", f"{limit:g} W"))
    held = [event for event in facts["clock_events"] or () if event not in ("idle", "gpu_idle")]
    if held:
        found.append(finding("clock events", ", ".join(held), "the clock is limited now; see `throttle` of rows"))
    return found


def _sharing_findings(facts: Mapping[str, Any]) -> list[Finding]:
    found, name, others = [], "other processes", facts["other_processes"]
    # This process uses the GPU too. If none listed has its id, a container gives it another than the driver lists.
    hidden = 1 if facts.get("own_process_seen") is False else 0
    if others and len(others) == hidden:
        text = f"one compute process: {others[0]['pid']}; in a container it is this one, under its id on the host"
        found.append(finding(name, text, "if this is not a container, wait for it or stop it"))
    elif others:
        pids = ", ".join(str(process["pid"]) for process in others[:5])
        text = f"{len(others)} compute processes: {pids}" + ("; one of them may be this one" if hidden else "")
        found.append(Finding(name, BAD, text, "wait for them or stop them"))
    elif others is not None:
        found.append(finding(name, "none seen"))
    return found


def _health_findings(facts: Mapping[str, Any]) -> list[Finding]:
    rows = facts["remapped_rows"]
    if not rows:
        return []
    if rows.get("failed"):
        return [Finding("memory", BAD, "row remapping failed", "the card is beyond repair: have it replaced")]
    if rows.get("pending"):
        return [Finding("memory", BAD, "a row remapping is pending", "the GPU must be reset by its administrator")]
    return [finding("memory", "no row remapping pending")]


# ---- measurements ----------------------------------------------------------------------------------------------------


def noise_findings(compared: SelfComparison) -> list[Finding]:
    """Return whether the device settled, whether one kernel came out as fast as itself, and the detectable change."""
    settling, comparison = compared.settling, compared.comparison
    state = f"{'after' if settling.settled else 'not within'} {settling.seconds:.2g} s of work"
    advice = "something else changes the clock or takes the cores; look for it, and wait"
    found = [finding("settled", state, "" if settling.settled else advice)]
    if compared.disturbed:
        found.append(Finding("other work", BAD, compared.disturbed, "wait until nothing else runs, or stop it"))
    name, pairs = "one kernel against itself", f"{comparison.pairs} pairs of matmul {compared.case}"
    text = f"{comparison.verdict}: {comparison.reason} ({pairs})"
    advice = "too noisy for comparisons of 1 %: let nothing else run, or give a larger --budget"
    found.append(finding(name, text) if comparison.verdict == SAME else Finding(name, BAD, text, advice))
    change, advice = compared.smallest_change_pct, "a quieter machine, or more time for each comparison"
    name = "smallest change that would be seen"
    return [*found, finding(name, f"{change:.2g} %", advice if change > COARSE_CHANGE_PCT else "")]


def row_finding(record: Record, ceilings: Ceilings, is_large: bool) -> Finding:
    """Return whether the result of a row is right, its time, and for a large row its rate beside the expected one."""
    name = f"{record.op} {record.dtype} {record.case}, {record.provider}"
    if record.status in ("failed", "invalid"):
        return Finding(name, BAD, f"{record.status}: {record.reason}", "its result or its time cannot be used")
    if record.status != "ok" or record.median_s is None:
        return Finding(name, NOTE, f"{record.status}: {record.reason}")
    advice = "; ".join(
        f"{flag}: {record.flag_reasons.get(flag, '')}" for flag in record.flags if flag in REPORTED_FLAGS
    )
    if not is_large:
        value = f"{format_time(record.median_s)}; verified"
        return Finding(name, NOTE if advice else OK, value, advice, record.median_s, "s")
    if record.op == "matmul":
        found = judged(name, ceilings, "flops", record.dtype, (record.flops or 0) / record.median_s)
    else:
        moved = (record.bytes_read or 0) + (record.bytes_written or 0)
        found = judged(name, ceilings, "bandwidth", "copy", moved / record.median_s)
    status = NOTE if advice and found.status == OK else found.status
    return replace(found, status=status, advice=f"{found.advice} {advice}".strip())


def judged(name: str, ceilings: Ceilings, quantity: str, of: str, value: float) -> Finding:
    """Return the finding for a rate or a time, with a verdict if a published or datasheet value of the GPU is known."""
    from roofline.ceilings import QUANTITIES

    unit, known = QUANTITIES[quantity], expected_of(ceilings, quantity, of)

    def text(number: float) -> str:
        return format_time(number) if unit == "s" else format_rate(number, unit)

    if known is None:
        return Finding(name, OK, text(value), "", value, unit)
    expected, kind, source = known
    share = expected / value if unit == "s" else value / expected
    status, advice = verdict(share, kind)
    compared = f"{text(value)}, {format_percent(100 * share)} of the {text(expected)} expected ({kind})"
    return Finding(name, status, compared, advice, value, unit, expected, source)


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
