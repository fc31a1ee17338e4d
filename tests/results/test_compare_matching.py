"""python -m results compare: what belongs together, what is listed without a counterpart, what is
refused.
"""

import csv
import io
import re
from itertools import pairwise

import pytest
from compare_runs import NO_DRIFT, case, compared, refused

from results.__main__ import main


def test_what_has_no_counterpart_is_listed(save, measured, make_skipped, capsys):
    shared = measured(seed=1)
    before = save("a", shared, measured(**case(64)))
    after = save(
        "b", shared, measured(**case(128)), measured(provider="triton-v1"), make_skipped(**case(32))
    )
    code, document = compared(capsys, before, after)
    assert code == 0
    assert len(document["rows"]) == 1
    found = {
        (one["side"], one["case"], one["provider"], one["reason"]) for one in document["unmatched"]
    }
    assert found == {
        ("baseline", "64x64", "torch", "not in the candidate"),
        ("candidate", "128x128", "torch", "not in the baseline"),
        ("candidate", "1024x1024x1024", "triton-v1", "not in the baseline"),
        ("candidate", "32x32", "torch", "skipped: out of memory"),
    }
    assert main(["compare", *NO_DRIFT, before, after]) == 0
    out = capsys.readouterr().out
    assert "candidate: matmul 128x128 bf16 torch uniform cold: not in the baseline" in out
    main(["compare", *NO_DRIFT, before, after, "--format", "csv"])
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [row["verdict"] for row in rows] == ["SAME", *["UNMATCHED"] * 4]


def test_a_candidate_that_became_wrong_fails(save, measured, make_skipped, capsys):
    good, small = measured(seed=1), measured(seed=1, **case(64))
    before = save("a", good, small)
    wrong = make_skipped(status="invalid", reason="wrong result", **case(64))
    code, document = compared(capsys, before, save("b", good, wrong))
    assert code == 1
    assert [one["broken"] for one in document["unmatched"] if one["side"] == "candidate"] == [True]
    assert document["summary"]["broken"] == 1
    # Where the baseline was wrong as well, or the candidate alone has the case, nothing has become
    # wrong.
    assert compared(capsys, save("c", good, wrong), save("d", good, wrong))[0] == 0
    assert compared(capsys, save("e", good, wrong), save("f", good, small))[0] == 0


@pytest.mark.parametrize(
    ("changes", "state"), [({"fill": "zeros"}, "zeros cold"), ({"cache": "warm"}, "uniform warm")]
)
def test_rows_of_another_fill_or_cache_do_not_match(save, measured, capsys, changes, state):
    before, after = save("a", measured(seed=1)), save("b", measured(seed=1, **changes))
    for force in ((), ("--force",)):
        message = refused(capsys, before, after, *force)
        assert "bf16 torch uniform cold (not in the candidate)" in message
        assert f"bf16 torch {state} (not in the baseline)" in message


def test_a_failure_has_no_cache_state_and_is_blamed_all_the_same(
    save, measured, make_skipped, capsys
):
    failed = make_skipped(status="failed", reason="crashed", cache=None)
    code, document = compared(
        capsys,
        save("a", measured(seed=1), measured(**case(64))),
        save("b", failed, measured(**case(64))),
    )
    assert code == 1
    assert document["summary"]["broken"] == 1


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        (
            {"device": {"slug": "a100", "name": "NVIDIA A100", "type": "cuda"}},
            "device NVIDIA H100 80GB HBM3 against NVIDIA A100",
        ),
        ({"host": {"name": "node-8"}}, "host node-7 against node-8"),
        ({"settings": {"clock_mode": "locked"}}, "clock_mode default against locked"),
        ({"preflight": {"power_limit_w": 500.0}}, "power_limit_w 700.0 against 500.0"),
    ],
)
def test_another_machine_is_refused_and_forced(save, measured, capsys, changes, reason):
    usual = {"settings": {"clock_mode": "default"}, "preflight": {"power_limit_w": 700.0}}
    before, after = (
        save("a", measured(seed=1), **usual),
        save("b", measured(seed=1), **(usual | changes)),
    )
    assert f"not the same machine: {reason}; --force" in refused(capsys, before, after)
    document = compared(capsys, before, after, "--force")[1]
    assert f"compared by force: {reason}" in document["summary"]["notes"]


@pytest.mark.parametrize("host", [{}, {"name": None}, {"cpu": "a CPU"}])
def test_a_run_without_a_host_name_may_be_of_any_host(save, measured, capsys, host):
    before = save("a", measured(seed=1))
    after = save("b", measured(seed=1, scale=1.1), host=host)
    code, document = compared(capsys, before, after)
    assert (code, [row["verdict"] for row in document["rows"]]) == (1, ["SLOWER"])


def test_what_one_run_does_not_tell_is_no_difference(save, measured, capsys):
    before = save("a", measured(seed=1), settings={"clock_mode": "locked"})
    assert compared(capsys, before, save("b", measured(seed=2)))[0] == 0


def test_other_versions_are_a_note(save, measured, capsys):
    one = measured(seed=1)
    before, after = (
        save("a", one),
        save("b", one, versions={"python": "3.11.9", "torch": "2.14.0", "triton": None}),
    )
    assert (
        "other versions: torch 2.13.0 against 2.14.0"
        in compared(capsys, before, after)[1]["summary"]["notes"]
    )


def test_options_and_shapes_tell_cases_apart(save, measured, capsys):
    before = save(
        "a", measured(options={"layout": "nn"}), measured(seed=1, options={"layout": "nt"})
    )
    after = save(
        "b", measured(options={"layout": "nn"}), measured(shape={"m": 7}, options={"layout": "nt"})
    )
    document = compared(capsys, before, after)[1]
    assert [row["options"] for row in document["rows"]] == ["layout=nn"]
    assert len(document["unmatched"]) == 2


