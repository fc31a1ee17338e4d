"""The configuration of a decoder-only transformer, from which parameters, FLOPs and bytes are
counted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NoReturn, Self

from results.show.terminal import one_line

Keys = Mapping[str, Any]
"""Those of a `config.json`."""

ByName = dict[str, int]
"""Bytes or FLOPs by component."""

MAX_EXTENT = 10**12
"""Maximum of any extent, batch or length."""


class ConfigError(ValueError):
    """Invalid model or argument; the message is one line."""


@dataclass(frozen=True, kw_only=True)
class LatentAttention:
    """Multi-head latent attention: queries and keys/values go through low-rank projections.

    Source: DeepSeek-AI, DeepSeek-V2 (2024), section 2.1.
    """

    query_rank: int
    """Width of the compressed query; 0 if queries are projected directly."""
    kv_rank: int
    """Width of the compressed keys and values, which the cache stores."""
    nope_dim: int
    """Width of a head's query and key without rotation."""
    rope_dim: int
    """Width of the rotated part; the key's is shared by all heads and cached with the latent."""
    value_dim: int


@dataclass(frozen=True, kw_only=True)
class Experts:
    """The mixture of experts that replaces the MLP in some layers."""

    count: int
    per_token: int
    mlp_width: int
    layers: int
    shared_mlp_width: int = 0
    has_router_bias: bool = False
    has_shared_gate: bool = False
    """Whether the shared expert has a gate (Qwen2-MoE)."""


@dataclass(frozen=True, kw_only=True)
class StateSpace:
    """The token mixer that replaces attention and MLP: a convolution, and a state that is scanned.

    Source: Gu and Dao, Mamba (2023); Dao and Gu, Transformers are SSMs (2024), for heads and
    groups.
    """

    inner_width: int
    state_size: int
    kernel: int
    step_rank: int = 0
    """Rank of the projection to the step size (Mamba); 0 if each head has one (Mamba 2)."""
    heads: int = 0
    groups: int = 0
    """Mamba 2: heads of a group share inputs and outputs of the state."""
    has_bias: bool = False
    has_convolution_bias: bool = True

    @property
    def convolved_width(self) -> int:
        return self.inner_width + 2 * self.groups * self.state_size


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """A decoder-only transformer. Symbols of the formulas: L, h, a, k, d, f, V."""

    name: str
    family: str
    layers: int
    """L."""
    width: int
    """h, the hidden size."""
    heads: int
    """a, query heads."""
    kv_heads: int
    """k, key and value heads: fewer than `heads` with grouped queries."""
    head_dim: int
    """d of queries and keys; h / a only if the file has no other value."""
    mlp_width: int
    """f, of a dense MLP."""
    vocabulary: int
    """V."""
    context: int | None = None
    is_tied: bool = False
    is_gated: bool = True
    """Whether the MLP has a gate: three matrices (SwiGLU, GEGLU) instead of two."""
    has_qkv_bias: bool = False
    has_output_bias: bool = False
    has_mlp_bias: bool = False
    has_qk_norm: bool = False
    """RMSNorm of each head's query and key, with one weight of `head_dim` for all heads (Qwen3,
    Gemma 3).
    """
    is_qk_norm_per_head: bool = False
    """Whether these norms have separate weights per head (OLMo 2, Command-R)."""
    has_sinks: bool = False
    """Whether each head has a learned logit without a value (GPT-OSS)."""
    norm: str = "rms"
    has_norm_bias: bool = False
    norms_per_layer: int = 2
    has_final_norm: bool = True
    position_embeddings: int = 0
    window: int | None = None
    windowed_layers: int = 0
    latent: LatentAttention | None = None
    experts: Experts | None = None
    state: StateSpace | None = None
    """State-space mixer of a model without attention."""
    built: tuple[Any, ...] = ()
    """Weights (`parameters.Weight`) of a model that was built; else they follow from the fields."""
    layers_without_cache: int = 0
    """Layers with a state instead of attention, in a built model."""
    caches: tuple[tuple[int, int], ...] = ()
    """What `stores` returns, if the layers of a built model differ."""
    convolution_state: int = 0
    """Elements that a sequence keeps for convolutions, in all layers."""
    recurrent_state: int = 0
    """Elements of its recurrent states."""
    parameters: int = 0
    """Number of parameters, if only that is known (`model_of_size`); else 0."""
    active_parameters: int = 0
    """Those of them that one token uses."""
    quantization: Any = None
    """Format of the weights in the file, a `storage.Storage`; None: not quantized."""
    composed: Mapping[str, Any] | None = None
    """Keys of the whole configuration, if this is its language model."""
    source: str = ""
    assumptions: tuple[str, ...] = field(default_factory=tuple)

    @property
    def value_dim(self) -> int:
        return self.latent.value_dim if self.latent else self.head_dim

    @property
    def cached_layers(self) -> int:
        """Layers with keys and values."""
        return self.layers - self.layers_without_cache

    @cached_property
    def stores(self) -> Sequence[tuple[int, int]]:
        """Elements for each token, and window (0: none), of each layer that stores keys and values,
        instead of using the ones of another layer: 2 k d, with latent attention kvr + dr.
        """
        elements = 2 * self.kv_heads * self.head_dim
        if self.latent:
            elements = self.latent.kv_rank + self.latent.rope_dim
        full = self.cached_layers - self.windowed_layers
        windowed = [(elements, self.window or 0)] * self.windowed_layers
        return self.caches or [(elements, 0)] * full + windowed

    @property
    def dense_layers(self) -> int:
        return self.layers - (self.experts.layers if self.experts else 0)

    def with_layers(self, layers: int) -> Self:
        """Return the model with another number of layers, and at most as many with experts or
        windows.
        """
        experts = self.experts and replace(self.experts, layers=min(self.experts.layers, layers))
        return replace(
            self,
            layers=layers,
            windowed_layers=min(self.windowed_layers, layers),
            experts=experts,
            caches=(),
            layers_without_cache=self.layers_without_cache * layers // self.layers,
            convolution_state=self.convolution_state * layers // self.layers,
            recurrent_state=self.recurrent_state * layers // self.layers,
            built=tuple(
                weight.scaled(layers, self.layers) if "*" in weight.name else weight
                for weight in self.built
            ),
        )

    def with_attention(self) -> Self:
        """Return the model; ConfigError if only its number of parameters is known."""
        if self.parameters:
            raise ConfigError(f"{self.name}: its layers are not known; give a configuration")
        return self

    def notes_on(self, sequence: int) -> list[str]:
        """Return the assumptions, and a note if the sequence exceeds the context."""
        if self.context is None or sequence <= self.context:
            return list(self.assumptions)
        return [f"{sequence} tokens exceed the context of {self.context}", *self.assumptions]


