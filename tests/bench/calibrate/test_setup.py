"""Choice and measurement of the fastest configuration; the ceiling and record of its samples."""

import pytest

from bench.harness.calibrate.setup import FULL, QUICK, Candidate, NotMeasuredError, Rate, Setup
from bench.harness.device.device import MIB, Device
from bench.harness.timing.protocol import Samples

CPU = Device("cpu", "cpu", "cpu-a-2t", "a CPU", MIB, 2**34, threads=2)
H100 = Device(
    *("cuda", "cuda:0", "h100-sxm", "NVIDIA H100 80GB HBM3", 50 * MIB, 85_029_158_912),
    sm_count=132,
    compute_capability="9.0",
)


def samples(*samples_s, launches=1, telemetry=None):
    middle, ends = sorted(samples_s)[len(samples_s) // 2], (min(samples_s), max(samples_s))
    return Samples(
        samples_s, launches, "host", "warm", middle, ends, True, telemetry=telemetry or {}
    )


def setup_of(device, **effort):
    return Setup(device, FULL._replace(**effort))


def rate_of(config, work, *samples_s, launches=1, telemetry=None, is_gpu=False):
    found = samples(*samples_s, launches=launches, telemetry=telemetry)
    return Rate(Candidate(config, work, lambda: None), found, is_gpu)


@pytest.fixture
def simulated(monkeypatch):
    """Make launches take as long as their calls return; return (configuration, seconds) of each
    measurement.
    """
    measured = []

    def timed(self, candidate, seconds):
        measured.append((candidate.name, seconds))
        return rate_of(
            candidate.name, candidate.work, *candidate.prepare()(), is_gpu=self.device.is_gpu
        )

    monkeypatch.setattr(Setup, "timed", timed)
    return measured


def candidate(name, *samples_s, work=12):
    return Candidate(name, work, lambda: lambda: samples_s)


@pytest.mark.parametrize(("device", "fastest"), [(CPU, "spiky"), (H100, "steady")])
def test_the_fastest_configuration_is_measured_again(simulated, device, fastest):
    among = [
        candidate("slow", 3.0, 3.0, 3.0),
        candidate("steady", 1.0, 1.0, 1.0),
        candidate("spiky", 0.5, 2.0, 2.0),
    ]
    measuring = setup_of(device, screening_s=0.1, confirming_s=1.0)
    assert measuring.fastest_of(among).candidate.name == fastest
    assert simulated == [("slow", 0.1), ("steady", 0.1), ("spiky", 0.1), (fastest, 1.0)]
    assert measuring.missing == []


@pytest.mark.parametrize("count", [3, 11, 16])
def test_a_quick_calibration_of_a_gpu_tries_four_configurations(simulated, count):
    among = [candidate(str(index), 1.0) for index in range(count)]
    for device, tried in ((CPU, count), (H100, min(count, 4))):
        simulated.clear()
        Setup(device, QUICK).fastest_of(among)
        assert len(simulated) == tried + 1


def test_configurations_that_cannot_run_are_reported(simulated):
    def broken():
        raise RuntimeError("CUBLAS_STATUS_NOT_SUPPORTED\nwhen calling")

    among = [Candidate("wide", 12, broken), candidate("plain", 1.0), Candidate("odd", 12, broken)]
    measuring = setup_of(CPU)
    assert measuring.fastest_of(among).candidate.name == "plain"
    assert measuring.missing == [
        "wide; odd: RuntimeError: CUBLAS_STATUS_NOT_SUPPORTED; plain is the fastest of the others"
    ]
    with pytest.raises(
        NotMeasuredError, match="all of 1 configurations failed; wide: RuntimeError: CUBLAS"
    ):
        setup_of(CPU).fastest_of(among[:1])


def test_a_launch_that_takes_too_long_is_skipped(simulated):
    known = [candidate(str(work), work / 100, work=work) for work in (1, 14, 16)]
    setup_of(CPU).fastest_of(known, slowest_call_s=0.15)
    # Of 100 a second, 16 take longer than 0.15 s.
    assert [config for config, _ in simulated] == ["1", "14", "1"]


def test_a_ceiling_has_interval_and_quantiles_from_low_to_high():
    def ceiling(rate):
        return setup_of(CPU).measured("bandwidth", "copy", rate, "copy", "fp32", {"n": 1}).ceiling

    found = ceiling(rate_of("a way", 12, 1.0, 2.0, 4.0))
    assert (found.value, found.ci95, found.work_per_launch) == (12.0, (3.0, 12.0), 12)
    assert found.p5_p95[0] < 6.0 < found.p5_p95[1]
    assert ceiling(rate_of("a way", 12, 1.0, 2.0, 4.0, is_gpu=True)).value == 6.0
    launch = ceiling(rate_of("an empty kernel", 0, 1.0, 2.0, 4.0))
    assert (launch.value, launch.ci95, launch.work_per_launch) == (1.0, (1.0, 4.0), None)


def test_a_preempted_measurement_carries_the_flag():
    def measured(switches_per_s):
        rate = rate_of("a way", 8, 1e-3, telemetry={"thread_switches_per_s": switches_per_s})
        return setup_of(CPU).measured("bandwidth", "copy", rate, "copy", "fp32", {"n": 1})

    busy, quiet = measured(1e4), measured(0.0)
    assert (busy.record.flags, quiet.record.flags) == (("preempted",), ())
    assert "lost its core" in busy.record.flag_reasons["preempted"]
    assert "lost its core" in busy.ceiling.disturbed
