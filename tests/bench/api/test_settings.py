"""Settings of torch that a function changes in the caller's process are put back and reported."""

import pytest
import torch

import bench
from bench.harness.data.torch_settings import current_settings, fp32_precision

X = torch.ones(8, 8)
QUICK = {"cache": "warm", "budget_s": 0.02}
BACKENDS = torch.backends
CHANGES = {
    "number of threads": lambda: torch.set_num_threads(torch.get_num_threads() + 1),
    "default dtype": lambda: torch.set_default_dtype(torch.float64),
    "fp32 precision of products": lambda: torch.set_float32_matmul_precision("medium"),
    "deterministic algorithms": lambda: torch.use_deterministic_algorithms(True, warn_only=True),
    "flushed denormals": lambda: torch.set_flush_denormal(True),
    "gradients": lambda: torch.set_grad_enabled(False),
}


@pytest.fixture(autouse=True)
def before():
    found = current_settings()
    yield found
    assert current_settings() == found


def changing(name):
    def function(x):
        CHANGES[name]()
        return x + x

    return function


def double(x):
    return x + x


@pytest.mark.parametrize("name", CHANGES)
def test_a_measured_function_is_flagged(name):
    record = bench.measure(changing(name), X, **QUICK)
    assert record.status == "ok"
    assert name in record.flag_reasons["settings-restored"]


def test_the_newer_precision_alone_is_put_back():
    def function(x):
        BACKENDS.mkldnn.matmul.fp32_precision = "bf16"
        return x + x

    before = fp32_precision()
    record = bench.measure(function, X, **QUICK)
    newer, _, _ = before.rpartition("/")
    assert f" {before} -> {newer}/bf16" in record.flag_reasons["settings-restored"]


def test_settings_are_put_back_after_an_error():
    def function(x):
        CHANGES["default dtype"]()
        raise ValueError("later")

    with pytest.raises(bench.UsageError, match="later"):
        bench.measure(function, X, **QUICK)


def test_a_row_of_a_sweep_is_flagged_and_the_next_one_is_not():
    functions = {"changing": changing("default dtype"), "double": double}
    frame = bench.sweep(functions, [8], device="cpu", **QUICK)
    assert ["settings-restored" in flags for flags in frame["flags"]] == [True, False]


def test_do_bench_warns():
    with pytest.warns(UserWarning, match="settings-restored: the function changed default dtype"):
        bench.do_bench(lambda: changing("default dtype")(X), 0, 0)


def test_a_candidate_that_changes_them_has_no_verdict():
    functions = {"double": double, "changing": changing("number of threads")}
    compared = bench.compare(functions, X, cache="warm", rounds=6)
    assert compared.verdicts == {}
    said = "changing: failed: changed settings of the process: number of threads"
    assert said in "".join(compared.unmatched)


def test_a_change_in_the_rounds_is_an_error():
    calls = []

    def later(x):
        calls.append(1)
        if len(calls) == 3:  # the first is that of the check
            CHANGES["default dtype"]()
        return x + x

    with pytest.raises(bench.UsageError, match=r"^changed settings of the process: default dtype"):
        bench.compare({"double": double, "later": later}, X, cache="warm", rounds=6)
