"""Generation: KV cache, and FLOPs, bytes and minimum times of prefill and decode."""

from __future__ import annotations

from bisect import bisect_left
from fractions import Fraction
from math import ceil, inf
from typing import NamedTuple

from roofline.accounting.config import MAX_EXTENT, ModelConfig
from roofline.accounting.flops import all_layers_core, gemm_flops
from roofline.accounting.parameters import weights
from roofline.accounting.storage import STORED_DTYPES, Storage, storage_of, stored_bytes
from roofline.work import DTYPE_BITS, Work

STATE_BYTES = 4


def kv_bytes_per_token(config: ModelConfig, element_bytes: float = 2) -> int:
    """Return the bytes that each token adds to the KV cache, also in windowed layers: 2 L k d w,
    with latent attention L (kvr + dr) w.

    Source: Pope et al., Efficiently Scaling Transformer Inference (2022); DeepSeek-AI, DeepSeek-V2
    (2024), table 1.
    """
    return ceil(sum(elements for elements, _ in config.stores) * element_bytes)


def state_bytes(config: ModelConfig, element_bytes: float = 2) -> int:
    """Return the bytes of a sequence's states in all layers: the inputs of convolutions like the
    cache, recurrent states in fp32.

    Source: the caches that transformers allocates; `mamba_ssm_cache_dtype` of published files.
    """
    return ceil(config.convolution_state * element_bytes + config.recurrent_state * STATE_BYTES)


def kv_cache_bytes(
    config: ModelConfig,
    sequence: int,
    batch: int = 1,
    element_bytes: float = 2,
    devices: int = 1,
) -> int:
    """Return the bytes of the KV cache on all devices, and of states; a windowed layer stores
    min(W, s) positions.

    Source: see `kv_bytes_per_token`. Engines may reserve whole pages, or the full length in all
    layers.
    """
    stored = sum(elements * min(window or sequence, sequence) for elements, window in config.stores)
    cache = ceil(Fraction(element_bytes) * stored * cache_copies(config, devices))
    return batch * (cache + state_bytes(config, element_bytes))


def cache_copies(config: ModelConfig, devices: int) -> Fraction:
    """Return how often tensor parallelism stores the KV cache on all devices, 1 or more.

    A device has whole heads: if there are fewer than devices, several have the same. The latent
    vector of latent attention serves all heads, so each device has all of it.

    Source: vLLM, `QKVParallelLinear` and `MLAAttention`; sgl-project/sglang issue 1970.
    """
    if config.state or config.parameters:
        return Fraction(1)
    heads = 1 if config.latent else config.kv_heads
    return Fraction(devices * ceil(heads / devices), heads)


def prefill_flops(config: ModelConfig, sequence: int, batch: int = 1) -> int:
    """Return the FLOPs of prefill: 2 N_mm s and the causal pairs; the head for the last token only.

    Source: `flops.gemm_flops` and `flops.all_layers_core`, forward.
    """
    products = gemm_flops(config, sequence)
    products["lm_head"] = products.get("lm_head", 0) // sequence
    return batch * (
        sum(products.values()) + all_layers_core(config, sequence, sequence, "causal-exact")
    )


def decode_flops(config: ModelConfig, sequence: int, batch: int = 1) -> int:
    """Return the FLOPs of one decode step: one token per sequence, which sees `sequence` positions
    including itself.

    Latent attention uses its absorbed form on the compressed cache: 2 a (2 kvr + dr) FLOPs per
    position. The matmuls that expand keys and values are applied to query and output instead, at
    equal cost.

    Source: see `prefill_flops`; DeepSeek-AI, DeepSeek-V2 (2024), section 2.1.2 and appendix C.
    """
    core = all_layers_core(config, 1, sequence, "causal-exact", is_absorbed=True)
    return batch * (sum(gemm_flops(config, 1).values()) + core)


def weight_bytes_read(config: ModelConfig, tokens: int, dtype: str | Storage) -> int:
    """Return the bytes of weights, stored as by `storage.storage_of`, that a step on `tokens`
    tokens must read.

    All weights are read once, except the embedding (one row per token) and those that no token
    chose: an even and independent choice of topk out of E experts uses E (1 - (1 - topk / E)^B).

    Source: expected number of distinct draws; Mixtral and DeepSeek-V3 balance the load of their
    experts.
    """
    read = 0.0
    storage = storage_of(dtype)
    for weight in weights(config):
        bits = storage.bits_of(weight, config.experts is not None)
        is_table = weight.component == "positions" or weight.active_copies == 0
        if is_table or (weight.component == "embedding" and not config.is_tied):
            read += tokens * weight.shape[-1] * bits
        elif weight.component == "embedding":
            read += (weight.elements + tokens * config.width) * bits
        else:
            used = weight.active_elements / weight.elements
            read += weight.elements * bits * (1 - (1 - used) ** tokens)
    return round(read / 8)


def decode_step_work(config: ModelConfig, sequence: int, batch: int, dtype: str) -> Work:
    """Return the work of one decode step: one token for each of `batch` sequences, weights and
    cache in `dtype`.

    FLOPs = `decode_flops`. Bytes read = `weight_bytes_read` and the keys and values of the sequence
    - 1 earlier tokens; written = the new token's keys and values, and the logits. Rotary tables are
      not counted.

    Source: see `decode_flops`, `weight_bytes_read` and `kv_cache_bytes`; counting the written bytes
    is ours.
    """
    size = DTYPE_BITS[dtype] // 8
    cache = kv_cache_bytes(config, sequence, batch, size)
    added = kv_cache_bytes(config, 1, batch, size)
    return Work(
        flops=decode_flops(config, sequence, batch),
        bytes_read=weight_bytes_read(config, batch, dtype) + cache - added,
        bytes_written=added + batch * config.vocabulary * size,
    )


