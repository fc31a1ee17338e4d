"""`bench.sweep`: a row for each function, shape and dtype, those that fail with their reason."""

import pytest
import torch

import bench


def test_each_function_is_measured_at_each_shape_in_each_dtype():
    frame = bench.sweep(
        {"relu": torch.relu, "exp": torch.exp},
        shapes=[(4, 8), 16],
        dtypes=["fp32", torch.float64],
        cache="warm",
    )
    assert len(frame) == 8
    assert set(zip(frame["provider"], frame["case"], frame["dtype"], strict=True)) == {
        (name, case, dtype)
        for name in ("relu", "exp")
        for case in ("4x8", "16")
        for dtype in ("fp32", "fp64")
    }
    assert (frame["status"] == "ok").all()
    assert frame["median_s"].notna().all()
    wide = frame[(frame["case"] == "4x8") & (frame["dtype"] == "fp64")].iloc[0]
    assert (wide["bytes_read"], wide["bytes_written"], wide["shape_d0"], wide["shape_d1"]) == (
        256,
        256,
        4,
        8,
    )


def test_inputs_are_made_for_each_shape_and_failed_rows_have_a_reason():
    def matmul(a, b):
        if a.shape[0] > 4:
            raise RuntimeError("too large for me")
        return a @ b

    seen = []

    def inputs(shape, dtype, device):
        seen.append((shape, dtype, device))
        return torch.ones(shape, dtype=dtype), torch.ones(shape, dtype=dtype)

    frame = bench.sweep(
        {"mine": matmul}, shapes=["4X4", (8, 8)], inputs=inputs, cache="warm", device="cpu"
    )
    assert frame["status"].tolist() == ["ok", "failed"]
    assert frame["flops"].tolist()[0] == 2 * 4**3
    assert "too large for me" in frame["reason"].tolist()[1]
    assert seen[0] == ((4, 4), torch.float32, "cpu")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"fn_by_name": {}}, "give functions by name"),
        ({"fn_by_name": {1: torch.relu}}, "1 must be a text"),
        ({"shapes": []}, "shapes= is empty"),
        ({"shapes": ["8x"]}, "got '8x'"),
        ({"dtypes": "fp7"}, "dtypes='fp7' must be of"),
        ({"fn_by_name": {"x": lambda a, b: a}}, "every row failed: x at 8: "),
    ],
)
def test_sweep_rejects_invalid_arguments_in_one_line(words, said):
    with pytest.raises(bench.UsageError, match=said) as raised:
        bench.sweep(**({"fn_by_name": {"relu": torch.relu}, "shapes": [8]} | words))
    assert "\n" not in str(raised.value)


def test_a_sweep_draws_rates_by_size_as_perf_report_does(tmp_path):
    frame = bench.sweep(
        {"relu": torch.relu, "exp": torch.exp}, shapes=[64, 256, 1024], cache="warm", budget_s=0.05
    )
    figure = frame.plot(tmp_path / "lines.png")
    assert (tmp_path / "lines.png").stat().st_size > 10_000
    (axes,) = figure.axes
    drawn = {line.get_label(): line.get_xydata().tolist() for line in axes.lines}
    assert set(drawn) == {"relu fp32", "exp fp32"}
    rates = frame[frame["provider"] == "relu"]["bytes_per_s"]
    assert drawn["relu fp32"] == [list(pair) for pair in zip((64, 256, 1024), rates, strict=True)]
    assert axes.get_xlabel() == "size"
    assert figure.texts[0].get_text() == "B/s"
    frame["flags"] = "not-cold, preempted"
    texts = [text.get_text() for text in frame.plot().texts]
    assert any("warm, other work took time from 6 of 6 points" in text for text in texts)
    assert axes.yaxis.get_major_formatter()(2e9, 0) == "2 GB/s"
    figure = frame.plot(y="median_s", theme="dark")
    assert figure.texts[0].get_text() == "seconds"


def test_a_size_is_the_extent_that_varies_or_the_product_of_several():
    def sizes(shapes):
        frame = bench.sweep({"mm": torch.relu}, shapes=shapes, cache="warm", budget_s=0.02)
        return frame.plot().axes[0].lines[0].get_xdata().tolist()

    assert sizes([(32, 64), (32, 16)]) == [16, 64]
    assert sizes([(32, 32), (64, 64)]) == [32, 64]
    assert sizes([(32, 64), (64, 8)]) == [512, 2048]
    frame = bench.sweep({"f": abs}, shapes=[8], inputs=lambda *_: 3, cache="warm", device="cpu")
    with pytest.raises(bench.UsageError, match=r"no row has 'bytes_per_s'; use y= with one of"):
        frame.plot()
