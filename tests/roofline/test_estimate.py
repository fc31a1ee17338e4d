"""`python -m roofline estimate`: the examples to the digits, the keys for programs, measured runs,
bad input.
"""

import json

import pytest

from results.record import Environment, Record
from results.store.runfile import RunWriter
from roofline.__main__ import main
from roofline.machine import Ceiling, Machine


def call(*arguments):
    return main(["estimate", *arguments])


def text_of(capsys, line):
    assert call(*line.split()) == 0
    return capsys.readouterr().out


def data_of(capsys, line):
    data = json.loads(text_of(capsys, f"{line} --format json"))
    assert data["formula"]
    assert data["source"]
    assert data["assumptions"]
    return data


def result_of(text, label):
    line = next(line for line in text.splitlines() if line.startswith(f"{label}  "))
    return line.rpartition("=")[2].strip()


def test_an_unknown_option_is_refused_in_the_name_of_its_own_question(capsys):
    with pytest.raises(SystemExit):
        main(["estimate", "params", "--params", "70b"])
    name = "python -m roofline estimate params"
    assert (
        capsys.readouterr().err
        == f"{name}: error: unrecognized arguments: --params 70b; see {name} --help\n"
    )


def test_fit_reports_parameters_for_the_marketed_memory(capsys):
    """`notes` and CS336 count 80 GB of an H100 as 80e9 bytes: 40.0e9 parameters on eight; it
    reports 85.0e9.
    """
    data = data_of(capsys, "fit --gpu h100-sxm --gpus 8")
    assert data["params"] == 42_513_989_632
    note = (
        "memory as h100-sxm reports it; its nominal 80 GB, taken as 80e9 bytes, holds 40e9 "
        "parameters"
    )
    assert note in data["assumptions"]
    given = data_of(capsys, "fit --gpu h100-sxm --gpus 8 --memory 80e9")
    assert given["params"] == 40 * 10**9
    assert not any("nominal" in line for line in given["assumptions"])


def test_shares_in_per_cent_and_names_of_torch_are_understood(capsys):
    line = "train --params 70e9 --tokens 15e12 --gpu h100-sxm --gpus 1024 --dtype {} --mfu {}"
    assert (
        data_of(capsys, line.format("bfloat16", "50%"))["days"]
        == data_of(capsys, line.format("bf16", "0.5"))["days"]
    )


def test_matmul_side_by_side(capsys):
    data = data_of(
        capsys, "matmul --shape 4096 --gpu a100-sxm-80gb,h100-sxm --dtype fp32,bf16,fp8e4m3"
    )
    rows = {(row["gpu"], row["dtype"]): row for row in data["rows"]}
    assert set(data["rows"][0]) >= {
        "gpu",
        "dtype",
        "flops",
        "bytes",
        "intensity",
        "seconds",
        "bound",
    }
    assert rows["a100-sxm-80gb", "bf16"]["seconds"] == 2 * 4096**3 / 312e12
    assert rows["h100-sxm", "bf16"]["bytes"] == 3 * 2 * 4096**2
    assert rows["a100-sxm-80gb", "fp8e4m3"]["seconds"] is None
    assert "no hardware path" in rows["a100-sxm-80gb", "fp8e4m3"]["reason"]
    assert rows["h100-sxm", "bf16"]["bound"] == "compute"
    narrow = data_of(capsys, "matmul --shape 4096x1x4096 --gpu h100-sxm")["rows"][0]
    assert narrow["bound"] == "memory"
    assert narrow["seconds"] == narrow["bytes"] / 3.352e12


def test_inference(capsys):
    data = data_of(capsys, "infer --model llama-3-8b --gpu h100-sxm --prompt 4096 --batch 16")
    assert data["kv_bytes_per_token"] == 131_072
    # With 0.5 GB of cache a sequence, reading outgrows computing.
    assert data["critical_batch"] is None
    assert data["critical_batch_without_cache"] == 296
    assert data["decode_seconds"] == (data["weight_bytes_read"] + 16 * 4096 * 131_072) / 3.352e12
    assert data["prefill_seconds"] == data["prefill_flops"] / 989.4e12
    eight_bit = data_of(
        capsys, "infer --model llama-3-8b --gpu h100-sxm --weight-dtype int8 --kv-dtype fp8e4m3"
    )
    # 6.98e9 weights of the layers have one byte, those of the head two: 148 x 8.03 / 7.5.
    assert eight_bit["critical_batch_without_cache"] == 158
    assert eight_bit["kv_bytes_per_token"] == 65_536