def model_of_size(parameters: float, active: float | None = None) -> ModelConfig:
    """Return a model of N parameters, of which a token uses all or some: matmuls, without attention
    and cache.

    Raises:
        ConfigError: more parameters are active than there are.
    """
    if active is None:
        active = parameters
    if active > parameters:
        raise ConfigError(f"--active-params {active:g} exceeds --params {parameters:g}")
    sizes: dict[str, Any] = dict.fromkeys(
        ("width", "heads", "kv_heads", "head_dim", "mlp_width", "vocabulary"), 0
    )
    source = "Kaplan et al., Scaling Laws for Neural Language Models (2020), section 2.1"
    name = f"{parameters:.4g} parameters"
    if active < parameters:
        name += f", {active:.4g} active"
    return ModelConfig(
        name=name.replace("e+0", "e").replace("e+", "e"),
        family="parameters",
        parameters=max(1, round(parameters)),
        active_parameters=max(1, round(active)),
        layers=1,
        is_tied=True,
        source=source,
        **sizes,
    )


MAX_LAYERS = 100_000
MAX_SIZE = 100_000_000
"""Above any known model."""


class ConfigKeys:
    """The keys of one configuration; `where` names it in messages."""

    def __init__(self, values: Keys, where: str) -> None:
        self._values = values
        self._where = where
        self.assumptions: list[str] = []

    def has(self, key: str) -> bool:
        return self._values.get(key) not in (None, "auto")

    def rank(self, key: str, default: int) -> int:
        """Return an integer; 0 if the value is null, the default if the key is missing."""
        return 0 if key in self._values and not self.has(key) else self.whole(key, default=default)

    def whole(
        self, *keys: str, default: int | None = None, least: int = 1, most: int = MAX_SIZE
    ) -> int:
        key = next((name for name in keys if self.has(name)), None)
        if key is None:
            if default is None:
                raise ConfigError(f"{self._where}: '{keys[0]}' is missing")
            self.assumed(keys[0], default)
            return default
        value = self._values[key]
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            self.refuse(key, f"an integer from {least} to {most:,}")
        return int(value)

    def flag(self, key: str, default: bool) -> bool:
        if key not in self._values:
            self.assumed(key, default)
            return default
        if not isinstance(self._values[key], bool):
            self.refuse(key, "true or false")
        return bool(self._values[key])

    def is_on(self, key: str) -> bool:
        """Return whether a flag is there and true."""
        return self.has(key) and self.flag(key, False)

    def words(self, key: str, allowed: Sequence[str], count: int) -> list[str] | None:
        if not self.has(key):
            return None
        value = self._values[key]
        if (
            not isinstance(value, list)
            or len(value) != count
            or any(word not in allowed for word in value)
        ):
            self.refuse(key, f"a list of {count} words, each {' or '.join(allowed)}")
        return list(value)

    def layer_indices(self, key: str, layers: int) -> set[int]:
        value = self._values.get(key) or []
        if not isinstance(value, list) or not all(
            type(item) is int and 0 <= item < layers for item in value
        ):
            self.refuse(key, f"a list of layers from 0 to {layers - 1}")
        return set(value)

    def fill(self, **defaults: int) -> None:
        """Set the keys that are missing."""
        missing = {key: value for key, value in defaults.items() if not self.has(key)}
        self._values = {**self._values, **missing}
        for key, value in missing.items():
            self.assumed(key, value)

    def assumed(self, key: str, value: bool | int) -> None:
        shown = str(value).lower() if isinstance(value, bool) else value
        self.assumptions.append(f"'{key}' is missing in the configuration: default {shown}")

    def refuse(self, key: str, allowed: str) -> NoReturn:
        raise ConfigError(
            f"{self._where}: expected {allowed} for '{key}', got {shown_value(self._values[key])}"
        )


def shown_value(value: object) -> str:
    return one_line(repr(value)[:80])
