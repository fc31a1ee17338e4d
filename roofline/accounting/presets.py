"""Models by name (one TOML file each in `models/`) or from the `config.json` of Hugging Face
transformers.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from results.show.facts import facts_of
from results.show.spelling import did_you_mean
from results.show.terminal import busy
from roofline.accounting.config import ConfigError, ConfigKeys, Keys, ModelConfig, shown_value
from roofline.accounting.families import FAMILIES, build_config

MODEL_FOLDER = Path(__file__).parent / "models"

WAYS = (
    "its dimensions (--layers, --width, --heads, --ffn, --vocab; --experts, --experts-per-token) "
    "or its size (--params, --active-params)"
)


def preset_names() -> list[str]:
    return sorted(path.stem for path in MODEL_FOLDER.glob("*.toml"))


def load_preset(name: str) -> ModelConfig:
    """Return the model of a name, or of a folder with a configuration or safetensors files."""
    names = preset_names()
    folder = Path(name)
    if name in names:
        data = facts_of(MODEL_FOLDER / f"{name}.toml")
        keys = ConfigKeys(data["config"], name)
        config = build_config(data["config"]["model_type"], keys, name, data["source"])
        return _stored(config, data["config"])
    if folder.is_dir():
        try:
            return load_config(folder / "config.json")
        except ConfigError as error:  # missing or not supported: by its safetensors files
            from roofline.accounting.built import stored_model

            return stored_model(folder, str(error))
    hint = did_you_mean(name.rpartition("/")[2], sorted(names, key=len), 4, 0.5)
    hint = hint or "see `python -m roofline estimate params --help`,"
    raise ConfigError(
        f"unknown model {shown_value(name)}: {hint} or give --config path/to/config.json, {WAYS}"
    )


def load_config(path: Path) -> ModelConfig:
    """Return the model of a `config.json`; ConfigError if it is unreadable, invalid or
    unsupported.
    """
    return read_config(values_in(path), str(path))


def values_in(path: Path) -> Keys:
    """Return the keys of a `config.json`; ConfigError if it is unreadable."""
    try:
        values = json.loads(path.read_bytes())  # also Infinity, as in files of Mamba 2
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:  # including text that is not UTF-8
        raise ConfigError(f"{path}: not JSON: {error}") from None
    if not isinstance(values, dict):
        raise ConfigError(f"{path}: expected a JSON object, got {shown_value(values)}")
    return values


def read_config(values: Keys, where: str) -> ModelConfig:
    family = values.get("model_type")
    inner = values.get("text_config")
    alone = f"{family}_text"
    if inner is None and "vision_config" in values and alone in FAMILIES:
        inner = {**values, "model_type": alone, "architectures": None}  # Qwen-VL as published
    if isinstance(inner, dict) and family not in FAMILIES:
        return _text_part(values, inner, where)
    if family is None:
        raise ConfigError(f"{where}: 'model_type' is missing; it names the architecture")
    if not isinstance(family, str):
        raise ConfigError(f"{where}: 'model_type' is {shown_value(family)}, not a name")
    from roofline.accounting.built import HEADS

    classes = values.get("architectures")
    if isinstance(classes, list) and classes and not any(str(c).endswith(HEADS) for c in classes):
        raise ConfigError(
            f"{where}: unsupported architecture {shown_value(classes[0])}: no language-model head; "
            f"`params` counts it where transformers is installed; or give {WAYS}"
        )
    if family not in FAMILIES:
        return _stored(_built(values, where), values)
    keys = ConfigKeys(values, where)
    return _stored(
        build_config(family, keys, where, f"{where}, read as transformers reads a {family}"), values
    )


def _built(values: Keys, where: str) -> ModelConfig:
    from roofline.accounting.built import built_config

    try:
        with busy("building the model with transformers"):
            return built_config(values, where)
    except ConfigError as error:
        hint = did_you_mean(values["model_type"], FAMILIES)
        raise ConfigError("; ".join(filter(None, (str(error), hint, f"or give {WAYS}")))) from None


def _stored(config: ModelConfig, values: Keys) -> ModelConfig:
    """Return the model with the format of its weights in `quantization_config`."""
    given = values.get("quantization_config")
    if given is None:
        return config
    if not isinstance(given, dict):
        ConfigKeys(values, config.name).refuse("quantization_config", "an object")
    from roofline.accounting.storage import quantization_of

    found = quantization_of(given)
    note = "'quantization_config' has an unknown format and is ignored: give --weight-dtype"
    if found:
        note = f"'quantization_config': weights in {found.name}"
    return replace(config, quantization=found, assumptions=(*config.assumptions, note))


def _text_part(values: Keys, inner: Keys, where: str) -> ModelConfig:
    of_whole = ("tie_word_embeddings", "vocab_size", "quantization_config")
    shared = {key: values[key] for key in of_whole if key in values}
    config = read_config({**shared, **inner}, f"{where}: text_config")
    whole = shown_value(values.get("model_type"))
    note = (
        f"'text_config' of a {whole} only: image and audio encoders and their projections are "
        f"left out"
    )
    return replace(config, name=where, composed=values, assumptions=(note, *config.assumptions))
