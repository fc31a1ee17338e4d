"""Configurations changed at random: the count is that of the real architecture, or a clear
refusal.
"""

import random

import pytest
from test_accounting_parameters import VARIED, meta_model, total_of

from roofline.accounting.config import ConfigError
from roofline.accounting.parameters import count_parameters
from roofline.accounting.presets import read_config

REAL = {name: values for name, values in VARIED.items() if values["model_type"] != "nanogpt"}
"""transformers has no model of nanoGPT's kind."""
SWITCHES = (
    *(
        "tie_word_embeddings",
        "attention_bias",
        "mlp_bias",
        "use_qk_norm",
        "enable_bias",
        "bias",
        "multi_query",
    ),
    *(
        "parallel_attn",
        "new_decoder_architecture",
        "use_bias",
        "use_conv_bias",
        "qkv_bias",
        "do_layer_norm_before",
    ),
)


def changed(draw):
    """Return a configuration of some family of which one to three keys were changed, left out or
    made null.
    """
    values = dict(draw.choice(list(REAL.values())))
    for _ in range(draw.randint(1, 3)):
        key = draw.choice([key for key in values if key != "model_type"])
        value, turn = values[key], draw.random()
        if turn < 0.15:
            values.pop(key)
            if len(values) == 1:
                return values
        elif turn < 0.22:
            values[key] = None
        elif turn < 0.4:
            values[draw.choice(SWITCHES)] = draw.random() < 0.5
        elif isinstance(value, bool):
            values[key] = not value
        elif isinstance(value, int):
            values[key] = draw.choice(
                [value + 1, value - 1, 2 * value, value // 2, value // 3, 3 * value, 0, 1]
            )
    return values


def real_total(values):
    """Return the count of the real architecture; None where it cannot be built."""
    try:
        return total_of(meta_model(values))
    except Exception:  # whatever the reason
        return None


@pytest.mark.parametrize("seed", range(2))
def test_changed_configurations_count_as_real_models_or_are_rejected(seed):
    """100 in all. What transformers cannot build is no architecture whose number could be
    wrong.
    """
    draw, counted, refusals = random.Random(seed), 0, []
    for _ in range(50):
        values = changed(draw)
        try:
            total = count_parameters(read_config(values, "config.json")).total
        except ConfigError as refusal:
            refusals.append(str(refusal))
            continue
        real = real_total(values)
        counted += real is not None
        assert real in (total, None), values
    assert counted > 10
    assert refusals
    assert not any("\n" in line for line in refusals)
