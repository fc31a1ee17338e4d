"""The ceilings file: published values for a GPU of the table, measured and saved values for a
CPU.
"""

import contextlib
import json
from dataclasses import replace

import pytest
from test_setup import CPU, H100

from bench.harness.calibrate import bandwidth, calibration, peaks, setup
from bench.harness.calibrate.calibration import MeasuredCeilings, ceilings_of, merged
from bench.harness.calibrate.setup import Measured
from bench.harness.device.device import MIB, Device
from roofline.gpu_table import UnknownGpuError, find_gpu
from roofline.machine import Ceiling, Machine

BLANK = Machine(CPU.slug, CPU.name)


def test_a_gpu_of_the_table_has_its_datasheet_ceilings():
    ceilings = ceilings_of(H100, None)
    gpu = find_gpu("h100-sxm")
    assert (ceilings.slug, ceilings.note) == ("h100-sxm", None)
    assert ceilings.peak("bf16").value == gpu.peak("bf16").value == pytest.approx(989.4e12)
    assert ceilings.bandwidth().value == pytest.approx(3.35e12, rel=0.01)
    assert {entry.kind for entry in ceilings.entries} == {"datasheet"}
    assert all("h100-sxm" in entry.source for entry in ceilings.entries)


def test_gpu_option_selects_another_entry():
    assert ceilings_of(H100, "a100-sxm-80gb").peak("bf16").value == pytest.approx(312e12)
    with pytest.raises(UnknownGpuError, match="h100-sxxm"):
        ceilings_of(H100, "h100-sxxm")


def test_an_unlisted_gpu_has_derived_bandwidth_and_no_peak():
    unknown = replace(
        H100, name="NVIDIA X999", slug="nvidia-x999", memory_clock_hz=2619e6, memory_bus_bits=5120
    )
    ceilings = ceilings_of(unknown, None)
    assert ceilings.peak("bf16") is None
    assert not [entry for entry in ceilings.entries if entry.quantity == "flops"]
    assert ceilings.bandwidth().kind == "derived"
    # Two transfers a clock.
    assert ceilings.bandwidth().value == pytest.approx(2 * 2619e6 * 5120 / 8)
    for text in ("'NVIDIA X999' is not in the GPU table", "derived", "MFU is blank", "--gpu"):
        assert text in ceilings.note
    assert "until python -m bench calibrate measures the peaks" in ceilings.note


def test_gpu_option_is_rejected_on_a_cpu():
    assert ceilings_of(CPU, None) == BLANK
    with pytest.raises(ValueError, match=r"--gpu h100-sxm \(gpu= in a script\)"):
        ceilings_of(CPU, "h100-sxm")


class Saved(MeasuredCeilings):
    """Ceilings measured on a simulated machine: every launch takes `launch_s`."""

    def __init__(self, directory, device=CPU, launch_s=2.0**-20, broken=()):
        self.notes, self.said, self.launch_s, self.broken = [], [], launch_s, dict(broken)
        super().__init__(device, directory, self.notes.append, self.said.append)

    def complete(self, *arguments, **options):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(
                bandwidth, "launch", lambda setup: self.outcome("launch", launch=self.launch_s)
            )
            patch.setattr(bandwidth, "bandwidth", self.bandwidth)
            patch.setattr(
                bandwidth, "cache", lambda setup: self.outcome("cache-bandwidth", L2=1e11)
            )
            patch.setattr(peaks, "matmul", self.matmul)
            patch.setattr(setup, "release", lambda device: True)
            patch.setattr(Device, "use", lambda self: None)
            return super().complete(*arguments, **options)

    def bandwidth(self, setup, mixes):
        return self.outcome("bandwidth", **{mix: MIX_BYTES[mix] / self.launch_s for mix in mixes})

    def matmul(self, setup, dtype):
        return self.outcome("flops", **{dtype: FLOPS / self.launch_s})

    def outcome(self, quantity, **values):
        if broken := [self.broken[name] for name in values if name in self.broken]:
            raise broken[0]
        source = "measured here 2026-01-01: a test, 2 threads"
        return [
            Measured(Ceiling(quantity, name, value, "measured", source), None)
            for name, value in values.items()
        ]


