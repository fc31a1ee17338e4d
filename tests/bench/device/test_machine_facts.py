"""Facts of a machine for a preflight page, on replayed machines, and of the host from files."""

import json
from dataclasses import replace

import pytest
from test_telemetry import CPU, H100

from bench.harness.cli import session
from bench.harness.device.facts import gpu_facts, host_facts, modes
from bench.harness.measure.plan import Settings
from results.compare.sides import CompareError, differences
from roofline.ceilings import Ceilings
from tests.bench import nvml_replay


@pytest.fixture
def replay(monkeypatch):
    machines = nvml_replay.Replay(monkeypatch)
    yield machines
    machines.check()


def facts_of(machine, **options):
    return gpu_facts(replace(H100, uuid=machine.torch_uuid), **{"own_pid": 4242} | options)


def test_bare_metal_tells_everything(replay):
    assert facts_of(replay("bare-metal")) == {
        "driver": "580.95.05",
        "is_mig_slice": False,
        "power_limit_w": pytest.approx(700),
        "power_limit_default_w": pytest.approx(700),
        "power_limit_min_w": pytest.approx(200),
        "power_limit_max_w": pytest.approx(700),
        "power_w": pytest.approx(640.25),
        "temperature_c": 54,
        "sm_clock_hz": 1980e6,
        "memory_clock_hz": 2619e6,
        "max_sm_clock_hz": 1980e6,
        "max_memory_clock_hz": 2619e6,
        "clock_mode": "default",
        "clock_events": [],
        "persistence": True,
        "mig": False,
        "ecc": True,
        "virtualization": "none",
        "confidential_compute": False,
        "remapped_rows": {"correctable": 0, "uncorrectable": 0, "pending": False, "failed": False},
        "recovery_action": "none",
        "memory_total_bytes": 85_520_809_984,
        "memory_used_bytes": 1_000_000_000,
        "other_processes": [],
        "own_process_seen": True,
        "unexplained_memory_bytes": 400_000_000,
        "errors": {},
    }


def test_other_processes_are_those_with_another_id(replay):
    facts = facts_of(replay("two-gpus"))
    assert facts["other_processes"] == [{"pid": 7001, "memory_bytes": 30 * 10**9}, {"pid": 7002, "memory_bytes": None}]
    assert facts["own_process_seen"] is True
    assert facts["unexplained_memory_bytes"] == 9_400_000_000  # 40 GB in use, 0.6 ours, 30 the first other's


def test_hidden_processes_show_by_the_memory_that_they_use(replay):
    facts = facts_of(replay("hidden-processes"))
    assert (facts["other_processes"], facts["own_process_seen"]) == ([], False)
    assert facts["unexplained_memory_bytes"] == 60 * 10**9


def test_where_processes_may_not_be_listed_memory_still_tells(replay):
    for name, error in (("no-permission", "NoPermission"), ("wsl", "Unknown"), ("vgpu", "NotSupported")):
        facts = facts_of(replay(name))
        assert (facts["other_processes"], facts["own_process_seen"]) == (None, None)
        assert facts["errors"]["other_processes"] == error
        assert facts["unexplained_memory_bytes"] == facts["memory_used_bytes"] > 0


def test_a_mig_slice_has_its_own_memory_and_the_limits_of_its_gpu(replay):
    facts = facts_of(replay("mig-slice"))
    assert (facts["is_mig_slice"], facts["mig"], facts["ecc"]) == (True, True, True)
    assert (facts["memory_total_bytes"], facts["other_processes"]) == (10_200_547_328, [])
    assert (facts["power_limit_w"], facts["max_sm_clock_hz"]) == (pytest.approx(400), 1410e6)
    assert facts["errors"] == {
        "power_w": "SharedByMigSlices",
        "confidential_compute": "NotSupported",
        "remapped_rows": "NotSupported",
        "recovery_action": "NotSupported",
    }


def test_a_vgpu_says_that_it_is_one(replay):
    facts = facts_of(replay("vgpu"))
    assert facts["virtualization"] == "vgpu"
    assert (facts["power_limit_w"], facts["mig"], facts["persistence"]) == (None, None, None)
    assert facts["errors"]["power_limit_w"] == "NotSupported"


