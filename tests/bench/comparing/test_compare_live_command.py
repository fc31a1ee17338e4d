"""`python -m bench compare` on small CPU cases with providers made by tests: rows, records, exit
codes.
"""

import json

import pytest
import torch

from bench import __main__ as command
from bench.comparing import interleave, turns
from bench.harness.measure import measure_row, rows
from bench.harness.providers.registry import Provider, ProviderUnavailableError
from results.store.runfile import load_run
from tests.bench import commands

CASE = ("--op", "relu", "--dtype", "fp32", "--shape", "4096", "--device", "cpu")
ROUNDS = ("--rounds", "25")
MAX_TRIES = 5

pytestmark = pytest.mark.usefixtures("quick")


def same(x, out):
    torch.clamp_min(x, 0, out=out)


def slow(x, out):
    for _ in range(100):  # far more than the noise of a busy machine
        same(x, out)


def wrong(x, out):
    out.copy_(x)


def late_wrong(calls=[0]):  # noqa: B006  # counts across calls
    def relu(x, out):
        calls[0] += 1
        same(x, out)
        if calls[0] > 200:
            out.add_(1)

    return relu


def raises_later():
    calls = [0]

    def relu(x, out):
        calls[0] += 1
        if calls[0] > 300:
            raise ValueError("no more")
        same(x, out)

    return relu


def unavailable(x, out):
    raise ProviderUnavailableError("it needs a GPU")


@pytest.fixture
def provide(monkeypatch):
    """Return a function that replaces providers by functions of a test."""

    def use(**functions):
        def load(name, op, family, device):
            function = functions[name.replace("-", "_")]
            return Provider(
                name, function, takes_out=True, refuses_with=(ProviderUnavailableError,)
            )

        monkeypatch.setattr(measure_row, "load", load)
        # A function of a test runs anywhere.
        monkeypatch.setattr(rows, "unavailable", lambda *_: None)

    return use


def compare(*words):
    try:
        return command.main(["compare", *map(str, words)])
    except SystemExit as exit:
        return exit.code


def document(capsys, *words, code=0):
    assert compare(*CASE, *ROUNDS, "--format", "json", "-q", *words) == code
    found = json.loads(capsys.readouterr().out)
    assert found["summary"]["exit_code"] == code
    return found


def decided(capsys, *words):
    """Return the JSON of a comparison; repeat it if a busy machine leaves it UNSURE."""
    for _ in range(MAX_TRIES):
        code = compare(*CASE, *ROUNDS, "--format", "json", "-q", *words)
        found = json.loads(capsys.readouterr().out)
        assert found["summary"]["exit_code"] == code
        if all(row["verdict"] != "UNSURE" for row in found["rows"]):
            break
    return found


@pytest.mark.exhaustive
def test_a_slower_provider_exits_with_1(capsys, provide):
    provide(torch=same, torch_compile=slow)
    found = decided(capsys, "--provider", "torch,torch-compile")
    assert found["summary"]["exit_code"] == 1
    (row,) = found["rows"]
    assert (row["op"], row["dtype"], row["case"]) == ("relu", "fp32", "4096")
    assert (row["baseline"], row["candidate"], row["verdict"]) == (
        "torch",
        "torch-compile",
        "SLOWER",
    )
    # On a busy machine only a bound is known.
    low, high = row["ci95"] or (row["ratio"], row["ratio"])
    assert 2 < low <= row["ratio"] <= high
    assert "beyond the margin" in row["reason"]
    assert row["mfu_baseline"] > row["mfu_candidate"] > 0
    if not row["is_bound"]:
        assert found["summary"]["geomean"] == pytest.approx(row["ratio"])
    assert row["cycles_ratio"] is None  # a CPU's clock is not known


@pytest.mark.exhaustive
@pytest.mark.parametrize("is_confirmed", [True, False])
def test_a_regression_that_must_be_confirmed_fails_in_its_second_measurement(
    capsys, provide, monkeypatch, is_confirmed
):
    measured = interleave.interleave
    tries = []

    def counted(*arguments):
        tries.append(arguments)
        return measured(*arguments)

    def candidate(x, out):
        (slow if is_confirmed or len(tries) == 1 else same)(x, out)

    monkeypatch.setattr(interleave, "interleave", counted)
    provide(torch=same, torch_compile=candidate)
    words = ("--provider", "torch,torch-compile", "--confirm", "--margin", "90%")
    found = decided(capsys, *words)
    assert found["summary"]["exit_code"] == int(is_confirmed)
    assert [row["verdict"] == "SLOWER" for row in found["rows"]] == [is_confirmed]
    assert len(tries) >= 2


@pytest.mark.exhaustive
def test_the_named_baseline_is_used_at_any_position(capsys, provide):
    provide(torch=same, torch_compile=slow)
    found = decided(capsys, "--provider", "torch", "--baseline", "torch-compile")
    assert [(row["baseline"], row["verdict"]) for row in found["rows"]] == [
        ("torch-compile", "FASTER")
    ]
    assert found["summary"]["exit_code"] == 0  # a faster provider is not a regression