MIX_BYTES, FLOPS = {"copy": 2 * MIB, "triad": 3 * MIB, "read": MIB, "write": MIB}, 2 * 32**3
KEPT = {
    "launch": 2.0**-20,
    **{name: moved * 2**20 for name, moved in MIX_BYTES.items()},
    "bf16": FLOPS * 2**20,
}
"""Saved values of a machine whose launches take 2^-20 s."""


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        '{"identity": null, "entries": []}',
        "[" * 100_000,
        '{"identity": IDENTITY, "entries": [3]}',
        '{"identity": IDENTITY, "entries": [ENTRY]}',
        '{"identity": OTHER, "entries": []}',
    ],
)
def test_an_invalid_ceilings_file_is_noted_and_measured_again(tmp_path, text):
    entry = (
        '{"quantity": "bandwidth", "name": "copy", "kind": "measured", "source": "x", "value": -1}'
    )
    machine = Saved(tmp_path)
    other = machine.identity | {"host": "another-host"}
    text = text.replace("ENTRY", entry).replace("IDENTITY", json.dumps(machine.identity))
    machine.path.parent.mkdir(parents=True)
    machine.path.write_text(text.replace("OTHER", json.dumps(other)))

    found = machine.complete(BLANK, ["bf16"])
    assert found.bandwidth().value == KEPT["triad"]
    assert len(machine.notes) == 1
    assert machine.notes[0].startswith(f"{machine.path}: ")
    assert "\n" not in machine.notes[0]
    assert len(machine.notes[0]) < len(str(machine.path)) + 250
    # And the file is whole now.
    assert Saved(tmp_path, launch_s=1.0).complete(BLANK, ["bf16"]) == found


def test_machine_torch_and_instruction_set_decide_the_file(tmp_path, monkeypatch):
    assert Saved(tmp_path).path == Saved(tmp_path).path
    changes = (
        {"name": "another CPU"},
        {"threads": 4},
        {"cache_bytes": 2 * MIB},
        {"memory_bytes": 2**35},
    )
    paths = [Saved(tmp_path, replace(CPU, **change)).path for change in ({}, *changes)]
    monkeypatch.setattr(calibration.platform, "node", lambda: "elsewhere")
    paths.append(Saved(tmp_path).path)
    others = {"versions": dict.fromkeys(("torch", "triton", "driver"), "9")}
    monkeypatch.setattr(calibration, "environment_facts", lambda: others)
    paths.append(Saved(tmp_path).path)
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")
    paths.append(Saved(tmp_path).path)
    assert len(set(paths)) == len(paths)


