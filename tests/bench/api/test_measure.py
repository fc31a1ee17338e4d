"""`bench.measure`: what is counted, copied and judged, how it shows itself, and what is refused in one line."""

import dataclasses
import math

import pytest
import torch

import bench
from bench.harness.api import function as function_meter
from bench.harness.api.counted import with_work
from bench.harness.api.measuring import fresh
from results.record import Record
from results.store.runs import load_run
from roofline.ceilings import Ceiling, Ceilings

N = 64
BLANK = Record(op="f", provider="torch", dtype="", shape={"calls": 1}, case="-", status="skipped")


@pytest.fixture
def ceilings(monkeypatch):
    """A machine of 1 TFLOP/s and 1 GB/s, measured."""
    found = Ceilings(
        "cpu-x",
        "X",
        (Ceiling("flops", "fp32", 1e12, "measured", "s"), Ceiling("bandwidth", "copy", 1e9, "measured", "s")),
    )
    monkeypatch.setattr(function_meter, "known_ceilings", lambda device: found)


def test_a_function_is_measured_counted_and_judged(ceilings):
    a, b = torch.randn(N, N), torch.randn(N, N)
    found = bench.measure(torch.matmul, a, b)
    assert isinstance(found, Record)
    assert (found.status, found.op, found.case, found.dtype) == ("ok", "matmul", f"{N}x{N},{N}x{N}", "fp32")
    assert (found.flops, found.bytes_read, found.bytes_written) == (2 * N**3, 8 * N * N, 4 * N * N)
    assert found.ci95_s[0] <= found.median_s <= found.ci95_s[1]
    assert len(found.samples_s) >= 5
    assert found.flops_per_s == pytest.approx(2 * N**3 / found.median_s)
    assert found.mfu == pytest.approx(found.flops_per_s / 1e12)
    assert found.mbu == pytest.approx(found.bytes_per_s / 1e9)
    assert found.intensity == pytest.approx(2 * N**3 / (12 * N * N))
    assert found.bound == "memory"
    assert found.roofline_pct == pytest.approx(100 * found.mbu)
    assert "counted by the profiler's rules: mm" in repr(found)
    assert torch.equal(found.result, a @ b)


def test_what_is_declared_is_not_counted():
    found = bench.measure(torch.relu, torch.randn(N), flops=7, bytes_read=8, bytes_written=9, dtype=torch.float64)
    assert (found.flops, found.bytes_read, found.bytes_written, found.dtype) == (7, 8, 9, "fp64")
    assert found.extra["work"] == "as declared"
    some = bench.measure(torch.relu, torch.randn(N), flops=7)
    assert (some.flops, some.bytes_read, some.bytes_written) == (7, 4 * N, 4 * N)
    assert some.extra["work"].endswith("; flops as declared")


def test_work_that_nobody_knows_is_missing_and_never_zero():
    found = bench.measure(lambda count: sum(range(count)), 10)
    assert (found.flops, found.bytes_read, found.bytes_written, found.flops_per_s) == (None, None, None, None)
    assert "no torch operation was seen" in repr(found)


