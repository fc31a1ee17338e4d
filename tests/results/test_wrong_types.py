"""Run files with values of wrong types: every command that reads them shows what is valid and says
the rest in a line, without a traceback.
"""

import json
import random
from dataclasses import fields

import pytest
import wrong_types
from wrong_types import (
    GPU_KEYS,
    PROFILE_ROW,
    ROUNDS,
    STEP_TOTALS,
    WRONG,
    as_text,
    lines_of,
    places,
    replaced,
)

from bench.__main__ import main as bench
from results import load
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

PICTURES = ("png", "html", "svg")
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
    lines["profile"] = [environment | {"profile": STEP_TOTALS}, *lines["profile"][1:]]
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


COMMANDS = (
    "results list --runs {directory}",
    "results list --runs {directory} --op matmul",
    "results show {bad}",
    "results show {bad} -v",
    "results show {bad} --format json",
    "results show {bad} --format csv",
    "results show {bad} --format md",
    "results compare {bad} {good}",
    "results compare {good} {bad} --format json",
    "results compare {bad}",
    "results compare {bad} --by provider --format md",
    "results compare {bad} {good} --by git --force",
    "results compare {bad} {good} -o {directory}/compare.png",
    "results history --runs {directory} {case}",
    "results history --runs {directory} {case} -o {directory}/history.png",
    "results export {bad} --format bmf",
    "results export {bad} --format github-benchmark",
    "results export {bad} --format junit",
    "results export {bad} --format openmetrics",
    "results export {good} --format junit --baseline {bad}",
    "roofline plot {bad} -o {directory}/plot.svg",
    "roofline page {bad} -o {directory}/page.html",
    "roofline page {good} {bad} -o {directory}/page.html",
    "roofline estimate matmul --measured {bad} --shape 64",
    "roofline estimate train --measured {bad} --params 1e9 --tokens 1e9",
    "roofline estimate matmul --measured {directory} --shape 64",
    "bench fleet-report {directory} --all",
    "bench fleet-report {directory} --format json",
)
"""The commands that read run files."""
MAINS = {"results": results, "roofline": roofline, "bench": bench}


def commands(row, **paths):
    """Yield the function and the arguments of each command; options select the case of `row`."""
    case = f"--op {row['op']} --case {row['case']} --dtype {row['dtype']}"
    for command in COMMANDS:
        name, *arguments = command.format(op=row["op"], case=case, **paths).split(" ")
        yield MAINS[name], arguments


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
        for main, arguments in commands(lines[1], bad=bad, good=good, directory=directory):
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
            _, err = capsys.readouterr()
            allowed = {0, 2}
            if main is bench:
                allowed |= {1, 3}  # findings, such as of ranks with other settings
            assert code in allowed, shown
            assert "internal error" not in err, shown
            assert "Traceback" not in err, shown
            if code == 2:
                assert err.strip(), shown
            # Run files of a machine are read whole, those of lists and histories by their heads.
            if problem and (str(bad) in arguments or "--measured" in arguments):
                assert code == 2, shown
                assert problem in err, shown


def test_a_rank_of_another_type_is_one_line_and_a_wrong_usage(kinds, tmp_path, capsys):
    environment, *rows = kinds["rank"]
    bad = tmp_path / "bad.jsonl"
    bad.write_text(as_text([environment | {"fleet": {"rank": "first", "node": "a"}}, *rows]))
    assert results(["show", str(bad)]) == 2
    assert capsys.readouterr().err == (
        f"python -m results show: error: {bad} is not a readable run file: line 1: "
        "Expected `int`, got `str` - at `$.fleet.rank`\n"
    )


def test_a_lone_surrogate_is_escaped_in_a_frame(kinds, tmp_path):
    environment, row, *_ = kinds["full"]
    bad = tmp_path / "bad.jsonl"
    bad.write_text(as_text([environment, row | {"op": "\ud800", "options": {"\ud800": "\ud800"}}]))
    frame = load(bad)
    assert list(frame["op"]) == list(frame["option_\\ud800"]) == ["\\ud800"]