def test_an_old_driver_leaves_out_what_it_lacks(replay):
    facts = facts_of(replay("old-driver"))
    assert facts["errors"] == {
        "confidential_compute": "FunctionNotFound",
        "remapped_rows": "FunctionNotFound",
        "recovery_action": "InvalidArgument",
    }
    assert (facts["temperature_c"], facts["clock_events"]) == (54, [])


def test_sick_memory_shows(replay):
    machine = replay("bare-metal")
    (calls,) = machine.record["devices"].values()
    calls["nvmlDeviceGetRemappedRows"] = [12, 1, 1, 1]
    calls["nvmlDeviceGetFieldValues"]["fields"]["230"] = 4
    calls["nvmlDeviceGetEccMode"] = [0, 1]
    machine.record["system"]["nvmlSystemGetConfComputeState"]["object"]["ccFeature"] = 1
    facts = facts_of(machine)
    assert facts["remapped_rows"] == {"correctable": 12, "uncorrectable": 1, "pending": True, "failed": True}
    assert facts["recovery_action"] == "drain-and-reset"
    assert (facts["ecc"], facts["confidential_compute"]) == (False, True)


@pytest.mark.parametrize(("name", "error"), [("no-driver", "LibraryNotFound"), ("no-bindings", "PynvmlMissing")])
def test_without_driver_or_bindings_everything_is_missing_for_one_reason(replay, name, error):
    facts = facts_of(replay(name))
    assert facts.pop("errors") == {"nvml": error}
    assert set(facts.values()) == {None}


def test_a_cpu_has_no_gpu_facts(replay):
    machine = replay("bare-metal")
    assert gpu_facts(CPU)["errors"] == {"nvml": "NotNvidia"}
    assert machine.asked == []


def test_answers_that_are_none_are_missing(replay):
    facts = facts_of(replay("garbage"))
    problems = facts.pop("errors")
    told = {key: value for key, value in facts.items() if value is not None}
    assert told == {
        "driver": "580.95.05",
        "is_mig_slice": False,
        "power_limit_default_w": pytest.approx(700),
        "max_sm_clock_hz": 1980e6,
        "max_memory_clock_hz": 2619e6,
        "virtualization": "unknown-99",
        "clock_mode": "default",
        "clock_events": ["0x800"],
        "confidential_compute": False,
    }
    assert set(problems) == set(facts) - set(told)
    assert problems["power_limit_w"] == "Implausible: bool"
    assert problems["mig"] == "TypeError"


@pytest.mark.parametrize("name", nvml_replay.NAMES)
def test_every_machine_gives_the_same_keys_in_json(replay, name):
    machine = replay(name)
    for machine.step in (0, 1):
        facts = facts_of(machine)
        assert json.loads(json.dumps(facts, allow_nan=False)) == facts
        assert set(facts) == set(gpu_facts(CPU))
        for key, value in facts.items():
            assert value is not None or key in facts["errors"] or "nvml" in facts["errors"], key


# ---- the modes that a run keeps --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "step", "clock_mode", "power_limit_w"),
    [
        ("bare-metal", 0, "default", 700.0),
        ("bare-metal", 1, "default", 700.0),  # held by its power limit, which is no setting of the clocks
        ("locked-clocks", 0, "locked 1410 MHz", 500.0),
        ("application-clocks", 0, "applications 1200 MHz", 700.0),
        ("no-application-clocks", 0, "locked 1410 MHz", 700.0),
        ("no-application-clocks", 1, None, 700.0),  # idle: a lock would not show
        ("mig-slice", 0, "default", 400.0),  # those of the whole GPU
        ("no-permission", 0, "default", None),
        ("vgpu", 0, None, None),
        ("lost-gpu", 1, None, None),
        ("no-driver", 0, None, None),
        ("no-bindings", 0, None, None),
    ],
)
def test_modes_of_a_gpu_are_what_nvml_tells(replay, name, step, clock_mode, power_limit_w):
    machine = replay(name)
    machine.step = step
    found = modes(replace(H100, uuid=machine.torch_uuid))
    assert (found["clock_mode"], found["power_limit_w"]) == (clock_mode, power_limit_w)
    assert set(found) == {"clock_mode", "power_limit_w", "power_limit_default_w"}


def test_an_amd_gpu_tells_no_modes(replay):
    machine = replay("bare-metal")
    assert set(modes(replace(H100, type="rocm")).values()) == {None}
    assert machine.asked == []


