"""Activations under `--kernels eager` against the tensors that real models of transformers save, to
the byte.
"""

from dataclasses import replace

import pytest
import torch
from test_accounting_counted import real_model
from test_accounting_parameters import VARIED
from test_accounting_saved import DTYPES, saved_bytes

from roofline.accounting.activations import layer_activations, torch_kernels
from roofline.accounting.presets import read_config
from roofline.accounting.state import RECIPES

SEQUENCE, BATCH = 24, 2


def kept_by_layers(values, layers, element_bytes):
    model = real_model(
        {**values, "n_layer" if "n_layer" in values else "num_hidden_layers": layers}
    )
    model = model.to(DTYPES[element_bytes])
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    ids = torch.randint(1, 1000, (BATCH, SEQUENCE))
    held = [*model.parameters(), *model.buffers()]
    return saved_bytes(lambda: model.base_model(input_ids=ids, use_cache=False)[0], parameters=held)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("element_bytes", [2, 4])
@pytest.mark.parametrize("name", ["llama", "qwen3", "gpt2"])
def test_a_layer_keeps_what_real_models_keep(name, element_bytes):
    values = VARIED[name]
    config = read_config(values, "config.json")
    kernels = torch_kernels(
        config, RECIPES["fp32" if element_bytes == 4 else "bf16"], is_eager=True
    )
    if config.norm == "layer":  # on a CPU it keeps its statistics in the dtype
        kernels = replace(kernels, statistic_bytes=element_bytes)
    layer = kept_by_layers(values, 3, element_bytes) - kept_by_layers(values, 2, element_bytes)
    assert sum(layer_activations(config, SEQUENCE, BATCH, kernels).values()) == layer
