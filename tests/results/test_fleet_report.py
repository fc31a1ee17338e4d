"""`bench fleet-report`: verdicts, causes and outputs on synthetic fleets with known slow devices."""

import json
import random

import pytest

from bench.__main__ import main
from results.fleet.devices import read_fleet
from results.fleet.judge import judge
from tests.validation.fleet_generator import CLASSES, fleet


def written(directory, files):
    directory.mkdir(exist_ok=True)
    for name, content in files.items():
        (directory / name).write_bytes(content)
    return directory


def judged(directory, *history):
    devices, earlier, notes = read_fleet([directory], history)
    return *judge(devices, earlier), notes


def verdicts(findings):
    return {finding.device.uuid: finding.verdict for finding in findings if finding.device}


def test_slow_devices_are_found_with_their_cause(tmp_path):
    files, slow = fleet(1, nodes=20, slow_share=0.05)
    findings, _, notes = judged(written(tmp_path, files))
    found = {f.device.uuid: f.rule.cause for f in findings if f.verdict != "ok"}
    assert found == slow
    assert set(found.values()) == set(CLASSES)
    assert not notes


def test_json_has_an_entry_for_each_device(tmp_path, capsys):
    files, slow = fleet(1, nodes=3, slow_share=0.05)
    assert main(["fleet-report", str(written(tmp_path, files)), "--format", "json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert len(document["devices"]) == 24
    (entry,) = [entry for entry in document["devices"] if entry["verdict"] == "slow"]
    assert {entry["uuid"]: entry["cause"]} == slow
    assert -0.16 < entry["deviation"] < -0.04
    assert entry["ci95"][0] < entry["deviation"] < entry["ci95"][1]


def test_the_order_of_files_does_not_matter(tmp_path):
    files, _ = fleet(2, nodes=5, slow_share=0.1)
    names = list(files)
    random.Random(0).shuffle(names)
    shuffled = dict(zip(names, files.values(), strict=True))
    both = (judged(written(tmp_path / name, content)) for name, content in (("a", files), ("b", shuffled)))
    first, second = (repr(findings) for findings, _, _ in both)
    assert first == second


@pytest.mark.parametrize(("slow_share", "own", "nagios"), [(0, 0, 0), (0.1, 1, 2)])
def test_exit_codes(tmp_path, capsys, slow_share, own, nagios):
    files, _ = fleet(3, nodes=2, slow_share=slow_share)
    directory = str(written(tmp_path, files))
    assert main(["fleet-report", directory]) == own
    assert main(["fleet-report", directory, "--exit-codes", "nagios"]) == nagios