def decode_layer_work(config: ModelConfig, sequence: int, batch: int, dtype: str) -> Work:
    """Return the work of one layer in a decode step: the difference between two layers and one.

    Unlike `decode_step_work`, it includes reading and writing the hidden state once.
    """
    one = decode_step_work(config.with_layers(1), sequence, batch, dtype)
    two = decode_step_work(config.with_layers(2), sequence, batch, dtype)
    hidden = batch * config.width * DTYPE_BITS[dtype] // 8
    return Work(
        flops=two.flops - one.flops,
        bytes_read=two.bytes_read - one.bytes_read + hidden,
        bytes_written=two.bytes_written - one.bytes_written + hidden,
    )


def decode_attention_work(config: ModelConfig, sequence: int, batch: int, dtype: str) -> Work:
    """Return the work of softmax(q K^T) V in one layer of a decode step, the cache read once.

    FLOPs = 4 s a d and bytes = w (2 s k d + 2 a d) per sequence: in 16 bit the intensity approaches
    a / k from below at any batch size, because each sequence has its own cache.

    Source: Austin et al., How to Scale Your Model (2025), inference: the intensity of attention in
    decoding.
    """
    size = DTYPE_BITS[dtype] // 8
    vectors = batch * config.heads * config.head_dim * size
    one = config.with_layers(1)
    return Work(
        flops=batch * all_layers_core(one, 1, sequence, "causal-exact"),
        bytes_read=kv_cache_bytes(one, sequence, batch, size) + vectors,
        bytes_written=vectors,
    )


class Serving(NamedTuple):
    """A model on devices with tensor parallelism, a batch, and the storage of weights and cache."""

    config: ModelConfig
    batch: int
    peak_flops_per_s: float = inf
    """Sum over all devices, like the bandwidth."""
    bandwidth_bytes_per_s: float = inf
    weight_dtype: str | Storage = "bf16"
    """As by `storage.storage_of`."""
    kv_dtype: str = "bf16"
    """Of the cache, as in `storage.STORED_DTYPES`."""
    devices: int = 1

    @property
    def weight_bytes(self) -> int:
        return stored_bytes(weights(self.config), self.weight_dtype)

    @property
    def kv_bytes(self) -> float:
        """Bytes per element of the cache."""
        return STORED_DTYPES[self.kv_dtype].bits / 8

    def prefill(self, prompt: int) -> tuple[int, int]:
        """Return FLOPs and bytes of prefill: weights read, cache written."""
        flops = prefill_flops(self.config, prompt, self.batch)
        return flops, self._bytes(self.batch * prompt, prompt)

    def decode(self, seen: int, tokens: int = 1) -> tuple[int, int]:
        """Return FLOPs and bytes of a decode step whose tokens see `seen` positions; with
        `tokens` of each sequence, such as drafted ones that are checked together.
        """
        together = tokens * self.batch
        return decode_flops(self.config, seen, together), self._bytes(together, seen)

    def cache_bytes(self, positions: int) -> int:
        """Return the bytes of the KV cache on all devices."""
        return kv_cache_bytes(self.config, positions, self.batch, self.kv_bytes, self.devices)

    def _bytes(self, tokens: int, positions: int) -> int:
        cache = self.cache_bytes(positions)
        return cache + weight_bytes_read(self.config, tokens, self.weight_dtype)

    def times(self, work: tuple[int, int]) -> tuple[float, float]:
        """Return the minimum seconds of FLOPs and of bytes."""
        flops, moved = work
        return flops / self.peak_flops_per_s, moved / self.bandwidth_bytes_per_s

    def critical_batch(self, seen: int) -> int | None:
        """Return the smallest compute-bound batch of a decode step, or None.

        Compute minus memory time is convex in the batch, so there is at most one crossing.
        """

        def computes_as_long(batch: int) -> bool:
            serving = self._replace(batch=batch)
            compute_s, memory_s = serving.times(serving.decode(seen))
            return compute_s >= memory_s

        if not computes_as_long(MAX_EXTENT):  # the usual answer, in one step
            return None
        return bisect_left(range(MAX_EXTENT), True, lo=1, key=computes_as_long)

    def decode_seconds(self, prompt: int, tokens: int) -> float:
        """Return the minimum time of all steps after the first token of a reply of `tokens` tokens.

        This is the sum of the roofline of `decode`; the step for token n sees prompt + n - 1
        positions. Before and after the window is full, FLOPs and bytes are arithmetic series that
        cross at most once, so the sum is exact.
        """
        window = self.config.window or inf

        def series(first: int, last: int) -> float:
            """Return the time of the steps that see `first` to `last` positions."""
            ends = [self.times(self.decode(seen)) for seen in (first, last)]
            bounds = {compute_s > memory_s for compute_s, memory_s in ends}
            if last - first < 2 or (len(bounds) == 1 and not first < window < last):
                return sum(map(max, ends)) / 2 * (last - first + 1)
            middle = (first + last) // 2
            return series(first, middle) + series(middle + 1, last)

        return series(prompt + 1, prompt + tokens - 1) if tokens > 1 else 0.0
