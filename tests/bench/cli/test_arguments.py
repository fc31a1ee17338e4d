"""Options of each command (frozen), the cases they select, and errors for invalid ones."""

import importlib
from dataclasses import replace
from pathlib import Path

import pytest

from bench.__main__ import families
from bench.harness.cli.arguments import Request, build_parser, chosen_ops
from bench.harness.cli.main import make_all_cases
from results.show.options import given

MODULES = {name: importlib.import_module(f"bench.{name}") for name in families()}
FAMILIES = {
    name: (module.EXAMPLES, module.OPS, getattr(module, "OPTIONS", ()))
    for name, module in MODULES.items()
}

# Users script against these options: adding or removing one is a decision that changes this list.
EVERYWHERE = {
    "--help",
    "--dtype",
    "--shape",
    "--provider",
    "--device",
    "--gpu",
    "--fill",
    "--cache",
    "--budget",
    "--require-quiet",
    "--seed",
    "--format",
    "--output",
    "--no-save",
    "--plot",
    "--quiet",
    "--verbose",
    "--timeout",
    "--signature",
    "--op",
    "--threads",
    "--tolerance",
    "--peak-memory",
    "--in-place",
}
SHORT = {"-h", "-q", "-v", "-o"}
ONLY = {
    "attention": {"--heads", "--kv-heads", "--head-dim"},
    "matmul": {"--layout", "--batch"},
    "elementwise": {"--size"},
    "matvec": set(),
    "reduction": {"--size"},
    "norm": set(),
    "softmax": set(),
    "cross_entropy": set(),
    "quantize": set(),
    "adamw": set(),
    "rope": {"--heads", "--kv-heads", "--head-dim"},
}


def parser(family):
    examples, ops, options = FAMILIES[family]
    return build_parser(family, "What it does.", examples, ops, options)


def cases(family, *argv, device="cpu"):
    ops = FAMILIES[family][1]
    parsed = parser(family).parse_args(argv)
    args = replace(given(Request, parsed), own=vars(parsed))
    return [case for _, _, case in make_all_cases(args, chosen_ops(args.op, {family: ops}), device)]


def names(family, *argv, device="cpu"):
    return [(case.op, case.dtype, case.name) for case in cases(family, *argv, device=device)]


@pytest.mark.parametrize("family", FAMILIES)
def test_options_of_each_command_are_frozen(family):
    known = {word for action in parser(family)._actions for word in action.option_strings}
    own = known - EVERYWHERE - SHORT
    assert known >= EVERYWHERE | SHORT
    assert own == ONLY.get(family, own)


def test_default_shapes_depend_on_the_device():
    extents = {"cpu": [256, 512, 1024, 2048], "cuda": [256, 512, 1024, 2048, 4096, 8192, 16384]}
    for device, wanted in {
        "cpu": extents["cpu"],
        "cuda": extents["cuda"],
        "rocm": extents["cuda"],
    }.items():
        assert [case.shape["m"] for case in cases("matmul", device=device)] == wanted


def test_lists_are_comma_separated_or_repeated():
    wanted = [("matmul", dtype, f"{n}x{n}x{n}") for dtype in ("bf16", "fp32") for n in (64, 128)]
    assert names("matmul", "--dtype", "bf16,fp32", "--shape", "64,128") == wanted
    repeated = ("--dtype", "bf16", "--dtype", "fp32", "--shape", "64", "--shape", "128")
    assert names("matmul", *repeated) == wanted
    # Each once.
    assert names("matmul", "--dtype", "bf16, fp32,,bf16", "--shape", "64,128,64") == wanted


def test_ops_default_to_all_and_keep_the_given_order():
    assert [case.op for case in cases("elementwise", "--shape", "64")] == [
        op.name for op in FAMILIES["elementwise"][1]
    ]
    assert [
        case.op for case in cases("elementwise", "--shape", "64", "--op", "relu,copy,relu")
    ] == ["relu", "copy"]


def test_layouts_and_batches_multiply():
    wanted = ["8x8x8", "8x8x8:tn", "8x8x8:b4", "8x8x8:b4:tn"]
    assert [
        n for _, _, n in names("matmul", "--shape", "8", "--layout", "nn,tn", "--batch", "1,4")
    ] == wanted


@pytest.mark.parametrize(("family", "op"), [("norm", "layernorm"), ("softmax", "softmax")])
def test_a_single_extent_is_the_width_of_4096_rows(family, op):
    words = ("--op", op) if family == "norm" else ()
    found = names(family, *words, "--shape", "8192,3x7,1024:3072:1024")
    assert [name for _, _, name in found] == [
        "4096x8192",
        "3x7",
        "4096x1024",
        "4096x2048",
        "4096x3072",
    ]
    assert names("cross_entropy", "--shape", "32000") == [("cross-entropy", "bf16", "4096x32000")]


def test_fp8_has_its_own_default_layout():
    found = cases("matmul", "--shape", "64", "--dtype", "bf16,fp8e4m3")
    assert [case.options for case in found] == [
        {"layout": "nn", "batch": 1},
        {"layout": "nt", "batch": 1},
    ]


@pytest.mark.parametrize(
    ("dtype", "elements"), [("fp64", 131_072), ("fp32", 262_144), ("fp16", 524_288)]
)
def test_sizes_are_bytes_of_one_operand(dtype, elements):
    assert names("elementwise", "--op", "add", "--dtype", dtype, "--size", "1MiB") == [
        ("add", dtype, str(elements))
    ]


@pytest.mark.parametrize(
    ("family", "guess", "written"),
    [
        ("matmul", "--dtype float32,torch.bfloat16", "--dtype fp32,bf16"),
        ("matmul", "--dtype bf16 fp32", "--dtype bf16,fp32"),
        (
            "matmul",
            "--dtype BF16,half,float8_e4m3fn --layout nt",
            "--dtype bf16,fp16,fp8e4m3 --layout nt",
        ),
        ("matmul", "--shape 64X32X16,64×32×8,8*8*4", "--shape 64x32x16,64x32x8,8x8x4"),
        ("matmul", "--shape 64 128 --dtype fp32", "--shape 64,128 --dtype fp32"),
        ("elementwise", "--op GELU,gelu_tanh,bias_gelu", "--op gelu,gelu-tanh,bias-gelu"),
    ],
)
def test_common_alternative_spellings_are_accepted(family, guess, written):
    assert names(family, *guess.split()) == names(family, *written.split())


def test_an_unknown_option_suggests_the_nearest_option(capsys):
    with pytest.raises(SystemExit):
        parser("matmul").parse_args(["--dtpye", "bf16"])
    assert capsys.readouterr().err.endswith(
        "unrecognized arguments: --dtpye bf16; did you mean --dtype?\n"
    )


def test_output_suffix_decides_between_run_file_and_plot():
    args = parser("matmul").parse_args(["-o", "runs.jsonl"])
    assert (args.output, args.plot) == (Path("runs.jsonl"), None)
    args = parser("matmul").parse_args(["-o", "roofline.PNG"])
    assert (args.output, args.plot) == (None, Path("roofline.PNG"))
