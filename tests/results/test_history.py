"""python -m results history: one case over many runs, each compared with the run before."""

import csv
import io
import json
import math
from itertools import pairwise

import numpy as np
import pytest
from compare_runs import samples

from results import history
from results.__main__ import main


@pytest.fixture
def keep(keep, make_record):
    """Returns a function that saves a run of one day, at a time relative to 4 us, with noise of 0.2
    %.
    """

    def write(day, scale=1.0, provider="torch", environment=None, **changes):
        taken = samples(scale, f"{day} {provider} {changes}", 60)
        ordered = sorted(taken)
        usual = {
            "provider": provider,
            "samples_s": taken,
            "visits": (20, 20, 20),
            "op_sha256": "3:" + "a" * 64,
            "median_s": (ordered[29] + ordered[30]) / 2,
            "ci95_s": (ordered[20], ordered[40]),
        }
        names = {"run_id": f"202611{day:02d}T100000Z-{day:010x}{abs(hash(provider)) % 10**6}"}
        return keep(day, make_record(**(usual | changes)), **(names | (environment or {})))

    return write


def shown(capsys, *arguments):
    assert main(["history", *arguments, "--format", "json"]) == 0
    return json.loads(capsys.readouterr().out)["series"]


def refused(capsys, *arguments):
    assert main(["history", *arguments]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    prog, message = err.split(": error: ", 1)
    assert prog == "python -m results history"
    return message


def test_runs_come_by_date_with_their_revisions_and_verdicts(keep, capsys):
    keep(3, 1.1, source_sha256="b" * 64)
    for day in (1, 2):
        keep(day)
    (series,) = shown(capsys, "--op", "matmul")
    points = series["points"]
    assert [point["started_at"][:10] for point in points] == [
        "2026-11-01",
        "2026-11-02",
        "2026-11-03",
    ]
    assert [point["revision"] for point in points][1:] == ["0202020202-dirty", "0303030303"]
    assert [point["verdict"] for point in points] == [None, "SAME", "SLOWER"]
    assert [point["is_change"] for point in points] == [False, False, True]
    assert "is the spread between measurements" in points[2]["reason"]
    assert points[2]["ratio_to_last"] == pytest.approx(1.1, rel=0.003)


def commits(keep, slower_each, noise=0.002):
    """Save 28 runs of 28 versions, each slower than the one before; run to run differs by
    `noise`.
    """
    generator = np.random.default_rng(5)
    for day in range(1, 29):
        scale = (1 + slower_each) ** day * math.exp(generator.normal(0, noise))
        keep(day, scale, source_sha256=f"{day:064d}")


def test_a_drift_of_half_a_percent_a_commit_is_found_against_a_window(keep, capsys):
    commits(keep, 0.005)
    (series,) = shown(capsys)
    assert not any(point["is_change"] for point in series["points"])
    (series,) = shown(capsys, "--window", "20")
    found = [point["verdict"] for point in series["points"]]
    assert found[1] == "UNSURE"
    assert found[-10:] == ["SLOWER"] * 10
    assert series["points"][-1]["ratio_to_window"] == pytest.approx(1.05, abs=0.01)
    assert main(["history", "--window", "20"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith("against the median of the last 20 runs")
    assert "time ratio to window" in lines[2]


def test_a_window_finds_nothing_in_noise_but_a_step(keep, capsys):
    commits(keep, 0.0)
    (series,) = shown(capsys, "--window", "10")
    assert not any(point["is_change"] for point in series["points"])
    for day in (29, 30):
        keep(day, 1.1, source_sha256="a" * 64)
    (series,) = shown(capsys, "--window", "10")
    assert [point["verdict"] for point in series["points"][-2:]] == ["SLOWER", "SLOWER"]


def test_the_table_and_the_plot_have_a_line_for_each_run(keep, capsys, tmp_path):
    for day in (1, 2, 3):
        keep(day, flags=("preempted",) if day == 3 else ())
    picture = tmp_path / "history.svg"
    assert main(["history", "-o", str(picture), "--theme", "dark"]) == 0
    (last,) = [line for line in capsys.readouterr().out.splitlines() if "0303030303" in line]
    assert last.startswith("2026-11-03 10:00  0303030303")
    assert "preempted, time " in last
    assert "the candidate is flagged preempted; save more runs" in last
    text = picture.read_text(encoding="utf-8")
    assert "fill: #171717" in text
    assert "2026-11-02 10:00 0202020202-dirty" in text
    assert "disturbed" in text


def test_all_labels_of_runs_are_in_the_picture(keep, capsys):
    for day in (1, 2, 3):
        keep(day)
    figure = history.draw(shown(capsys))
    for label in figure.axes[0].get_xticklabels():
        box = label.get_window_extent()
        assert 0 <= box.x0 < box.x1 <= figure.bbox.x1, label.get_text()
        assert box.y0 >= 0


def test_a_history_of_the_mfu_says_where_the_code_is_the_same(keep, capsys, tmp_path):
    for day in (1, 2):
        keep(day)
    keep(3, 0.8, source_sha256="b" * 64)
    (series,) = shown(capsys, "--metric", "mfu")
    points = series["points"]
    assert series["metric"] == "mfu"
    assert [point["value"] for point in points] == pytest.approx([0.537, 0.537, 0.671], rel=0.005)
    assert all(point["ci95"][0] < point["value"] < point["ci95"][1] for point in points)
    assert [point["is_same_code"] for point in points] == [False, True, False]
    assert [point["verdict"] for point in points] == [None, "SAME", "FASTER"]
    picture = tmp_path / "mfu.svg"
    assert main(["history", "--metric", "mfu", "--format", "md", "-o", str(picture)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "| MFU | 95% CI |" in lines[2]
    assert "| same code |" in lines[5]
    assert "| 67.1% | ±0." in lines[6]
    assert "MFU, %, 95 % CI" in picture.read_text(encoding="utf-8")
    keep(4, dtype="fp8e4m3")
    assert "no peak of h100-sxm in fp8e4m3" in refused(
        capsys, "--dtype", "fp8e4m3", "--metric", "mfu"
    )


def test_a_ratio_too_noisy_to_print_is_absent(keep, capsys):
    keep(1)
    keep(2, samples_s=[4e-6] * 40 + [1.2e-4] * 40, visits=(20,) * 4, source_sha256="b" * 64)
    (series,) = shown(capsys)
    low, high = series["points"][-1]["ratio_ci95"]
    assert high > 4 * low
    assert main(["history", "--format", "md"]) == 0
    assert " | - | UNSURE | too noisy; " in capsys.readouterr().out.splitlines()[-1]


def test_the_table_says_why_a_run_is_unsure_and_what_would_decide_it(keep, capsys):
    for day, scale in ((1, 37.2), (2, 5.99), (3, 12.0)):
        keep(day, scale, source_sha256=f"{day}" * 64)
    assert main(["history"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    unknown = "but the spread between runs of the same code is unknown"
    assert text.count(f"{unknown}; save more runs of both, or use python -m bench compare") == 2
    main(["history", "--format", "md"])
    assert capsys.readouterr().out.count(unknown) == 2


def test_each_provider_has_its_own_series(keep, capsys):
    for day in (1, 2):
        keep(day)
        keep(day, 1.2, provider="triton-v1")
    found = {series["provider"]: len(series["points"]) for series in shown(capsys)}
    assert found == {"torch": 2, "triton-v1": 2}
    (only,) = shown(capsys, "--provider", "triton-v1")
    assert only["provider"] == "triton-v1"
    main(["history", "--format", "csv"])
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert sorted((row["provider"], row["verdict"]) for row in rows) == [
        ("torch", ""),
        ("torch", "SAME"),
        ("triton-v1", ""),
        ("triton-v1", "SAME"),
    ]
    main(["history", "--format", "md"])
    out = capsys.readouterr().out
    assert out.startswith(
        "**matmul 1024x1024x1024 bf16 uniform cold on h100-sxm**\n\n| date | revision |"
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"dtype": "fp16"},
            "2 of dtype match, such as bf16, fp16",
        ),
        ({"op": "gelu"}, "2 of op match, such as matmul, gelu"),
        (
            {"case": "64x64x64"},
            "2 of case match, such as 1024x1024x1024, 64x64x64",
        ),
    ],
    ids=str,
)
def test_more_than_one_case_is_refused(keep, capsys, changes, message):
    keep(1)
    keep(2, **changes)
    assert message in refused(capsys)
    ((name, value),) = changes.items()
    assert len(shown(capsys, f"--{name}", value)[0]["points"]) == 1


@pytest.fixture
def two_hosts(keep):
    """Days 1 to 6 of three revisions on two hosts, the second 20 % slower; day 5 has no host name,
    and day 6 is really slower.
    """
    runs = {1: ("a", 1.0), 2: ("b", 1.2), 3: ("a", 1.0), 4: ("b", 1.2), 5: ("", 1.2), 6: ("a", 1.3)}
    for day, (name, scale) in runs.items():
        host = {"name": f"node-{name}"} if name else {}
        keep(day, scale, source_sha256="c" * 64 if day == 6 else None, environment={"host": host})


def test_each_host_has_a_history_of_its_own(two_hosts, capsys):
    of_a, of_b = shown(capsys, "--op", "matmul")
    assert (of_a["host"], of_b["host"]) == ("node-a", "node-b")
    days = [[int(point["started_at"][8:10]) for point in each["points"]] for each in (of_a, of_b)]
    assert days == [[1, 3, 6], [2, 4, 5]]
    assert [point["verdict"] for point in of_a["points"]] == [None, "SAME", "SLOWER"]
    assert [point["verdict"] for point in of_b["points"]] == [None, "SAME", "SAME"]


def test_several_hosts_are_named_in_the_table_and_the_plot(two_hosts, capsys, tmp_path):
    assert main(["history", "--op", "matmul", "-o", str(tmp_path / "history.svg")]) == 0
    out = capsys.readouterr().out
    assert (out.count("torch on node-a"), out.count("torch on node-b")) == (3, 3)
    (legend,) = history.draw(shown(capsys, "--op", "matmul")).legends
    assert [text.get_text() for text in legend.get_texts()][:2] == [
        "torch on node-a",
        "torch on node-b",
    ]


def test_runs_of_several_machines_are_refused_unless_one_is_named(keep, capsys):
    keep(1)
    keep(2, environment={"device": {"slug": "a100-pcie", "name": "NVIDIA A100", "type": "cuda"}})
    assert "the runs are of 2 machines: h100-sxm, a100-pcie; choose one with --machine" in refused(
        capsys
    )
    assert shown(capsys, "--machine", "a100-pcie")[0]["device"] == "a100-pcie"


def test_history_without_a_match_is_an_error(keep, capsys, runs):
    keep(1, dtype="fp8e4m3")
    assert "no run has a successful record that matches" in refused(
        capsys, "--op", "gelu", "--dtype", "bf16"
    )


def test_a_broken_run_is_left_out_and_said(keep, runs, capsys):
    keep(1)
    (runs / "broken.jsonl").write_bytes(b"\0\0")
    with keep(2).open("ab") as file:
        file.write(b"hello\n")
    assert main(["history"]) == 2
    out, err = capsys.readouterr()
    assert "2026-11-02" in out
    assert f"note: left out: {runs / 'broken.jsonl'} is not a readable run file" in err
    assert ":3: not JSON" in err


def test_steps_allow_for_the_spread_between_runs_of_the_same_code(keep, capsys):
    scales = np.exp(np.random.default_rng(1).normal(0, 0.01, 20)).tolist()
    for day, scale in enumerate(scales, start=1):
        keep(day, scale)
    keep(21, 1.2, source_sha256="b" * 64)
    (series,) = shown(capsys)
    verdicts = [point["verdict"] for point in series["points"][1:]]
    assert verdicts[-1] == "SLOWER"
    assert set(verdicts[:-1]) <= {"UNSURE", "SAME"}
    # Beyond the margin all the same.
    assert sum(abs(math.log(b / a)) > 0.012 for a, b in pairwise(scales)) >= 3


def test_a_users_kernel_has_the_revision_of_its_own_repository(keep, capsys, tmp_path):
    git = {"sha": "e" * 40, "dirty": True}
    for day, text in ((1, "a"), (2, "b"), (3, "b")):
        keep(day, provider="mine.py:gelu", source_git=git, source_sha256=text * 64)
        keep(day)
    assert main(["history", "--format", "json"]) == 0
    out = capsys.readouterr().out
    found = {series["provider"]: series["points"] for series in json.loads(out)["series"]}
    assert {point["revision"] for point in found["mine.py:gelu"]} == {"eeeeeeeeee-dirty"}
    assert [point["source_sha256"][0] for point in found["mine.py:gelu"]] == ["a", "b", "b"]
    assert found["torch"][0]["revision"] == "0101010101"


@pytest.fixture
def drawn(monkeypatch, capsys, tmp_path):
    """Returns a function that draws a history and returns its axes and figure."""

    def run(*arguments):
        figures, original = [], history.draw
        monkeypatch.setattr(
            history, "draw", lambda *drawn: figures.append(original(*drawn)) or figures[0]
        )
        assert main(["history", "-o", str(tmp_path / "history.png"), *arguments]) == 0
        capsys.readouterr()
        return figures[0].axes[0], figures[0]

    return run


def test_the_picture_of_one_run_does_not_blow_up_its_noise(keep, drawn):
    keep(1)
    axes, figure = drawn()
    low, high = axes.get_ylim()
    assert high / low > 1.09
    assert "1 run" in [text.get_text() for text in figure.texts]


def test_runs_of_one_day_are_distinguished_by_time(keep, drawn, make_environment):
    for hour in (9, 14):
        run = {
            "run_id": f"at-{hour}",
            "started_at": f"2026-11-03T{hour:02d}:30:00+00:00",
            "git": {"sha": "03" * 20},
        }
        keep(3, environment=run)
    axes, _ = drawn()
    assert [label.get_text()[:16] for label in axes.get_xticklabels()] == [
        "2026-11-03 09:30",
        "2026-11-03 14:30",
    ]


def test_history_of_an_empty_directory_is_an_error(capsys, runs):
    runs.mkdir()
    assert refused(capsys) == f"no run in {runs} matches: python -m bench.matmul makes one\n"
    missing = runs / "missing"
    assert refused(capsys, "--runs", str(missing)) == f"--runs {missing}: no such directory\n"
