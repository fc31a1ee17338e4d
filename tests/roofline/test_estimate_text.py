"""What people read of an estimate first: the answer in their units, large parts before small ones,
bars, notes.
"""

import io

import pytest
from rich.console import Console
from test_estimate import text_of

from roofline.estimate.answer import Answer, Step, print_answer, steps_of
from roofline.work import Work


def marked(text):
    """Return the answer, which stands first after the title, in one line."""
    first = text.partition("=> ")[2].partition("\n\n")[0]
    assert text.index("=> ") < text.index("formula: ")
    return " ".join(first.split())


@pytest.mark.parametrize(
    ("line", "answer"),
    [
        ("params --model mixtral-8x7b", "46.70 B parameters, 12.88 B of them active"),
        (
            "train --params 70e9 --tokens 15e12 --gpu h100-sxm --gpus 1024",
            "143.9 days, 3.537 M device hours",
        ),
        ("gpus --params 70e9 --gpu h100-sxm", "14 devices, bound by memory"),
        ("memory --model gpt2", "3.838 GB in total, 1.991 GB of state, 1.847 GB of activations"),
        (
            "mfu --params 1e9 --tokens-per-s 5e4 --gpu h100-sxm",
            "MFU 30.3%, HFU 30.3%, 300 TFLOP/s",
        ),
    ],
)
def test_the_answer_comes_first_in_the_units_of_people(capsys, line, answer):
    assert marked(text_of(capsys, line)) == answer


def test_large_parts_come_first_and_small_ones_are_one_row(capsys):
    lines = [
        line.split("  ")[0] for line in text_of(capsys, "params --model gpt-oss-20b").splitlines()
    ]
    assert (
        lines.index("experts: up")
        < lines.index("experts: down")
        < lines.index("embedding")
        < lines.index("total")
    )
    assert "11 more" in lines
    assert "attention: sinks" not in lines


def shown(answer, is_terminal, width=100):
    file = io.StringIO()
    print_answer(
        Console(file=file, width=width, force_terminal=is_terminal, color_system=None), answer
    )
    return file.getvalue()


def test_parts_have_bars_in_a_wide_terminal_alone():
    steps = [Step("small", "", "1", 1), Step("large", "", "3", 3), Step("total", "", "4")]
    answer = Answer(
        title="t",
        values={},
        steps=steps,
        formula="f",
        source="s",
        assumptions=["left out: all that is", "what matters"],
    )
    bars = {
        line.split()[0]: line.count("█")
        for line in shown(answer, True).splitlines()
        if line.strip()
    }
    assert (bars["large"], bars["small"], bars["total"]) == (18, 6, 0)
    assert "█" not in shown(answer, True, width=80)
    plain = shown(answer, False)
    assert "█" not in plain
    assert plain.index("large") < plain.index("small") < plain.index("total")
    assert plain.index("what matters") < plain.index("left out")


def test_a_step_that_needs_an_unknown_value_is_left_out():
    lines = """\
speed | {work.flops:number} / {seconds:time} | {speed:number} FLOP/s
memory | {gpus:,} x 80 GB | {used:percent} of {total:bytes}
price | {gpus:,} devices | {price:number}
"""
    facts = {"speed": 1e15, "gpus": 1024, "used": 0.25, "total": 8e10, "price": None}
    assert steps_of(lines, work=Work(10**12, 0, 0), seconds=1e-3, **facts) == [
        Step("speed", "1e12 / 1 ms", "1e15 FLOP/s"),
        Step("memory", "1,024 x 80 GB", "25% of 80 GB"),
    ]
