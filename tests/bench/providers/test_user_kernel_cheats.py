"""Functions that only look fast are `invalid` with the reason; honest functions pass."""

import pytest

from bench.harness.measure.rows import Settings
from tests.bench import user_kernels
from tests.bench.user_kernels import measure


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("kernels")
    for name in ("HONEST", "CHEATS"):
        (folder / f"{name.lower()}.py").write_text(getattr(user_kernels, name))
    return folder


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "function", ["into_out", "returned", "by_name", "with_a_pool", "settings_of_its_own"]
)
def test_honest_functions_are_measured(files, function):
    record = measure(f"{files}/honest.py:{function}")
    assert (record.status, record.reason) == ("ok", None)
    assert record.median_s > 0
    assert (
        record.verified["before"]["checked_elements"]
        == record.verified["after"]["checked_elements"]
        == 8192
    )
    assert len(record.source_sha256) == 64
    assert "settings-restored" not in record.flags


@pytest.mark.parametrize("fill", ["zeros", "normal"])
def test_honest_functions_are_measured_with_other_fills_in_narrow_dtypes(files, fill):
    record = measure(
        f"{files}/honest.py:into_out", dtype="bf16", settings=Settings(fill=fill, cache="warm")
    )
    assert (record.status, record.fill, record.copies) == ("ok", fill, 1)


def test_an_honest_random_function_is_measured(files):
    assert measure(f"{files}/honest.py:dropout", op="dropout").status == "ok"


IN_PLACE = """
def returns_it(x):
    return x.relu_()

def returns_nothing(x):
    x.relu_()

def wrong(x):
    return x.abs_()
"""


@pytest.mark.parametrize("function", ["returns_it", "returns_nothing", "wrong"])
def test_a_function_in_place_is_measured_where_it_is_declared(tmp_path, function):
    (tmp_path / "mine.py").write_text(IN_PLACE)
    provider = f"{tmp_path}/mine.py:{function}"
    if function == "returns_it":
        assert measure(provider, "relu").reason == MUTATED
    record = measure(provider, "relu", settings=Settings(in_place=True))
    if function == "wrong":
        assert record.reason.startswith("wrong result: an element is")
    else:
        assert (record.status, record.reason) == ("ok", None)
        assert record.launches_per_sample <= record.copies


def test_a_provider_that_remembers_contents_is_slower_on_new_ones(tmp_path):
    (tmp_path / "mine.py").write_text(REMEMBERS)
    record = measure(f"{tmp_path}/mine.py:remembers", "relu")
    assert record.status == "invalid"
    assert record.reason.startswith("after timing: slower on fresh contents: ")


REMEMBERS = """
import time
import torch

seen = {}

def remembers(x):
    key = float(x.sum()), float(x[5])
    if key not in seen:
        seen[key] = torch.relu(x)
        time.sleep(0.01)
    return seen[key]
"""

STALE = "returns the result of an earlier call"
MUTATED = "changes its inputs"
PARTIAL = "an element is NaN"
CHANGED = "changed settings of the process: "

CHEATS = [
    ("cached_by_shape", STALE),
    ("cached_by_address", STALE),
    ("only_into_an_empty_output", STALE),
    ("by_caller", STALE),
    ("without_garbage_collection", STALE),
    ("on_another_thread", PARTIAL),
    ("returned_from_another_thread", "wrong result: an element is"),
    ("changes_its_input", MUTATED),
    ("half", PARTIAL),
    ("other_memory", "replaced the memory of an input or the output"),
    ("its_input", "returns a view of an input"),
    ("overflowing", "wrong result on hard inputs (1000): expected 1000, got nan"),
    ("one_number", "its elements share memory"),
    ("wide", "wrong result: (8192,) torch.float64 instead of (8192,) torch.float32"),
    ("nothing", "got None"),
    ("lazy", "got a Lazy"),
    ("in_bf16", "further from the fp64 reference than rounding explains"),
    ("threads", f"{CHANGED}number of threads: 1 -> 3"),
    ("default_dtype", f"{CHANGED}default dtype: torch.float32 -> torch.float64"),
    ("precision", f"{CHANGED}fp32 precision of products: "),
    ("deterministic", f"{CHANGED}deterministic algorithms: 0 -> 2"),
]


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("function", "reason"), CHEATS)
def test_a_cheat_is_invalid_with_its_reason(files, function, reason):
    record = measure(f"{files}/cheats.py:{function}")
    assert record.status == "invalid", record
    assert reason in record.reason
    assert record.median_s is None


def test_a_later_visit_calls_before_timing_on_hard_inputs_only(files):
    """Another process may choose another algorithm, as autotuners with a file do."""
    record = measure(f"{files}/honest.py:returned", is_again=True)
    assert (record.status, list(record.verified)) == ("ok", ["after"])
    wrong = measure(f"{files}/cheats.py:overflowing", is_again=True)
    assert wrong.reason.startswith("wrong result on hard inputs")


def test_restoring_inputs_between_samples_is_no_wrong_clock(tmp_path):
    (tmp_path / "mine.py").write_text(IN_PLACE)
    settings = Settings(in_place=True)
    record = measure(f"{tmp_path}/mine.py:returns_it", "relu", settings=settings, elements=2**22)
    assert (record.status, record.reason) == ("ok", None)


def test_a_result_cached_by_the_elements_at_the_ends_is_invalid(tmp_path):
    """As the output cache with a fingerprint of flashinfer-bench-starter-kit, issue 21."""
    (tmp_path / "mine.py").write_text(user_kernels.FINGERPRINT)
    record = measure(f"{tmp_path}/mine.py:gelu")
    assert record.status == "invalid"
    assert record.reason.startswith("after timing: returns the result of an earlier call")


def test_a_cached_result_is_detected_with_one_copy_too(files):
    record = measure(f"{files}/cheats.py:cached_by_shape", settings=Settings(cache="warm"))
    assert (record.status, STALE in record.reason) == ("invalid", True)


def test_a_result_right_only_for_zeros_is_invalid(files):
    record = measure(f"{files}/cheats.py:zeros", settings=Settings(fill="zeros"))
    assert record.status == "invalid"
    assert STALE in record.reason


def test_one_dropout_mask_for_all_seeds_is_invalid(files):
    record = measure(f"{files}/cheats.py:same_mask", op="dropout")
    assert record.status == "invalid"
    assert "the masks of two seeds agree" in record.reason


def test_settings_changed_by_an_import_are_restored_and_flagged(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(
        "import torch\ntorch.set_num_threads(3)\ntorch.set_default_dtype(torch.float64)\n"
        "def gelu(x):\n    assert torch.get_num_threads() == 1 and torch.tensor(1.0).dtype is "
        "torch.float32\n"
        "    return torch.nn.functional.gelu(x)\n"
    )
    record = measure(f"{file}:gelu")
    assert (record.status, record.reason) == ("ok", None)
    assert "settings-restored" in record.flags
    assert (
        "number of threads: 1 -> 3, default dtype: torch.float32 -> "
        in record.flag_reasons["settings-restored"]
    )
