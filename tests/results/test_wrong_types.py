"""Run files with values of wrong types: every command that reads them shows what is valid and says
the rest in a line, without a traceback.
"""

import json
import random
from dataclasses import fields

import pytest
import wrong_types
from wrong_types import (
    COPYING,
    GPU_KEYS,
    LOADING,
    PROFILE_ROW,
    ROUNDS,
    STEP_TOTALS,
    TRAINING,
    WRONG,
    as_text,
    lines_of,
    places,
    replaced,
)

from bench.__main__ import main as bench
from results.__main__ import main as results
from results.record import Record, Rounds
from results.store.runfile import encode_line, load_run
from roofline.__main__ import main as roofline
from tests.validation.fleet_generator import healthy

CEILING = {"quantity": "flops", "name": "bf16", "value": 9e14, "kind": "measured", "source": "here"}
CEILING |= {"ci95": [8e14, 9e14], "p5_p95": [8e14, 9e14], "sm_clock_hz": 1e9, "power_w": 400.0}
LAUNCH = {"quantity": "launch", "name": "launch", "value": 1e-6, "kind": "measured", "source": "x"}
FIT = {"sm_clock_hz": 1.7e9, "memory_clock_hz": 2e9, "throttle": {"sw_thermal": 0.0}}
FIT |= {"clock_events": [], "link_generation": 5, "link_width": 16, "pcie_replays": 0}

PICTURES = ("png", "html", "svg", "parquet")
"""Suffixes of the commands that take long."""


@pytest.fixture
def kinds(make_environment, make_record):
    """Lines of valid run files by kind; the rows of each take the same time, so no verdict is
    SLOWER.
    """
    environment = json.loads(encode_line(make_environment()))
    environment["device"] |= {"threads": 2, "uuid": "GPU-1", "memory_bytes": 80 << 30}
    environment["device"] |= {"clock_mode": "default", "power_limit_w": 700.0}
    environment["hardware"]["entries"] += [CEILING, LAUNCH]
    environment["settings"] |= {"fill": "uniform", "cache": "cold"}
    environment["settings"] |= {"baseline": "torch", "margin": 0.01, "budget_s": None}
    environment["preflight"] = {"tick_s": 1e-9, "governor": "performance"}
    environment["fleet"] = {"rank": 0, "node": "n0", "world_size": 1, "local_rank": 0}
    environment["fleet"] |= {"pci_bus_id": "0", "health": healthy()}
    times = {"samples_s": tuple(4e-6 * (1 + 1e-3 * i) for i in range(20)), "ci95_s": (4e-6, 4.1e-6)}
    rounds = Rounds(names=("torch", "triton-v1"), sm_clock_hz=(1.7e9,) * 20, **ROUNDS)
    rows = {
        "full": [GPU_KEYS, GPU_KEYS | {"provider": "kernels.py:mine"}],
        "profile": [PROFILE_ROW],
        "rounds": [times | {"provider": provider, "details": rounds} for provider in rounds.names],
        "step": [GPU_KEYS | {"details": TRAINING}],
        "copy": [GPU_KEYS | {"details": COPYING}],
        "loop": [GPU_KEYS | {"details": LOADING}],
        "collectives": [
            {"op": "all-reduce", "shape": {"bytes": size}, "case": str(size)}
            | {"options": {"ranks": 2}, "telemetry": {"round_s": [1e-5 + size * 1e-9]}}
            for size in (1024, 2048, 4096, 8192)
        ],
        "rank": [
            {"op": op, "options": {"phase": phase}, "telemetry": FIT}
            for op in ("matmul", "copy", "launch")
            for phase in ("solo", "together")
        ],
    }
    lines = {
        kind: [environment, *(json.loads(encode_line(make_record(**row))) for row in of_kind)]
        for kind, of_kind in rows.items()
    }
    profiled = environment | {"profile": STEP_TOTALS}
    lines["profile"] = [profiled, *lines["profile"][1:]]
    published = sorted(wrong_types.PUBLISHED.glob("*.jsonl"))
    assert len(published) == 2
    return lines | {path.name[17:-6]: lines_of(path)[:4] for path in published}


def mutations(lines, seed, count):
    """Yield lines of a run file, one of which has one value of another type."""
    generator = random.Random(seed)
    absent = {field.name for field in fields(Record)} - {"extra"}
    for _ in range(count):
        index = generator.choice([0, *range(1, len(lines))])
        known = list(places(lines[index]))
        if index:
            known += [(name,) for name in sorted(absent - lines[index].keys())]
        path = generator.choice(known)
        value = generator.choice(WRONG)
        yield (
            path,
            value,
            [*lines[:index], replaced(lines[index], path, value), *lines[index + 1 :]],
        )


