"""`bench profile --on`: the least time of a step on a GPU that is not here."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.utils.flop_counter import FlopCounterMode

import bench
from bench import __main__ as command
from bench.harness.op import UsageError
from bench.model.layers import load_model
from bench.profiling import fake
from bench.profiling.projection import counted, machine_named
from bench.profiling.target import from_preset

H100_BF16, H100_BANDWIDTH = 989.4e12, 3.352e12
"""Dense peak and memory bandwidth of the datasheet: NVIDIA H100 Tensor Core GPU datasheet, SXM."""

FILE = """
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor

def make():
    return nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64)), torch.randn(8, 64)
"""


def counted_flops(target):
    # Of fused attention on a CPU torch counts nothing.
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        result = target()
        getattr(result, "loss", result).sum().backward()
    return counter.get_total_flops()


def test_flops_of_a_preset_are_those_of_torch():
    config = replace(load_model("gpt2"), layers=2)
    found = counted(lambda _: from_preset(config, (1, 64), "bf16", "cpu"), "backward")
    assert sum((record.details.matmul_flops or 0) for record in found.records) == counted_flops(
        from_preset(config, (1, 64), "bf16", "meta")
    )


def test_the_least_time_is_that_of_the_longer_of_flops_and_bytes():
    model = nn.Linear(4096, 4096, bias=False, dtype=torch.bfloat16)
    large = bench.profile(
        model, torch.empty(8192, 4096, dtype=torch.bfloat16), on="h100-sxm"
    ).rows()[0]
    assert (large["bound"], large["least_s"]) == (
        "compute",
        pytest.approx(2 * 8192 * 4096**2 / H100_BF16),
    )
    small = bench.profile(model, torch.empty(1, 4096, dtype=torch.bfloat16), on="h100-sxm").rows()[
        0
    ]
    moved = 2 * (4096**2 + 2 * 4096)
    assert (small["bound"], small["least_s"]) == ("memory", pytest.approx(moved / H100_BANDWIDTH))


def test_a_step_takes_the_sum_of_its_rows_on_each_machine():
    layer = nn.TransformerEncoderLayer(64, 4, 128)
    machines = ["h100-sxm", "a100-sxm-80gb"]
    found = bench.profile(layer, torch.randn(2, 8, 64), train=True, on=machines).document()
    for machine in found["machines"]:
        rows = [row for row in found["rows"] if row["machine"] == machine["slug"]]
        assert sum(row["least_s"] for row in rows) == pytest.approx(machine["least_s"])
        assert sum(row["share"] for row in rows) == pytest.approx(1)
        saved_s = sum(each["saved_s"][machine["slug"]] for each in found["fusing"])
        assert machine["fused_s"] == pytest.approx(machine["least_s"] - saved_s)
    assert {row["phase"] for row in rows} == {"forward", "backward", "optimizer"}


def test_attention_is_one_operation_that_moves_no_scores():
    q, k, v = (torch.empty(2, 8, 512, 64, dtype=torch.bfloat16) for _ in range(3))
    (row,) = bench.profile(
        nn.functional.scaled_dot_product_attention, q, k, v, on="h100-sxm"
    ).rows()
    assert row["op"] == "aten.scaled_dot_product_attention"
    assert row["bytes_read"] == 3 * q.nbytes
    assert row["matmul_flops"] == 2 * 2 * 8 * 512 * 512 * (64 + 64)


def products_on(function, *args, **options):
    """Return the matmul FLOPs of a projection."""
    rows = bench.profile(function, *args, on="h100-sxm", **options).rows()
    return sum(row["matmul_flops"] or 0 for row in rows)


def test_a_model_may_ask_whether_it_is_traced():
    def step(x, mask):  # as the mask functions of transformers do
        return x @ x if isinstance(x, FakeTensor) or mask.all() else x

    assert products_on(step, torch.ones(4, 4), torch.ones(4)) == 2 * 4 * 4 * 4


def test_a_projection_leaves_the_model_unchanged():
    model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8))
    x = torch.ones(4, 8)
    assert products_on(model, x, train=True) == 2 * 2 * 4 * 8 * 8
    tensors = [*model.parameters(), *model.buffers(), x]
    assert not any(isinstance(tensor, FakeTensor) for tensor in tensors)
    assert all(parameter.grad is None for parameter in model.parameters())
    assert model[1].num_batches_tracked == 0


@pytest.mark.parametrize(
    ("shapes", "mask", "flops"),
    [
        (((2, 8, 16, 32), (2, 8, 16, 32), (2, 8, 16, 64)), None, 2 * 16 * 16 * 16 * (32 + 64)),
        (((2, 8, 16, 32), (2, 2, 16, 32), (2, 2, 16, 32)), None, 2 * 16 * 16 * 16 * (32 + 32)),
        (((2, 8, 16, 32),) * 3, torch.zeros(16, 16), 2 * 16 * 16 * 16 * (32 + 32)),
    ],
)
def test_attention_of_any_shape_is_projected(shapes, mask, flops):
    given = [torch.empty(shape, requires_grad=True) for shape in shapes]
    if mask is not None:
        mask.requires_grad_()
    attention = nn.functional.scaled_dot_product_attention
    options = {"attn_mask": mask, "enable_gqa": shapes[0] != shapes[1]}
    assert products_on(attention, *given, **options) == flops
    assert products_on(attention, *given, **options, backward=True) == 3 * flops


@pytest.mark.parametrize(
    ("function", "shapes", "flops"),
    [
        # At most all rows are nonzero: an upper bound.
        (lambda x, y: x[x[:, 0] > 0] @ y, ((8, 4), (4, 6)), 2 * 8 * 4 * 6),
        (lambda x, y: x.masked_select(x > 0).view(8, 4) @ y, ((8, 4), (4, 6)), 2 * 8 * 4 * 6),
        # All are different, and each is repeated once.
        (lambda x, y: torch.unique(x, dim=0) @ y, ((8, 4), (4, 6)), 2 * 8 * 4 * 6),
        (
            lambda x, y: x.repeat_interleave((x[:, 0] > 0).long(), dim=0) @ y,
            ((8, 4), (4, 6)),
            2 * 8 * 4 * 6,
        ),
        # Groups of 3 and 5 rows in fp32, for which torch has no kernel but on a CPU.
        (
            lambda x, y: torch._grouped_mm(x, y, torch.tensor([3, 8], dtype=torch.int32)),
            ((8, 16), (2, 16, 8)),
            2 * 8 * 16 * 8,
        ),
    ],
)
def test_shapes_that_depend_on_values_count_as_the_largest(function, shapes, flops):
    assert products_on(function, *map(torch.ones, shapes)) == flops


def test_given_integers_decide_shapes():
    def step(x, lengths):
        mask = torch.arange(8) < lengths.max()
        return x[: int(lengths.max())] @ x[mask].T

    assert products_on(step, torch.ones(8, 4), torch.tensor([3, 5])) == 2 * 5 * 4 * 5


def test_a_choice_among_known_indices_by_unknown_values_is_unknown():
    def step(x):  # as the suppression of overlapping boxes
        order = x[:, 0].argsort()
        left = order[x[order][:, 0] > 0]
        return x[left[0]][None] @ x.T

    assert products_on(step, torch.ones(8, 4)) == 2 * 4 * 8


def test_experts_have_equal_numbers_of_tokens():
    def step(x, router, weights):
        chosen = (x @ router).topk(2).indices
        parts = [x[(chosen == number).any(-1)] @ each for number, each in enumerate(weights)]
        return sum(part.sum() for part in parts)

    given = torch.ones(16, 8), torch.ones(8, 4), torch.ones(4, 8, 8)
    assert products_on(step, *given) == 2 * 16 * 8 * 4 + 2 * (16 * 2) * 8 * 8


def test_an_unknown_number_is_one_and_a_condition_holds():
    def step(x):
        if x.isnan().any():
            raise ValueError
        return x @ x * x.sum().item() if (x > 0).all() else x

    found = bench.profile(step, torch.ones(4, 4), on="h100-sxm")
    assert sum(row["matmul_flops"] for row in found.rows()) == 2 * 4 * 4 * 4
    assert found.document()["assumed"] == ["aten._local_scalar_dense"]
    assert "numbers that the host reads are 1" in repr(found)


def test_a_loop_that_waits_for_another_value_ends(monkeypatch):
    monkeypatch.setattr(fake, "MAX_ASSUMED", 10)

    def endless(x):
        while x.sum() > 0:
            x = x - 1

    with pytest.raises(UsageError, match="without values"):
        bench.profile(endless, torch.ones(4), on="h100-sxm")


class Experts(nn.ModuleDict):
    def forward(self, x):  # as Switch Transformers
        return self.bfloat16()[f"expert_{x.argmax()}"](x.bfloat16())


def test_a_model_may_convert_a_layer_that_a_number_names():
    model = Experts({"expert_0": nn.Linear(4, 4)})
    rows = bench.profile(model, torch.ones(2, 4), on="h100-sxm").rows()
    assert [row["dtype"] for row in rows if row["matmul_flops"]] == ["bf16"]
    assert model["expert_0"].weight.dtype == torch.float32


@pytest.mark.skipif(torch.__version__ < "2.13", reason="flex attention is not seen by a mode")
def test_the_roof_of_flex_attention_has_the_blocks_that_run():
    x = torch.ones(1, 2, 256, 16, requires_grad=True)

    mask = create_block_mask(lambda b, h, q, k: q >= k, None, None, 256, 256, device="cpu")
    options = {"block_mask": mask, "on": "h100-sxm", "backward": True}
    rows = bench.profile(flex_attention, x, x, x, **options).rows()
    flops = {row["phase"]: row["flops"] for row in rows if row["matmul_flops"]}
    pairs = 3 * 128 * 128  # one of four blocks has no pair
    assert flops == {"forward": 4 * 2 * pairs * 16, "backward": 8 * 2 * pairs * 16}
    assert products_on(flex_attention, x, x, x, backward=True) == 12 * 2 * 256 * 256 * 16


def test_the_first_branch_of_a_condition_is_projected():
    def branches(x, y):  # the first is assumed to run
        return torch.cond(x.sum() > 0, lambda x, y: x @ y, lambda x, y: x @ y @ y, (x, y))

    given = [torch.ones(8, 8, requires_grad=True) for _ in range(2)]
    assert products_on(branches, *given, backward=True) == 3 * 2 * 8 * 8 * 8
    branches(*given).sum().backward()  # torch compiles it as before


class Remembering(nn.Linear):
    def __init__(self):
        super().__init__(8, 8)
        self.scale = torch.ones(8)

    def forward(self, x):
        self.last = super().forward(x) * self.scale
        return self.last


def test_a_module_may_keep_tensors_that_are_no_buffers():
    model = Remembering()
    x = torch.ones(4, 8)
    last = model(x)  # not a leaf, which no copy can be made of
    assert products_on(model, x) == 2 * 4 * 8 * 8
    assert model.last is last


def test_a_sparse_matrix_without_values_has_no_rule():
    projection = bench.profile(
        torch.sparse.mm, torch.eye(8).to_sparse(), torch.ones(8, 4), on="h100-sxm"
    )
    rows = projection.rows()
    assert [row["op"] for row in rows if "unmodelled" in row["flags"]] == ["aten._sparse_addmm"]
    # Work, time and share are unknown, not 0.
    markdown = projection.table(top=1).render("md")
    assert "| - | - | - | - | - | - | unmodelled |" in markdown
    assert markdown.count("\n| aten") == len(projection.records)


def test_tensors_that_cannot_be_copied_without_values_are_refused_in_one_line():
    sequences = [torch.ones(3, 8), torch.ones(5, 8)]
    nested = torch.nested.nested_tensor(sequences, layout=torch.jagged)
    with pytest.raises(UsageError, match=r"^Linear: "):
        bench.profile(nn.Linear(8, 8), nested, on="h100-sxm")


@pytest.fixture
def file(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(FILE)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.exhaustive
def test_the_command_projects_a_function_of_a_file(file, capsys):
    words = [
        "profile",
        "mine.py:make",
        "--on",
        "h100-sxm,a100-sxm-80gb",
        "--train",
        "--format",
        "json",
    ]
    assert command.main(words) == 0
    found = json.loads(capsys.readouterr().out)
    assert [machine["slug"] for machine in found["machines"]] == ["h100-sxm", "a100-sxm-80gb"]
    assert found["fusing"][0]["operations"] == ["gelu_backward", "sum"]
    assert not list(file.rglob("*.jsonl"))  # nothing is saved, because nothing was measured


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["mine.py:make", "--on", "h900"], "unknown GPU 'h900'"),
        (["mine.py:make", "--on", "h100-sxm", "--compile"], "remove --compile"),
        (["mine.py:make", "--on", "h100-sxm", "--plot", "x.png"], "remove --plot"),
    ],
)
def test_what_cannot_be_projected_is_refused_in_one_line(file, capsys, words, message):
    assert command.main(["profile", *words]) == 2
    assert message in capsys.readouterr().err.splitlines()[-1]


def test_a_saved_run_names_the_machine_with_its_measured_roofs():
    (path,) = (Path(__file__).parents[3] / "results/published/cpu-amd-epyc-2t").glob(
        "*-matmul-*.jsonl"
    )
    machine = machine_named(str(path))
    assert (machine.slug, machine.peak("bf16").kind) == ("cpu-amd-epyc-2t", "measured")