def test_a_provider_named_twice_is_compared_with_itself(capsys, provide):
    provide(torch=same)
    found = document(capsys, "--provider", "torch,torch", "--margin", "90%")
    assert [row["candidate"] for row in found["rows"]] == ["torch#2"]
    assert found["rows"][0]["verdict"] in ("SAME", "UNSURE")  # UNSURE on a busy machine


@pytest.mark.exhaustive
def test_fail_on_unsure_exits_with_1(capsys, provide, monkeypatch):
    """The second provider alternates between ten times slower and ten times faster."""
    run_rounds = turns.run_rounds

    def jittering(*arguments, **options):
        rounds = run_rounds(*arguments, **options)
        rounds.slots[1] = [
            (slot[0] * 10 ** (1 - 2 * (index % 2)),) for index, slot in enumerate(rounds.slots[0])
        ]
        return rounds

    monkeypatch.setattr(turns, "run_rounds", jittering)
    provide(torch=same)
    words = (*CASE, *ROUNDS, "--provider", "torch,torch", "-q", "--no-save")
    assert compare(*words) == 0
    assert compare(*words, "--fail-on", "unsure") == 1
    assert "1 UNSURE of 1 row" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("make", "code", "broken", "reason"),
    [
        (lambda: wrong, 1, True, "invalid: wrong result"),
        (late_wrong, 1, True, "invalid: after timing"),
        (raises_later, 1, True, "failed: ValueError: no more"),
        (lambda: unavailable, 0, False, "skipped: it needs a GPU"),
    ],
    ids=["wrong", "late wrong", "raises", "unavailable"],
)
def test_a_bad_provider_is_left_out_with_its_reason(capsys, provide, make, code, broken, reason):
    provide(torch=same, torch_compile=make(), triton_v1=same)
    words = ("--provider", "torch,torch-compile,triton-v1", "--margin", "90%", "--cache", "warm")
    found = document(capsys, *words, code=code)
    assert [row["candidate"] for row in found["rows"]] == ["triton-v1"]
    (left,) = found["unmatched"]
    assert (left["provider"], left["broken"]) == ("torch-compile", broken)
    assert left["reason"].startswith(reason)


@pytest.mark.parametrize(("baseline", "code"), [(unavailable, 2), (wrong, 1)])
def test_nothing_is_compared_if_the_baseline_fails(capsys, provide, baseline, code):
    calls = []
    provide(torch=baseline, torch_compile=lambda x, out: calls.append(None) or same(x, out))
    words = ("-q", "--no-save", "--cache", "warm", "--provider", "torch,torch-compile")
    assert compare(*CASE, *ROUNDS, *words) == code
    assert calls == []  # nothing is spent on the others before the baseline is right
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert "torch" in err


def test_ctrl_c_keeps_the_finished_cases(capsys, runs, provide, monkeypatch):
    provide(torch=same, torch_compile=slow)
    measure_case, seen = interleave.interleave, []

    def interrupted(*arguments):
        seen.append(None)
        if len(seen) > 1:
            raise KeyboardInterrupt
        return measure_case(*arguments)

    monkeypatch.setattr(interleave, "interleave", interrupted)
    words = ("--shape", "8192", "--provider", "torch,torch-compile")
    found = document(capsys, *words, code=130)
    assert [row["case"] for row in found["rows"]] == ["4096"]
    assert len(load_run(commands.run_files(runs)[0]).records) == 2


def test_ctrl_c_before_the_first_verdict_exits_with_130(capsys, runs, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(interleave, "interleave", interrupted)
    assert compare(*CASE, "--provider", "torch,torch", "--format", "json") == 130
    err = capsys.readouterr().err
    assert "error" not in err
    assert "nothing was compared" in err
    assert load_run(commands.run_files(runs)[0]).records == ()


REFUSED = [
    ("--op relu --provider torch,torch --margin nan", "argument --margin: expected a fraction"),
    (
        "--op relu --provider torch,torch --rounds 5",
        "argument --rounds: '5' must be a whole number from 6",
    ),
    ("--op relu --provider torch", "expected at least two providers, got only torch"),
    ("--provider torch,torch", "expected --op"),
    (
        "--op relu --provider torch,nosuch",
        "unknown provider 'nosuch' for elementwise; choose from ",
    ),
    ("--op relu --provider torch,torch --layout nt", "--layout does not apply to relu"),
]


@pytest.mark.parametrize(("words", "message"), REFUSED, ids=[words for words, _ in REFUSED])
def test_invalid_compare_arguments_are_a_one_line_error(capsys, runs, monkeypatch, words, message):
    def measured(*arguments, **options):
        raise AssertionError("something was measured")

    monkeypatch.setattr(interleave, "interleave", measured)
    assert compare(*words.split(), "--device", "cpu") == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1, err
    assert message in err
    assert commands.run_files(runs) == []


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_compare_on_a_missing_device_exits_with_3(capsys):
    assert compare("--op", "relu", "--provider", "torch,torch", "--device", "cuda") == 3
    assert capsys.readouterr().err.count("\n") == 1