def write_modes(root, governor=None, no_turbo=None, boost=None):
    cpu = root / "sys/devices/system/cpu"
    texts = {"cpu0/cpufreq/scaling_governor": governor, "intel_pstate/no_turbo": no_turbo, "cpufreq/boost": boost}
    for name, text in texts.items():
        if text is not None:
            (cpu / name).parent.mkdir(parents=True, exist_ok=True)
            (cpu / name).write_text(f"{text}\n")
    return root


@pytest.mark.parametrize(
    ("files", "governor", "turbo"),
    [
        ({"governor": "performance", "no_turbo": "1"}, "performance", False),
        ({"governor": "schedutil", "boost": "1"}, "schedutil", True),
        ({"boost": "0"}, None, False),
        ({}, None, None),
    ],
)
def test_modes_of_a_cpu_are_governor_and_turbo(tmp_path, files, governor, turbo):
    assert modes(CPU, write_modes(tmp_path, **files)) == {"governor": governor, "turbo": turbo}


def stamped(replay, monkeypatch, name):
    """Return the environment line of a run on a replayed machine."""
    machine = replay(name)
    monkeypatch.setattr(session, "preflight", lambda device, ceilings: {})
    device = replace(H100, uuid=machine.torch_uuid)
    return session.stamp("bench.matmul", device, Ceilings(H100.slug, H100.name, []), Settings(), [])


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("locked-clocks", "clock_mode default against locked 1410 MHz; power_limit_w 700.0 against 500.0"),
        ("application-clocks", "clock_mode default against applications 1200 MHz"),
    ],
)
def test_runs_in_different_modes_are_not_compared(replay, monkeypatch, name, message):
    usual, other = (stamped(replay, monkeypatch, machine) for machine in ("bare-metal", name))
    with pytest.raises(CompareError) as refused:
        differences(usual, other, force=False)
    assert str(refused.value) == f"not the same machine: {message}; --force compares them all the same"
    assert differences(usual, other, force=True)[0].startswith("compared by force: clock_mode")


@pytest.mark.parametrize("name", ["vgpu", "no-driver"])
def test_a_mode_that_one_run_does_not_tell_keeps_nothing_from_being_compared(replay, monkeypatch, name):
    told, silent = (stamped(replay, monkeypatch, machine) for machine in ("locked-clocks", name))
    assert not [note for note in differences(told, silent, force=False) if "mode" in note or "limit" in note]


def test_a_run_on_this_cpu_keeps_its_modes(replay):
    found = session.stamp("bench.matmul", CPU, Ceilings(CPU.slug, CPU.name, []), Settings(), []).device
    assert {key: found[key] for key in ("governor", "turbo")} == modes(CPU)


def test_a_cpu_whose_turbo_was_switched_is_another_machine(replay, tmp_path):
    fast, slow = (
        replace(
            session.stamp("bench.matmul", CPU, Ceilings(CPU.slug, CPU.name, []), Settings(), []),
            device=CPU.to_dict() | modes(CPU, write_modes(tmp_path / no_turbo, "performance", no_turbo)),
        )
        for no_turbo in ("0", "1")
    )
    with pytest.raises(CompareError, match="turbo True against False"):
        differences(fast, slow, force=False)


# ---- the host ------------------------------------------------------------------------------------------------------


def test_the_host_tells_governor_turbo_quota_and_load(tmp_path):
    cpu = tmp_path / "sys/devices/system/cpu"
    for path, text in {
        cpu / "cpu0/cpufreq/scaling_governor": "powersave\n",
        cpu / "intel_pstate/no_turbo": "1\n",
        tmp_path / "sys/fs/cgroup/cpu.max": "150000 100000\n",
        tmp_path / "proc/loadavg": "3.25 2.00 1.00 4/110 23841\n",
    }.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    facts = host_facts(tmp_path)
    assert facts.pop("cores_allowed") >= 1
    assert facts == {
        "load_average": 3.25,
        "governor": "powersave",
        "turbo": False,
        "cgroup_quota_cores": 1.5,
        "errors": {},
    }


def test_a_host_that_shows_nothing_names_what_is_missing(tmp_path):
    facts = host_facts(tmp_path)
    assert (facts["load_average"], facts["governor"], facts["turbo"]) == (None, None, None)
    assert set(facts["errors"]) == {"load_average", "governor", "turbo"}


def test_host_facts_of_this_machine_are_json():
    json.dumps(host_facts(), allow_nan=False)
