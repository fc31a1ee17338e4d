"""The models that can be built here: read from presets and config.json files. Does not import torch."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path

from roofline.accounting.config.config import ConfigError, ModelConfig
from roofline.accounting.config.file import load_config, load_preset

FAMILIES = ("gpt2", "nanogpt", "llama", "mistral", "qwen2", "qwen3")
"""Families whose layers are computed as published."""


@functools.lru_cache(maxsize=64)
def load_model(name: str) -> ModelConfig:
    """Return the model of a preset or of the path of a config.json.

    Raises:
        ConfigError: the preset is unknown, or the file cannot be read.
    """
    if name.endswith(".json") or "/" in name:
        return load_config(Path(name))
    try:
        return load_preset(name)
    except ConfigError as error:
        raise ConfigError(str(error).replace("--config", "--model")) from None


def unsupported(config: ModelConfig, sequence: int, families: Sequence[str] = FAMILIES) -> str | None:
    """Return why a model cannot be built for sequences of this length, or None."""
    problem = None
    if config.latent:
        problem = "latent attention (MLA) is not supported"
    elif config.experts:
        problem = "mixtures of experts are not supported"
    elif config.family not in families:
        problem = f"family {config.family} is not supported (choose from {', '.join(families)})"
    elif not config.position_embeddings and config.head_dim % 2:
        problem = f"heads of {config.head_dim} cannot be rotated in pairs"
    elif config.windowed_layers and config.window and sequence > config.window:
        problem = f"sliding windows are not supported; use at most {config.window} tokens, got {sequence}"
    elif config.position_embeddings and sequence > config.position_embeddings:
        problem = f"the model has {config.position_embeddings} positions, got {sequence} tokens"
    return f"{config.name}: {problem}" if problem else None