@pytest.fixture
def providers(save, measured):
    """A run of three providers at two shapes, with a slower version 1 and a faster version 2."""
    scales = {"torch": 1.0, "triton-v1": 1.1, "triton-v2": 0.9}
    records = [
        measured(scale, provider=name, **case(size))
        for size in (64, 128)
        for name, scale in scales.items()
    ]
    return save("p", *records)


def test_the_providers_of_one_run(providers, capsys):
    code, document = compared(capsys, providers, "--by", "provider")
    found = [
        (row["case"], row["baseline"], row["candidate"], row["verdict"]) for row in document["rows"]
    ]
    expected = [("triton-v1", "SLOWER"), ("triton-v2", "FASTER")]
    assert found == [(size, "torch", *pair) for size in ("64x64", "128x128") for pair in expected]
    assert code == 1
    document = compared(capsys, providers, "--by", "provider", "--baseline", "triton-v1")[1]
    assert {(row["candidate"], row["verdict"]) for row in document["rows"]} == {
        ("torch", "FASTER"),
        ("triton-v2", "FASTER"),
    }


@pytest.mark.parametrize(
    ("names", "order"),
    [
        (("triton-v10", "triton-v2", "triton-v9"), ("triton-v2", "triton-v9", "triton-v10")),
        (("gelu.py:b", "gelu.py:a"), ("gelu.py:a", "gelu.py:b")),
        (("mm_v10.py:mm", "mm_v2.py:mm"), ("mm_v2.py:mm", "mm_v10.py:mm")),
    ],
)
def test_versions_are_ordered_and_functions_of_a_file_are_versions(
    save, measured, capsys, names, order
):
    """Each is compared with the one before."""
    scales = {name: 1 - 0.1 * place for place, name in enumerate(order)}
    run = save("a", *[measured(scales[name], provider=name) for name in names])
    rows = compared(capsys, run, "--by", "version")[1]["rows"]
    assert [(row["baseline"], row["candidate"]) for row in rows] == list(pairwise(order))


def test_a_version_is_compared_with_the_best_before_it_too(save, measured, capsys):
    """The MFU is half of the peak at 4.295 us, and each has the interval of its median."""
    scales = {"mm-v1": 1.0, "mm-v2": 0.8, "mm-v3": 1.2, "mm-v4": 0.9}
    run = save("a", *[measured(scale, provider=name) for name, scale in scales.items()])
    rows = compared(capsys, run, "--by", "version")[1]["rows"]
    assert [(row["baseline"], row["candidate"], row["verdict"]) for row in rows] == [
        ("mm-v1", "mm-v2", "FASTER"),
        ("mm-v2", "mm-v3", "SLOWER"),
        ("mm-v3", "mm-v4", "FASTER"),
        ("mm-v2", "mm-v4", "SLOWER"),
    ]
    for row in rows:
        for side in ("baseline", "candidate"):
            low, high = row[f"mfu_ci95_{side}"]
            assert low < row[f"mfu_{side}"] < high < 1.01 * low
    assert rows[0]["mfu_baseline"] == pytest.approx(0.5369, rel=0.005)
    main(["compare", run, "--by", "version", "--drift", "0%", "--format", "md"])
    assert re.search(r"mm-v2 -> mm-v4 .* 67.\d% ±0.\d+% ", capsys.readouterr().out)


def test_selections(providers, capsys):
    arguments = ("--by", "provider", "--provider", "torch,triton-v2", "--case", "64x64")
    (row,) = compared(capsys, providers, *arguments)[1]["rows"]
    assert (row["candidate"], row["case"]) == ("triton-v2", "64x64")
    message = refused(capsys, providers, "--by", "provider", "--dtype", "fp16")
    assert "has no record that matches --op, --dtype, --case and --provider" in message


def test_names_that_do_not_fit_are_refused(providers, save, measured, capsys):
    other = save("q", measured(seed=1, **case(3)))
    assert "unknown baseline cublas (choose from torch, triton-v1, triton-v2)" in refused(
        capsys, providers, "--by", "provider", "--baseline", "cublas"
    )
    assert "--baseline torch requires --by provider" in refused(
        capsys, providers, other, "--baseline", "torch"
    )
    assert "no other provider to compare with torch" in refused(capsys, other, "--by", "provider")
    one_version = save("v", measured(seed=1), measured(seed=1, provider="triton-v1"))
    assert "no other version of a kernel to compare with triton-v1" in refused(
        capsys, one_version, "--by", "version"
    )
    assert "no provider is a version" in refused(capsys, other, "--by", "version")
    assert "expected two runs, got one" in refused(capsys, providers)
    assert "in turns with python -m bench compare" in refused(capsys, providers)
    assert "has rows of" in refused(capsys, providers, "--by", "git")
    message = refused(capsys, providers, other)
    assert (
        "error: nothing to compare: the baseline has matmul 64x64 bf16 torch uniform cold (not in "
        "the candidate)" in message
    )
    assert "the candidate has matmul 3x3 bf16 torch uniform cold (not in the base" in message


def test_one_file_in_two_worktrees_is_compared_by_provider(save, measured, capsys):
    one = save("a", measured(seed=1, provider="/wt1/mine.py:gelu"))
    other = save("b", measured(seed=2, provider="/wt2/mine.py:gelu"))
    hint = "--by provider compares the same function in two directories"
    assert hint in refused(capsys, one, other)
    _, found = compared(capsys, one, other, "--by", "provider")
    assert [row["candidate"] for row in found["rows"]] == ["/wt2/mine.py:gelu"]