def commands(bad, good, directory, row):
    """Yield the commands that read a run file, and whether they read all of `bad`."""
    case = ("--op", row["op"], "--case", row["case"], "--dtype", row["dtype"])
    yield results, ["list", "--runs", directory], False
    yield results, ["list", "--runs", directory, "--op", "matmul"], False
    yield results, ["show", bad], True
    yield results, ["show", bad, "-v"], True
    for form in ("json", "csv", "md"):
        yield results, ["show", bad, "--format", form], True
    yield results, ["compare", bad, good], True
    yield results, ["compare", good, bad, "--format", "json"], True
    yield results, ["compare", bad], True
    yield results, ["compare", bad, "--by", "provider", "--format", "md"], True
    yield results, ["compare", bad, good, "--by", "git", "--force"], True
    yield results, ["compare", bad, good, "-o", f"{directory}/compare.png"], True
    yield results, ["history", "--runs", directory, *case], False
    yield results, ["history", "--runs", directory, *case, "--against", bad], True
    yield results, ["history", "--runs", directory, *case, "-o", f"{directory}/history.png"], False
    for form in ("bmf", "github-benchmark", "pytorch-v3", "junit", "openmetrics"):
        yield results, ["export", bad, "--format", form], True
    yield results, ["export", good, "--format", "junit", "--baseline", bad], True
    yield results, ["export", bad, "-o", f"{directory}/run.parquet"], True
    yield roofline, ["plot", bad, "-o", f"{directory}/plot.svg"], True
    yield roofline, ["page", bad, "-o", f"{directory}/page.html"], True
    yield roofline, ["page", good, bad, "-o", f"{directory}/page.html"], True
    measured = ("--measured", bad)
    yield roofline, ["estimate", "matmul", *measured, "--shape", "64"], True
    yield roofline, ["estimate", "train", *measured, "--params", "1e9", "--tokens", "1e9"], True
    yield roofline, ["estimate", "matmul", "--measured", directory, "--shape", "64"], True
    yield bench, ["fleet-report", directory, "--all"], False
    yield bench, ["fleet-report", directory, "--format", "json"], False


def problem_of(path):
    """Return the place of the first invalid line, None if there is none."""
    try:
        run = load_run(path)
    except Exception as error:
        return f"{path} is not a readable run file: line 1: " if "line 1: " in str(error) else error
    return run.problems[0].split(": ")[0] if run.problems else None


@pytest.mark.parametrize(
    "kind",
    [
        "full",
        "profile",
        "rounds",
        "collectives",
        "rank",
        "matmul-a349e4f85f",
        "elementwise-20c1728384",
    ],
)
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.sampled(2)
def test_a_value_of_another_type_is_a_line_and_never_a_traceback(
    kind, seed, kinds, tmp_path, capsys
):
    lines = kinds[kind]
    directory = tmp_path / "mutated"
    directory.mkdir()
    bad = directory / "bad.jsonl"
    good = directory / "good.jsonl"
    other = {"run_id": "20261120T210312Z-00000000ff", "git": {"sha": "ff" * 20, "dirty": False}}
    good.write_text(as_text([lines[0] | other, *lines[1:]]))
    for path, value, mutated in mutations(lines, f"{kind} {seed}", 4):
        bad.write_text(as_text(mutated))
        problem = problem_of(bad)
        for main, arguments, reads_all in commands(str(bad), str(good), str(directory), lines[1]):
            is_picture = arguments[-1].endswith(PICTURES)
            if is_picture and random.Random(f"{seed} {path} {arguments[0]}").random() > 0.1:
                continue
            shown = f"{arguments} with {value!r} at {path}"
            try:
                code = main(arguments)
            except SystemExit as leaving:
                code = leaving.code
            except Exception as error:
                pytest.fail(f"{type(error).__name__} of {shown}: {error}")
            err = capsys.readouterr().err
            allowed = {0, 2}
            if main is bench:
                allowed |= {1, 3}  # findings, such as of ranks with other settings
            assert code in allowed, shown
            assert "internal error" not in err, shown
            assert "Traceback" not in err, shown
            if code == 2:
                assert err.strip(), shown
            if reads_all and problem:
                assert code == 2, shown
                assert problem in err, shown


@pytest.mark.parametrize("path", ["op", "provider", "reason", "options"])
def test_a_lone_surrogate_is_escaped_in_a_parquet_file(path, kinds, tmp_path):
    import pandas as pd

    environment, row, *_ = kinds["full"]
    value = {"\ud800": "\ud800"} if path == "options" else "\ud800"
    bad = tmp_path / "bad.jsonl"
    bad.write_text(as_text([environment, row | {path: value}]))
    parquet = tmp_path / "run.parquet"
    assert results(["export", str(bad), "-o", str(parquet)]) == 0
    column = "option_\\ud800" if path == "options" else path
    assert list(pd.read_parquet(parquet)[column]) == ["\\ud800"]
