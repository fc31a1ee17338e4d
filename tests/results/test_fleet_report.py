"""`bench fleet-report`: verdicts, causes and outputs on synthetic fleets with known slow
devices.
"""

import json
import math
import os
import random
from statistics import median_high, median_low

import pytest
from scipy import stats

from bench.__main__ import main
from results.fleet import devices as reading
from results.fleet import judge as judging
from results.fleet.devices import read_fleet
from results.fleet.judge import judge
from results.record import Rank
from tests.validation.fleet_faults import FAULTS, Fault, Fleet, outcome
from tests.validation.fleet_generator import (
    CLASSES,
    device_lines,
    environment,
    fleet,
    record,
)


def written(directory, files):
    directory.mkdir(exist_ok=True)
    for name, content in files.items():
        (directory / name).write_bytes(content)
    return directory


def small(tmp_path, ranks, size=16, **unlike):
    """Write 16 ranks of healthy devices, with other lines for some of them:
    `{rank: options of device_lines}`.
    """
    rng = random.Random(7)
    for rank in range(size):
        lines = device_lines(rng, rank, size, **(unlike | ranks.get(rank, {})))
        (tmp_path / f"{rank}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return tmp_path


def edited(directory, rank, change, name=None):
    """Change the lines of a rank's file, or write them to another one."""
    lines = [json.loads(line) for line in (directory / f"{rank}.jsonl").read_text().splitlines()]
    change(lines)
    path = directory / (name or f"{rank}.jsonl")
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def judged(directory, *history):
    devices, earlier, notes = read_fleet([directory], history)
    return judge(devices, earlier), notes


def by_rank(directory, *history):
    return {
        finding.device.fleet.rank: finding
        for finding in judged(directory, *history)[0]
        if finding.device
    }


def not_ok(directory, *history):
    return {
        rank: f.verdict for rank, f in by_rank(directory, *history).items() if f.verdict != "ok"
    }


def test_slow_devices_are_found_with_their_cause(tmp_path):
    files, slow = fleet(1, nodes=20, slow_share=0.05)
    findings, notes = judged(written(tmp_path, files))
    found = {f.device.uuid: f.rule.cause for f in findings if f.verdict != "ok"}
    assert found == slow == found | slow
    assert set(CLASSES) <= set(found.values())
    assert not notes


@pytest.mark.parametrize("name", FAULTS)
def test_faults_of_field_studies_are_found_for_their_cause(name):
    counts = outcome(name, 0, nodes=1 + (FAULTS[name][0] == "node"))
    assert counts["found"] == counts["faulty"]
    assert counts["named"] == counts["caused"]
    assert counts["false"] == 0


def test_a_slot_of_an_older_generation_is_no_fault(tmp_path):
    slots = Fleet(seed=1, slot_generation=4)
    chip, host, _, copy = slots.natural[3]
    slots.natural[3] = chip, host, -0.03, copy
    slots.write(tmp_path, {})
    assert not_ok(tmp_path) == {}


def test_a_low_clock_within_the_natural_spread_is_no_fault_if_power_caps_it(tmp_path):
    Fleet(seed=2, spread=0.03).write(tmp_path, {})
    assert not_ok(tmp_path) == {}


def test_what_is_expected_and_missing_is_named(tmp_path, capsys):
    small(tmp_path, {}, size=7)
    assert main(["fleet-report", str(tmp_path), "--expect", "7", "--hosts", "n0000"]) == 0
    words = ["--expect", "8", "--hosts", "n0000", "n0001", "--format", "json"]
    capsys.readouterr()
    assert main(["fleet-report", str(tmp_path), *words]) == 3
    found = json.loads(capsys.readouterr().out)["fleet"]
    assert [(entry["node"], entry["verdict"], entry["evidence"]) for entry in found] == [
        ("n0001", "unmeasured", ["no device of this host"]),
        ("", "unmeasured", ["8 devices expected, 7 measured: 7 on n0000"]),
    ]
    with pytest.raises(SystemExit):
        main(["fleet-report", str(tmp_path), "--expect", "0"])


def test_one_of_two_devices_that_lost_its_rows_is_not_ok(tmp_path):
    small(tmp_path, {}, size=2)
    edited(tmp_path, 1, lambda lines: lines.__delitem__(slice(3, None)))
    assert not_ok(tmp_path) == {1: "unmeasured"}


def test_ranks_with_other_threads_are_other_groups(tmp_path):
    small(tmp_path, {rank: {"cause": "unknown", "loss": 0.4} for rank in (6, 7)}, size=8)
    for rank in range(8):
        threads = 1 if rank in (6, 7) else 2
        edited(tmp_path, rank, lambda lines, n=threads: lines[0]["device"].update(threads=n))
    findings, _ = judged(tmp_path)
    assert findings[0].evidence == ["threads: 2 on 6, 1 on 2 devices"]
    assert "slow" not in not_ok(tmp_path).values()


def test_a_setting_of_the_clocks_counts_beside_a_counter_of_another_cause(tmp_path):
    small(tmp_path, {5: {"cause": "locked clock", "loss": 0.04}}, spread=0.02)
    assert by_rank(tmp_path)[5].rule.cause == "locked clock"


def test_a_slower_device_does_not_hide_another(tmp_path):
    faults = {3: {"cause": "memory", "loss": 0.6}, 9: {"cause": "memory", "loss": 0.08}}
    assert not_ok(small(tmp_path, faults)) == {3: "slow", 9: "slow"}


def test_a_slow_node_is_reported_once_and_its_devices_relative_to_it(tmp_path):
    rng = random.Random(3)
    for rank in range(80):
        node_loss, cause = (0.1, "memory" if rank == 18 else None) if 16 <= rank < 24 else (0, None)
        lines = [
            *device_lines(
                rng,
                rank,
                80,
                node_loss=node_loss,
                spread=0.003,
                cause=cause,
                loss=0.1 * bool(cause),
            )
        ]
        for line in lines[1:] if node_loss else ():
            line["telemetry"]["sm_clock_hz"] *= 1 - node_loss
        (tmp_path / f"{rank}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    findings, _ = judged(tmp_path)
    (node,) = [finding for finding in findings if not finding.device]
    assert (node.node, node.verdict, node.fell) == ("n0002", "slow", ["tensor"])
    assert not_ok(tmp_path) == {18: "slow"}
    member = by_rank(tmp_path)[17]
    assert member.evidence == ["n0002 is slow as a whole"]
    # Relative, too.
    assert all(abs(row.clock) < 0.03 for row in member.rows if row.metric.ceiling == "tensor")


def test_a_fall_in_one_phase_without_a_cause_is_suspect(tmp_path):
    def times(phase, factor):
        def change(lines):
            for line in lines:
                if line.get("op") == "copy" and line["options"]["phase"] == phase:
                    line |= {
                        "median_s": factor * line["median_s"],
                        "ci95_s": [factor * end for end in line["ci95_s"]],
                    }

        return change

    small(tmp_path, {})
    edited(tmp_path, 5, times("together", 1.2))
    assert not_ok(tmp_path) == {5: "suspect"}
    edited(
        tmp_path, 5, lambda lines: lines[0]["fleet"]["health"]["remapped_rows"].update(pending=1)
    )
    assert not_ok(tmp_path) == {5: "slow"}  # the cause confirms it
    edited(tmp_path, 5, times("solo", 0.6))
    assert not_ok(tmp_path) == {5: "suspect"}  # a device that is faster alone was disturbed


@pytest.mark.parametrize(("p_value", "verdict"), [(0.6, "suspect"), (1.4, "ok")])
def test_slow_in_one_of_two_phases_counts_both_tests(p_value, verdict):
    """16 devices, of which one is slow in one phase. Its p value is that of two tests, by
    Bonferroni: it is found by Benjamini and Hochberg's procedure only up to half of the limit of
    one test. `p_value` is a factor on that half.
    """
    others = [0.004 * step for step in range(-7, 8)]
    scale, degrees = scale_of([*others, -1.0])
    slow = scale * stats.t.ppf(p_value * 0.05 / 16 / 2, degrees)
    center = median_high([*others, slow])
    assert slow < math.log(0.98)
    solo = [*others, slow + center]
    together = [min(0.02, abs(value)) for value in solo]
    assert verdicts_of(solo, together) == dict.fromkeys(range(16), "ok") | {15: verdict}


def test_a_loss_in_all_phases_is_slow_if_it_is_significant_in_one():
    alike = [0.001 * step for step in range(-7, 8)]
    found = verdicts_of([*alike, -0.05], [*[0.003 * step for step in range(-7, 8)], -0.04])
    assert found == dict.fromkeys(range(16), "ok") | {15: "slow"}


def verdicts_of(solo, together):
    """Return the verdict of each device, given the logarithms of its rates in both phases."""
    devices = []
    for index, rates in enumerate(zip(solo, together, strict=True)):
        rank = Rank(rank=index, node=str(index), world_size=16)
        device = reading.Device("run", 0.0, rank, f"GPU-{index}", ("gpu",) * 6)
        for phase, rate in zip(reading.PHASES, rates, strict=True):
            device.readings[METRIC, phase] = reading.Reading(
                METRIC, phase, rate, 1e-4, 1e-4, None, rate
            )
        devices.append(device)
    return {finding.device.fleet.rank: finding.verdict for finding in judge(devices, {})}


def scale_of(values):
    """Return scale and degrees of freedom: 1.4826 times the median absolute deviation with the
    factor n / (n - 0.8), moderated by 12 degrees of freedom of a spread of 1 %.
    """
    center = median_high(values)
    count = len(values)
    deviation = 1.4826 * median_low(abs(value - center) for value in values) * count / (count - 0.8)
    degrees = 0.37 * (count - 1)
    scale = math.sqrt((12 * 0.01**2 + degrees * deviation**2) / (12 + degrees))
    return scale, 12 + degrees


METRIC = reading.Metric("tensor", "matmul", "torch", "bf16", "4096x4096x4096", None)


def test_slow_samples_with_a_wide_interval_are_unstable(tmp_path):
    def disturbed(lines):
        for line in lines:
            if line.get("op") == "copy":
                middle = line["median_s"]
                samples_s = [middle] * 7 + [1.5 * middle] * 3
                line |= {"samples_s": samples_s, "ci95_s": [0.95 * middle, 1.05 * middle]}

    edited(small(tmp_path, {}), 5, disturbed)
    assert not_ok(tmp_path) == {5: "unstable"}
    edited(tmp_path, 5, lambda lines: lines.__delitem__(slice(3, None)))
    assert not_ok(tmp_path) == {5: "unmeasured"}  # which the exit code shows


def test_facts_that_all_peers_have_explain_nothing(tmp_path):
    small(tmp_path, {5: {"cause": "locked clock", "loss": 0.15}})
    for rank in range(16):
        edited(
            tmp_path,
            rank,
            lambda lines: [line["telemetry"]["throttle"].update(thermal=0.3) for line in lines[1:]],
        )
    assert by_rank(tmp_path)[5].rule.cause == "locked clock"


@pytest.mark.parametrize(("size", "verdict"), [(1, "unmeasured"), (2, "suspect"), (8, "slow")])
def test_few_peers(tmp_path, size, verdict):
    small(tmp_path, {0: {"cause": "unknown", "loss": 0.4}}, size=size)
    assert not_ok(tmp_path) == {0: verdict}
    assert ("no peers" in by_rank(tmp_path)[0].evidence) == (size == 1)


def test_another_device_has_no_peers(tmp_path):
    small(tmp_path, {})
    edited(tmp_path, 2, lambda lines: lines[0]["device"].update(name="NVIDIA A100"))
    edited(tmp_path, 6, lambda lines: lines[0]["fleet"]["health"].update(driver="590"))
    findings, _ = judged(tmp_path)
    assert {f.device.fleet.rank: f.evidence for f in findings if f.verdict == "unmeasured"} == {
        2: ["no peers"]
    }
    assert [f.evidence for f in findings if f.verdict == "mixed"] == [
        ["device: NVIDIA H100 80GB HBM3 on 15, NVIDIA A100 on 1 devices"],
        ["driver: 580.95.05 on 15, 590 on 1 devices"],
    ]


def test_rows_of_another_definition_are_not_compared(tmp_path):
    small(tmp_path, {})
    edited(tmp_path, 2, lambda lines: [line.update(op_sha256="3:other") for line in lines[1:]])
    assert not_ok(tmp_path) == {2: "unmeasured"}


def test_failed_wrong_and_missing_rows(tmp_path):
    small(tmp_path, {})
    dead = record("matmul", 1.0, "together") | {"status": "failed", "reason": "killed by signal 9"}
    edited(tmp_path, 1, lambda lines: lines.append(dead))
    edited(tmp_path, 2, lambda lines: lines.append(dead | {"status": "invalid", "reason": "wrong"}))
    edited(tmp_path, 3, lambda lines: lines.__delitem__(slice(1, None)))
    (tmp_path / "4.jsonl").unlink()
    edited(tmp_path, 5, lambda lines: lines.__delitem__(slice(3, None)))  # killed after two rows
    found = by_rank(tmp_path)
    assert not_ok(tmp_path) == {
        1: "unmeasured",
        2: "wrong",
        3: "unmeasured",
        4: "unmeasured",
        5: "unmeasured",
    }
    assert (
        found[5]
        .evidence[0]
        .startswith("not measured, unlike peers: launch solo, launch together, ")
    )
    assert found[1].evidence == ["matmul together failed: killed by signal 9"]
    assert (found[2].rule.cause, found[2].severity) == ("wrong result", "ISOLATE")
    assert found[2].fell == ["tensor"]
    assert main(["fleet-report", str(tmp_path)]) == 1
    assert (found[4].device.fleet.node, found[4].evidence) == ("n0000", ["no file of this rank"])


def test_a_missing_rank_has_no_wrong_results_of_its_neighbor(tmp_path):
    small(tmp_path, {})
    wrong = record("matmul", 1.0, "together") | {"status": "invalid", "reason": "wrong"}
    edited(tmp_path, 2, lambda lines: lines.append(wrong))
    (tmp_path / "3.jsonl").unlink()
    assert not_ok(tmp_path) == {2: "wrong", 3: "unmeasured"}


def test_no_rank_is_missing_if_their_number_is_unknown(tmp_path):
    small(tmp_path, {})
    for rank in range(16):
        edited(tmp_path, rank, lambda lines: lines[0]["fleet"].update(world_size=None))
    (tmp_path / "0.jsonl").unlink()
    assert not_ok(tmp_path) == {}


def test_the_drivers_advice_raises_the_severity(tmp_path):
    small(tmp_path, {3: {"cause": "power cap", "loss": 0.1}})
    assert by_rank(tmp_path)[3].severity == "MONITOR"
    edited(tmp_path, 3, lambda lines: lines[0]["fleet"]["health"].update(recommended_action=2))
    assert by_rank(tmp_path)[3].severity == "REBOOT"


def weeks(tmp_path, losses, everywhere=()):
    """Write a run of 16 devices each week, in which rank 5 loses a fraction and all others the one
    of `everywhere`; return the directories.
    """
    for week, loss in enumerate(losses):
        (tmp_path / str(week)).mkdir()
        common = everywhere[week] if everywhere else 0.0
        fleet_of_week = Fleet(seed=1, nodes=2, spread=0.003)
        started = f"2026-11-{week + 1:02}T12:00:00+00:00"
        faults = {5: Fault(all_rows=1 - loss)}
        fleet_of_week.write(tmp_path / str(week), faults, started, 1 - common)
    return [tmp_path / str(week) for week in range(len(losses))]


def drifts_of(finding):
    return [row.rate for row in finding.rows if "earlier" in row.phase]


def test_a_device_drifts_if_it_falls_for_three_runs_more_than_its_peers(tmp_path):
    runs = weeks(tmp_path, [0, 0, 0, 0.023, 0.023, 0.023])
    assert drifts_of(by_rank(runs[4], *runs[:4])[5]) == []
    now = by_rank(runs[5], *runs[:5])
    assert now[5].verdict == "slow"
    assert -0.03 < min(drifts_of(now[5])) < -0.02
    assert drifts_of(now[6]) == []


def test_a_change_of_all_devices_is_no_drift_and_hides_none(tmp_path):
    runs = weeks(tmp_path, [0, 0, 0, 0.023, 0.023, 0.023], [0, 0, 0, 0.03, 0.03, 0.03])
    found = by_rank(runs[5], *runs[:5])
    assert [rank for rank, finding in found.items() if drifts_of(finding)] == [5]
    assert any("against earlier runs -2." in text for text in found[5].evidence)


def test_a_device_that_returned_to_its_slot_is_the_newest(tmp_path):
    small(tmp_path, {}, size=8)
    for minute, uuid in enumerate(("A", "B", "A")):

        def renamed(lines, minute=minute, uuid=uuid):
            lines[0]["device"]["uuid"] = uuid
            lines[0] |= {"run_id": str(minute), "started_at": f"2026-11-21T12:0{minute}:00+00:00"}

        edited(tmp_path, 5, renamed, f"{minute}-5.jsonl")
    (tmp_path / "5.jsonl").unlink()
    assert by_rank(tmp_path)[5].device.uuid == "A"


def test_older_files_in_the_directory_are_history(tmp_path):
    small(tmp_path, {})
    old = tmp_path / "old"
    old.mkdir()
    small(old, {}, started="2026-11-01T12:00:00+00:00")
    for path in old.iterdir():
        path.rename(tmp_path / f"old-{path.name}")
    assert not not_ok(tmp_path)
    assert judged(tmp_path)[1] == [
        "older or duplicate files: 16; the newest of each rank in the last day is judged"
    ]
    (tmp_path / "7.jsonl").unlink()
    assert by_rank(tmp_path)[7].evidence == ["no file of this rank"]


def test_nodes_that_were_launched_one_by_one(tmp_path):
    for rank in range(24):
        node, local = divmod(rank, 8)
        lines = list(device_lines(random.Random(rank), local, 8))
        lines[0]["fleet"]["node"] = f"n{node}"
        lines[0] |= {"device": lines[0]["device"] | {"uuid": f"GPU-{rank}"}, "run_id": str(rank)}
        (tmp_path / f"{rank}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert not not_ok(tmp_path)
    (tmp_path / "13.jsonl").unlink()
    findings, _ = judged(tmp_path)
    assert [(f.node, f.device.fleet.rank) for f in findings if f.verdict == "unmeasured"] == [
        ("n1", 5)
    ]


def test_launches_of_the_same_size_are_told_apart_by_local_ranks(tmp_path):
    for launch in "ab":
        small(written(tmp_path / launch, {}), {})
        for rank in range(16):
            node, uuid = f"{launch}{rank // 8}", f"GPU-{launch}{rank}"
            path = tmp_path / launch / f"{rank}.jsonl"
            text = (
                path.read_text()
                .replace(f'"GPU-{rank}"', f'"{uuid}"')
                .replace(f'"n000{rank // 8}"', f'"{node}"')
            )
            path.write_text(text.replace('"run_id": "', f'"run_id": "{launch}'))
    devices, _, _ = read_fleet([tmp_path / "a", tmp_path / "b"])
    assert len(devices) == 32


def test_collectives_of_the_ranks_are_passed_over_and_a_directory_without_files_is_named(tmp_path):
    small(tmp_path, {})
    edited(
        tmp_path, 3, lambda lines: [line.update(op="all-reduce") for line in lines[1:]], "x.jsonl"
    )
    (tmp_path / "runs").mkdir()
    assert judged(tmp_path)[1] == []
    assert judged(tmp_path, tmp_path / "runs")[1] == [
        f"{tmp_path / 'runs'}: no file of bench.fleet; subdirectories are not read"
    ]


LINES = [json.dumps(environment(20, 21)), json.dumps(record("copy", 1e-3))]
HOSTILE = {
    "empty": b"",
    "torn environment": LINES[0][:50].encode(),
    "not json": b"hello\n" * 10,
    "binary": bytes(range(256)) * 100,
    "another run": b'{"kind":"environment","run_id":"x","started_at":"2026-11-20","device":{}}\n',
    "rank of a wrong type": LINES[0].replace('"rank": 20', '"rank": "20"').encode(),
    "impossible rank": LINES[0].replace('"rank": 20', '"rank": 21').encode(),
    "impossible date": LINES[0].replace("2026-11-20T", "2026-99-99T").encode(),
    "nested": b"[" * 200_000,
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_foreign_file_is_one_line(tmp_path, name):
    small(tmp_path, {3: {"cause": "memory", "loss": 0.2}})
    (tmp_path / "x.jsonl").write_bytes(HOSTILE[name])
    assert not_ok(tmp_path) == {3: "slow"}
    assert [
        note.startswith(f"{tmp_path / 'x.jsonl'}: not a rank's file: ")
        for note in judged(tmp_path)[1]
    ] == [True]


ODD = {
    "torn last line": lambda text: text[:-40],
    "lines of wrong types": lambda text: text.replace('"median_s": ', '"median_s": "slow", "x": '),
    "NaN": lambda text: text.replace('"sm_clock_hz": ', '"sm_clock_hz": NaN, "x": '),
    "many broken rows": lambda text: text + "{}\n" * 10_000,
}


@pytest.mark.parametrize("name", ODD)
def test_an_odd_file_is_one_line_and_its_good_rows_count(tmp_path, name):
    small(tmp_path, {3: {"cause": "memory", "loss": 0.2}})
    path = tmp_path / "5.jsonl"
    path.write_text(ODD[name](path.read_text()))
    (note,) = judged(tmp_path)[1]
    assert note.startswith(f"{path}:")
    lost = {5: "unmeasured"} if name in ("torn last line", "lines of wrong types", "NaN") else {}
    assert not_ok(tmp_path) == {3: "slow"} | lost


def test_a_rank_claimed_by_two_devices_keeps_both(tmp_path):
    small(tmp_path, {})

    def other(lines):
        lines[0]["run_id"] = "other"
        lines[0]["device"]["uuid"] = "GPU-x"

    edited(tmp_path, 3, other, "other.jsonl")
    edited(tmp_path, 4, lambda lines: None, "copy.jsonl")
    findings, notes = judged(tmp_path)
    assert len(findings) == 16
    assert notes == [
        "older or duplicate files: 2; the newest of each rank in the last day is judged"
    ]


def test_devices_that_are_not_files_are_left_out(tmp_path):
    small(tmp_path, {})
    (tmp_path / "directory.jsonl").mkdir()
    (tmp_path / "link.jsonl").symlink_to(tmp_path / "nowhere")
    os.mkfifo(tmp_path / "pipe.jsonl")
    assert len(judged(tmp_path)[1]) == 3


def test_json_has_an_entry_for_each_device(tmp_path, capsys):
    files, slow = fleet(1, nodes=3, slow_share=0.05)
    assert main(["fleet-report", str(written(tmp_path, files)), "--format", "json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert len(document["devices"]) == 24
    (entry,) = [entry for entry in document["devices"] if entry["verdict"] == "slow"]
    assert {entry["uuid"]: entry["cause"]} == slow
    assert entry["ci95"][0] < entry["deviation"] < entry["ci95"][1] < -0.04


def test_table_names_the_slow_and_counts_the_others(tmp_path, capsys):
    small(tmp_path, {3: {"cause": "thermal", "loss": 0.2}})
    assert main(["fleet-report", str(tmp_path)]) == 1
    out = capsys.readouterr().out
    assert "rank 3 on n0000" in out
    assert "thermal" in out
    assert "15 ok, 1 slow" in out
    assert "rank 4" not in out
    main(["fleet-report", str(tmp_path), "--all", "--format", "md"])
    assert "| rank 4 on n0000 |" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (lambda directory: None, 0),
        (lambda directory: small(directory, {3: {"cause": "memory", "loss": 0.2}}), 1),
        (lambda directory: (directory / "4.jsonl").unlink(), 3),
        (lambda directory: [path.unlink() for path in directory.iterdir()], 3),
        (lambda directory: [directory.rename(directory.with_name("gone"))], 2),
    ],
)
def test_exit_codes(tmp_path, capsys, change, code):
    directory = tmp_path / "fleet"
    directory.mkdir()
    small(directory, {})
    change(directory)
    assert main(["fleet-report", str(directory)]) == code


@pytest.mark.parametrize("module", [reading, judging])
def test_a_failure_of_the_report_is_not_a_slow_device(tmp_path, capsys, monkeypatch, module):
    small(tmp_path, {3: {"cause": "memory", "loss": 0.2}})

    def fail(*_):
        raise ZeroDivisionError("a defect")

    monkeypatch.setattr(module, "read_fleet" if module is reading else "judge", fail)
    assert main(["fleet-report", str(tmp_path)]) == 3
    assert capsys.readouterr().err.count("\n") == 1