def test_warning_names_the_gpus_needed_if_a_model_does_not_fit(capsys):
    """812 GB of weights and 1.06 GB of cache over 81,089 MiB of an H100: ten of them."""
    line = "infer --model llama-3-405b --gpu h100-sxm"
    data, text = data_of(capsys, line), text_of(capsys, line)
    held = data["weight_bytes"] + data["cache_bytes"]
    assert (
        (data["fits"], data["gpus_needed"]) == (False, -(-held // (81089 * 2**20))) == (False, 10)
    )
    assert "does not fit" in text.splitlines()[2]
    assert "hypothetical" in " ".join(text.splitlines()[2:4])
    ten = data_of(capsys, f"{line} --gpus 10")
    assert ten["fits"]
    assert ten["warnings"][0].startswith("only 4.4 % of 10 x h100-sxm with 85.03 GB is left")
    assert result_of(text_of(capsys, f"{line} --gpus 10"), "memory") == "95.6%"


def test_memory_reports_headroom_and_devices_needed(capsys):
    """Llama 3 8B: 16 x 8,030,261,248 bytes of state on two devices of 80e9 bytes, beside the
    activations of one. The number that is said suffices when it is asked for, with a gathered
    layer.
    """
    data = data_of(capsys, "memory --model llama-3-8b --memory 80e9")
    row = data["rows"][0]
    assert (row["fits"], row["headroom_bytes"]) == (False, 80_000_000_000 - data["total_bytes"])
    assert row["gpus_needed"] == 2
    assert "does not fit" in data["warnings"][0]
    line = "memory --model llama-3-8b --recipe amp --zero 3 --batch 2 --sequence 8192"
    line += " --checkpoint full --gpu h100-sxm --data-parallel"
    rows = [data_of(capsys, f"{line} {devices}")["rows"][0] for devices in (3, 4)]
    assert [row["fits"] for row in rows] == [False, True]
    assert rows[0]["gpus_needed"] == 4
    tight = data_of(capsys, "memory --model llama-3.2-1b --memory 28e9")
    assert tight["rows"][0]["fits"]
    assert tight["warnings"][0].startswith("only 7.3 % of 1 x given with 28 GB is left")


def test_tensor(capsys):
    text = text_of(capsys, "tensor --shape 49152x12288 --dtype fp32")
    assert (result_of(text, "in GB"), result_of(text, "in GiB")) == ("2.416 GB", "2.250 GiB")
    sizes = {"nvfp4": 900, "mxfp4": 850, "int4": 800, "bool": 1600}
    for dtype, size in sizes.items():
        assert data_of(capsys, f"tensor --shape 1600 --dtype {dtype}")["bytes"] == size


def measured_run(folder, records):
    ceilings = (
        Ceiling("flops", "bf16", 1e12, "measured", "here"),
        Ceiling("bandwidth", "copy", 4e10, "measured", "here"),
    )
    device = {"slug": "cpu-test", "name": "test", "type": "cpu", "memory_bytes": 16 * 10**9}
    environment = Environment(
        run_id="20260101T000000Z-abc",
        started_at="2026-01-01T00:00:00+00:00",
        argv=("x",),
        device=device,
        machine=Machine("cpu-test", "test", ceilings),
    )
    path = folder / "run.jsonl"
    with RunWriter.create(environment, "matmul", path) as writer:
        for op, flops in records:
            writer.append(
                Record(
                    op=op,
                    provider="torch",
                    dtype="bf16",
                    shape={"m": 1},
                    case="1x1x1",
                    status="ok",
                    flops=flops,
                    bytes_read=1,
                    bytes_written=1,
                    samples_s=(1.0,),
                    launches_per_sample=1,
                    method="host",
                    cache="warm",
                    median_s=1.0,
                )
            )
    return path


def test_a_measured_run_gives_peak_bandwidth_and_mfu(capsys, tmp_path):
    path = measured_run(tmp_path, [("matmul", 6 * 10**11), ("matmul", 8 * 10**11)])
    data = data_of(capsys, f"train --params 1e6 --tokens 1e6 --measured {path}")
    assert (data["gpu"], data["mfu"]) == ("cpu-test", 0.8)
    assert data["seconds"] == pytest.approx(6e12 / 0.8e12)
    assert any("an upper bound for training" in line for line in data["assumptions"])
    assert (
        data_of(capsys, f"train --params 1e6 --tokens 1e6 --measured {path} --mfu 0.25")["mfu"]
        == 0.25
    )
    row = data_of(capsys, f"matmul --shape 64x1x64 --measured {path}")["rows"][0]
    assert row["seconds"] == row["bytes"] / 4e10
    assert data_of(capsys, f"fit --measured {path} --bytes-per-param 16")["params"] == 10**9


@pytest.mark.parametrize("question", ["train --params 1e6 --tokens 1e6", "chinchilla --days 1"])
def test_a_run_that_tells_no_mfu_says_that_one_is_assumed(capsys, tmp_path, question):
    path = measured_run(tmp_path, [("relu", 10**9)])
    assert call(*question.split(), "--measured", str(path)) == 0
    assert (
        "MFU 0.5 is assumed because run 20260101T000000Z-abc has no train-step and no matmul "
        "in bf16: published runs"
    ) in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    "question",
    [
        "flops",
        "memory",
        "train --tokens 1e9 --gpu h100-sxm --convention palm",
        "infer --gpu h100-sxm",
    ],
)
def test_a_sequence_too_long_for_the_model_is_named(capsys, question):
    option = "--prompt" if question.startswith("infer") else "--sequence"
    words = "4096 tokens exceed the context of 1024"
    assert words in text_of(capsys, f"{question} --model gpt2 {option} 4096")
    assert words not in text_of(capsys, f"{question} --model gpt2 {option} 1024")


BAD = {
    "train --params -3 --tokens 1 --gpu h100-sxm": "is not a number above 0",
    "train --params 1e9 --tokens 1e9 --gpu h100-sxm --mfu 50": "40 % is 0.4",
    "train --params 1e9 --tokens 1e9": "expected a machine",
    "train --params 1e9 --model gpt2 --tokens 1e9 --gpu h100-sxm": "mutually exclusive",
    "train --params 1e9 --tokens 1e9 --days 3 --gpu h100-sxm": "estimate gpus` takes both",
    "train --params 1e9 --tokens 1e9 --measured nothing": "no run 'nothing'",
    "params --model llama3-8b": "did you mean llama-3-8b",
    "params --config /no/such/config.json": "cannot read",
    "matmul --shape 4096 --gpu t4 --dtype bf16": "t4 has no hardware path for bf16; its dtypes are",
    "flops --model gpt2 --convention 6nd --attention unfused --checkpoint selective": "does not count attention",  # noqa: E501
    "matmul --shape 4x4 --gpu t4": "is not MxNxK",
    "matmul --shape 4096 --gpu t4 --dtype bf17": "unknown 'bf17'; did you mean bf16",
    "fit --gpu h100-sxm --gpus 0": "is not an integer from 1",
    "fit --gpu h100-sxm --bytes-per-param 16 --recipe amp": "mutually exclusive",
    "fit --gpu h100-sxm --optimizer muon": "requires a model",
    "memory --model gpt2 --checkpoint every-99": "an integer K from 1 to 12",
    "memory --model gpt2 --lora 4 --lora-on q": "no matrix 'q'; the layers have query, key",
    "chinchilla --gpu h100-sxm": "--gpu has no effect without --days",
    "chinchilla": "expected a budget",
    "params --model gpt2 --tied": "--tied has no effect without --layers",
    "chinchilla --flops 1e-3": "do not suffice",
    "infer --model gpt2 --gpu h100-sxm --kv-dtype nf4": "--kv-dtype: unknown 'nf4'",
    "tensor --shape 1e12x1e12x1e12": "more than 10^30 elements",
    "tensor --shape 0x4": "is not a shape",
    "dtype --value abc": "is not a number such as 1e-8",
    "flops --model mamba-2.8b --checkpoint selective": "is known for dense transformers",
    "memory --model gpt2 --recipe fsdp": "--recipe fsdp requires --zero 3",
    "memory --model mamba-2.8b": "are not supported",
    "params --layers 2 --width 8": "requires --heads, --vocab, --ffn",
    "params --layers 2 --width 9 --heads 2 --vocab 9 --ffn 8": "is not a multiple of",
    "mfu --params 1e9 --gpu h100-sxm": "expected --tokens-per-s, or",
    "memory --model llama-3-8b --pipeline-parallel 64": "exceed the 32 layers",
    "memory --model llama-3-8b --expert-parallel 2": "does not divide 0 experts",
    "memory --model mixtral-8x7b --expert-parallel 4 --data-parallel 6 --zero 1": "is not a multiple of --expert",  # noqa: E501
}


@pytest.mark.parametrize(("line", "words"), BAD.items())
def test_bad_input_gets_one_line_and_exit_code_2(capsys, line, words):
    from roofline.__main__ import main

    try:
        code = main(["estimate", *line.split()])
    except SystemExit as leaving:
        code = leaving.code
    printed = capsys.readouterr()
    assert (code, printed.out) == (2, "")
    assert printed.err.count("\n") == 1
    assert words in printed.err


def test_flops_of_windows(capsys):
    """Mistral 7B sees 4,096 of 16,384 keys: sum of min(i, 4096) pairs a layer, 4 a d each, forward
    three times.
    """
    data = data_of(
        capsys, "flops --model mistral-7b --sequence 16384 --convention gemm-causal-half"
    )
    pairs = 4096 * 4097 // 2 + (16384 - 4096) * 4096
    assert data["components"]["attention_core"] == 3 * 32 * pairs * 4 * 32 * 128


@pytest.mark.parametrize(
    "line",
    [
        "infer --model gpt2",
        "chinchilla --days 1",
        "train --params 1e9 --tokens 1e9",
        "matmul --shape 64",
    ],
)
def test_a_dtype_that_a_gpu_lacks_is_said(capsys, line):
    data = data_of(capsys, f"{line} --gpu a100-sxm-80gb --dtype bf16,fp8e4m3")
    assert "a100-sxm-80gb has no hardware path for fp8e4m3" in data["assumptions"]