def test_an_unwritable_ceilings_file_is_only_a_note(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("no folder")
    machine = Saved(blocked)
    found = machine.complete(BLANK, ["bf16"])
    assert found.peak("bf16") is not None
    assert [note for note in machine.notes if "the measured ceilings are not saved" in note]
    assert blocked.read_text() == "no folder"


@pytest.mark.parametrize("error", [RuntimeError("no such product\nat line 3"), MemoryError()])
def test_a_peak_that_cannot_be_measured_is_noted(tmp_path, error):
    machine = Saved(tmp_path, broken={"bf16": error})
    found = machine.complete(BLANK, ["bf16", "fp32"])
    assert found.peak("bf16") is None
    assert found.peak("fp32") is not None
    assert len(machine.notes) == 1
    assert machine.notes[0].startswith(f"not measured: bf16 matmul: {type(error).__name__}")
    assert "\n" not in machine.notes[0]


def test_a_new_gpu_gets_launch_floor_and_bandwidth_of_every_mix(tmp_path):
    machine = Saved(tmp_path, H100)
    found = machine.complete(ceilings_of(H100, None), ["bf16"])
    assert found.fastest("launch").value == 2.0**-20
    assert found.peak("bf16").kind == found.bandwidth().kind == "datasheet"
    assert {entry.name: entry.value for entry in found.mixes} == {
        name: KEPT[name] for name in MIX_BYTES
    }
    assert machine.said == [
        "calibrating: launch",
        "calibrating: bandwidth of copy, triad, read, write",
        "calibrating: cache",
    ]


def test_only_the_mixes_of_the_rows_are_measured(tmp_path):
    machine = Saved(tmp_path)
    found = machine.complete(BLANK, (), ["triad"])
    assert [entry.name for entry in found.mixes] == ["triad"]
    found = machine.complete(BLANK, (), ["triad", "read"])
    assert [entry.name for entry in found.mixes] == ["triad", "read"]
    found = machine.complete(BLANK, (), ["read"], too_low=[found.mix(1, 0)])
    assert [text for text in machine.said if "bandwidth" in text] == [
        "calibrating: bandwidth of triad",
        "calibrating: bandwidth of read",
        "calibrating: bandwidth of read",
    ]


@pytest.mark.parametrize("is_assumed", [True, False])
def test_a_cache_of_unknown_size_is_not_measured(tmp_path, is_assumed):
    machine = Saved(tmp_path, replace(CPU, cache_is_assumed=is_assumed))
    found = machine.complete(BLANK, ["bf16"])
    assert (found.fastest("cache-bandwidth") is None) is is_assumed
    assert ("calibrating: cache" in machine.said) is not is_assumed
    machine.said.clear()
    assert machine.complete(BLANK, ["bf16"]) == found
    assert machine.said == []


def test_a_file_without_the_cache_is_completed(tmp_path):
    before = keep(tmp_path)
    entries = tuple(entry for entry in before.load() if entry.quantity != "cache-bandwidth")
    before.save(Machine(CPU.slug, CPU.name, entries))
    found = before.complete(BLANK, ["bf16"])
    assert (before.said, found.fastest("cache-bandwidth").value) == (["calibrating: cache"], 1e11)
    assert found.peak("bf16").value == 1e9


@pytest.mark.parametrize(("launch_s", "is_higher"), [(2.0**-21, True), (1.0, False)])
def test_remeasuring_a_ceiling_keeps_the_higher_rate(tmp_path, launch_s, is_higher):
    first = Saved(tmp_path).complete(BLANK, ["bf16", "fp32"])
    again = Saved(tmp_path, launch_s=launch_s)
    found = again.complete(BLANK, ["bf16", "fp32"], too_low=[first.peak("bf16")])
    assert again.said == ["calibrating: bf16 matmul"]
    assert found.peak("bf16").value == KEPT["bf16"] * (2 if is_higher else 1)
    assert found.peak("fp32").value == KEPT["bf16"]
    assert Machine("", "", again.load()).peak("bf16") == found.peak("bf16")


def test_a_clock_limited_peak_is_shown_but_not_used_as_the_peak(tmp_path):
    machine = Saved(tmp_path, device=H100)
    saved = (
        Ceiling("flops", "bf16", 790e12, "measured", "a test", sm_clock_hz=1.755e9),
        Ceiling("flops", "fp16", 780e12, "measured", "a test"),
        Ceiling("launch", "launch", 2e-6, "measured", "a test"),
        Ceiling("bandwidth", "copy", 1e12, "measured", "a test"),
        Ceiling("cache-bandwidth", "L2 cache", 7e12, "measured", "a test"),
    )
    machine.save(Machine(H100.slug, H100.name, saved))
    found = machine.complete(ceilings_of(H100, None), ["bf16"], ["copy"])
    levels = {
        (entry.name, entry.kind): entry for entry in found.entries if entry.quantity == "flops"
    }
    # 132 SMs x 4096 FLOPs a clock x 1.755 GHz
    assert levels["bf16", "clock-limited"].value == pytest.approx(948.9e12, rel=1e-4)
    assert ("fp16", "clock-limited") not in levels
    assert (levels["bf16", "datasheet"].value, levels["bf16", "measured"].value) == (
        989.4e12,
        790e12,
    )
    assert found.peak("bf16").kind == "datasheet"
    assert found.note.startswith("bf16: datasheet 989.4 TFLOP/s -> x clock 0.96")
    assert Machine.from_dict(found.to_dict()).to_dict() == found.to_dict()
    assert (machine.notes, machine.said) == ([], [])


BUSY = "a thread lost its core 300 times per second"


def keep(directory, *entries):
    """Save all ceilings that a CPU needs, as another command would, and return a new machine."""
    usual = (
        ("launch", "launch", 1e-6),
        *(("bandwidth", mix, 1e10) for mix in MIX_BYTES),
        ("flops", "bf16", 1e9),
        ("cache-bandwidth", "L2", 1e11),
    )
    machine = Saved(directory)
    known = Machine(
        CPU.slug, CPU.name, tuple(Ceiling(*values, "measured", "here") for values in usual)
    )
    machine.save(known.with_entries(entries))
    return machine


def test_a_noisy_ceiling_gets_a_note(tmp_path):
    judging = Ceiling("flops", "bf16", 1e15, "measured", "here", disturbed=BUSY)
    others = [
        replace(judging, quantity=quantity, name="fp32") for quantity in ("flops", "sustained")
    ]
    machine = keep(tmp_path, judging, *others)
    found = machine.complete(BLANK, ["bf16"])
    assert (machine.said, found.peak("bf16").value) == ([], 1e15)
    assert "may be too low, because something disturbed the calibration: bf16 peak" in found.note


@pytest.mark.parametrize(
    ("old", "is_old_disturbed", "new", "is_new_disturbed", "expected"),
    [
        (2e9, False, 1e9, True, 2e9),
        (2e9, True, 1e9, True, 2e9),
        (2e9, True, 1e9, False, 1e9),
        (2e9, False, 3e9, True, 3e9),
    ],
)
def test_a_noisy_measurement_replaces_no_better_ceiling(
    old, is_old_disturbed, new, is_new_disturbed, expected
):
    earlier, later = (
        Ceiling(
            "bandwidth", "copy", value, "measured", "here", disturbed=BUSY if is_disturbed else None
        )
        for value, is_disturbed in ((old, is_old_disturbed), (new, is_new_disturbed))
    )
    [entry] = merged(Machine("a", "a", (earlier,)), [later]).entries
    assert entry.value == expected


def test_a_second_command_waits_for_the_ceilings_of_the_first(tmp_path, monkeypatch):
    second, first = Saved(tmp_path, launch_s=1.0), contextlib.ExitStack()
    first.enter_context(Saved(tmp_path).alone())

    def finish_first(note):
        second.notes.append(note)
        keep(tmp_path)  # ceilings that the first command measured
        first.close()

    monkeypatch.setattr(second, "_note", finish_first)
    found = second.complete(BLANK, ["bf16"])
    assert (second.said, found.peak("bf16").value) == ([], 1e9)  # nothing is measured twice
    [note] = second.notes
    assert "waiting" in note