def test_an_operation_without_a_rule_is_named():
    @torch.library.custom_op("ridgepoint_tests::nobody_knows", mutates_args=())
    def nobody_knows(x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    counted = with_work(BLANK, torch.ops.ridgepoint_tests.nobody_knows, (torch.ones(4),), {})
    assert (counted.flops, counted.bytes_read) == (None, None)
    assert "ridgepoint_tests.nobody_knows has no rule" in counted.extra["work"]


def test_a_backward_pass_is_counted_as_it_is_called():
    weight = torch.randn(N, N, requires_grad=True)

    def step(x):
        (x @ weight).sum().backward()

    forward = with_work(BLANK, lambda x: x @ weight, (torch.randn(N, N),), {})
    both = with_work(BLANK, step, (torch.randn(N, N),), {})
    assert forward.extra["matmul_flops"] == 2 * N**3
    assert both.extra["matmul_flops"] == 4 * N**3  # the gradient of the weight; the input has none


def test_a_cold_measurement_goes_round_copies_and_a_warm_one_does_not():
    large = torch.randn(2**20)
    assert bench.measure(torch.relu, large).copies > 1
    assert bench.measure(torch.relu, large, cache="warm").copies == 1


def test_what_has_no_tensor_to_copy_is_warm_and_says_so():
    x = torch.randn(N)
    found = bench.measure(lambda: torch.relu(x))
    assert found.cache == "warm"
    assert "no tensor is among the arguments" in found.flag_reasons["not-cold"]


def test_copies_keep_strides_shared_memory_and_gradients():
    base = torch.randn(4, 6, requires_grad=True)
    view = base.detach()[:, ::2]
    shared = torch.randn(3)
    copied, part, again, same, plain = fresh((base, view, [shared], {"x": shared}, "text"))
    assert torch.equal(copied, base)
    assert copied.data_ptr() != base.data_ptr()
    assert copied.requires_grad
    assert (part.stride(), torch.equal(part, view)) == (view.stride(), True)
    assert again[0].data_ptr() == same["x"].data_ptr() != shared.data_ptr()
    assert plain == "text"


def test_fresh_inputs_are_made_by_a_function():
    found = bench.measure(torch.add, inputs=lambda: (torch.ones(N), torch.ones(N)), cache="warm")
    assert found.result.tolist() == [2.0] * N
    found = bench.measure(torch.cat, inputs=lambda: [torch.ones(N), torch.ones(N)], cache="warm")
    assert found.result.tolist() == [1.0] * (2 * N)


def fails(x):
    raise ZeroDivisionError("by nothing\nat all")


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda x: bench.measure(3), "3 cannot be called; give a function or a module"),
        (
            lambda x: bench.measure(lambda a: a),
            "<lambda> raised TypeError: .* missing 1 required",
        ),
        (lambda x: bench.measure(torch.matmul, x), "matmul raised TypeError"),
        (lambda x: bench.measure(fails, x), "fails raised ZeroDivisionError: by nothing$"),
        (lambda x: bench.measure(torch.relu, x, cache="hot"), "cache='hot' must be 'cold' or 'warm'"),
        (lambda x: bench.measure(torch.relu, x, flops=-1), "flops=-1 must be a whole number"),
        (lambda x: bench.measure(torch.relu, x, dtype="fp7"), "dtype='fp7' must be one of"),
        (lambda x: bench.measure(torch.relu, x, budget_s=0), "budget_s=0 must be"),
        (lambda x: bench.measure(torch.relu, inputs=3), "inputs=3 must be a function"),
        (lambda x: bench.measure(torch.relu, inputs=lambda: None), "inputs= returned nothing"),
        (lambda x: bench.measure(torch.relu, inputs=lambda: fails(x)), "inputs raised ZeroDivisionError"),
        (lambda x: bench.measure(torch.relu, x, inputs=lambda: x), "so that 1 more have no place"),
        (lambda x: bench.measure(torch.relu, x, device="gpu"), "device='gpu' must be"),
    ],
)
def test_what_cannot_be_measured_is_one_line(call, said):
    with pytest.raises(bench.UsageError, match=said) as raised:
        call(torch.ones(4))
    assert "\n" not in str(raised.value)


def test_the_error_of_a_function_is_kept_as_the_cause():
    with pytest.raises(bench.UsageError) as raised:
        bench.measure(fails, torch.ones(1))
    assert isinstance(raised.value.__cause__, ZeroDivisionError)


def test_a_record_shows_itself_with_its_names_as_text(ceilings):
    def evil(x):
        return x + 1

    evil.__name__ = "<script>alert(1)</script>"
    found = bench.measure(evil, torch.randn(N))
    assert "<script>" not in found._repr_html_()
    assert "&lt;script&gt;" in found._repr_html_()
    assert "of the roofline, bound by memory" in repr(found)
    assert f"{found.flops:,} FLOP" in repr(found)


def test_a_time_that_cannot_be_is_shown_with_its_reason(ceilings):
    found = bench.measure(torch.relu, torch.randn(N))
    lost = dataclasses.replace(found, status="failed", reason="it\x1b broke", median_s=None)
    assert "failed    it\\x1b broke" in repr(lost)


def test_records_are_a_table_a_frame_and_a_run_file(ceilings, runs):
    one = bench.measure(torch.relu, torch.randn(N))
    found = bench.Records(one.environment, [one, one])
    assert len(found) == 2
    assert [record.op for record in found] == [found[0].op, *[record.op for record in found[1:]]]
    assert "relu" in repr(found)
    assert found._repr_html_().startswith("<pre>")
    assert list(found.to_dataframe()["median_s"]) == [one.median_s] * 2
    kept = load_run(found.save())
    assert [record.median_s for record in kept.records] == [one.median_s] * 2
    assert not kept.problems


def test_what_no_run_file_can_hold_is_said():
    one = bench.measure(lambda: math.sqrt(2))
    with pytest.raises(bench.UsageError, match="dtype= says what is computed in"):
        bench.Records(one.environment, [one]).save()


def test_the_environment_is_taken_once_while_the_ceilings_stay(monkeypatch):
    one, two = (bench.measure(torch.relu, torch.randn(N)) for _ in range(2))
    first, second = (dataclasses.replace(found.environment, run_id="", started_at="") for found in (one, two))
    assert first == second
    assert one.environment.preflight is two.environment.preflight
    new = Ceilings("cpu-x", "X", (Ceiling("bandwidth", "copy", 1e9, "measured", "s"),))
    monkeypatch.setattr(function_meter, "known_ceilings", lambda device: new)
    assert bench.measure(torch.relu, torch.randn(N)).environment.hardware == new.to_dict()
    function_meter._stamped.cache_clear()
