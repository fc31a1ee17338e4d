"""Generation: the cache of keys and values, and what the roofline allows in prefill and decode."""

from __future__ import annotations

from bisect import bisect_left
from itertools import pairwise
from typing import NamedTuple

from roofline.accounting.config import MOST, ModelConfig
from roofline.accounting.flops import all_layers_core, gemm_flops
from roofline.accounting.parameters import count_parameters
from roofline.work import DTYPE_BITS, Work


def kv_bytes_per_token(config: ModelConfig, element_bytes: int = 2) -> int:
    """Return the bytes that each token adds to the cache: 2 L k d w, with latent attention L (kvr + dr) w.

    Windowed layers count too; they stop growing where their window ends, see `kv_cache_bytes`.

    Source: Pope et al., Efficiently Scaling Transformer Inference (2022); DeepSeek-AI, DeepSeek-V2 (2024), table 1.
    """
    elements = 2 * config.kv_heads * config.head_dim
    if config.latent:
        elements = config.latent.kv_rank + config.latent.rope_dim
    return config.layers * elements * element_bytes


def kv_cache_bytes(config: ModelConfig, sequence: int, batch: int = 1, element_bytes: int = 2) -> int:
    """Return the bytes of the cache of sequences of a length; a windowed layer keeps min(W, s) positions.

    A state-space model keeps its state in place of a cache, as large for every length.

    Source: as of `kv_bytes_per_token`; engines may reserve whole pages, and hybrid ones the whole length.
    """
    positions = (config.layers - config.windowed_layers) * sequence
    positions += config.windowed_layers * min(config.window or sequence, sequence)
    state = config.layers * config.state.state_elements * element_bytes if config.state else 0
    per_layer = kv_bytes_per_token(config.with_layers(1), element_bytes)
    return batch * (positions * per_layer + state)


def prefill_flops(config: ModelConfig, sequence: int, batch: int = 1) -> int:
    """Return the FLOPs of reading prompts: 2 N_mm s and the causal pairs; the head on the last token alone.

    Source: `flops.gemm_flops` and `flops.attention_core_flops`, forward.
    """
    products = gemm_flops(config, sequence)
    products["lm_head"] = products.get("lm_head", 0) // sequence
    return batch * (sum(products.values()) + all_layers_core(config, sequence, sequence, "causal-exact"))


def decode_flops(config: ModelConfig, sequence: int, batch: int = 1) -> int:
    """Return the FLOPs of one step: one token for each sequence, which sees `sequence` positions, itself included.

    Latent attention is computed in its absorbed form, which reads the compressed cache: each head multiplies its query
    with the kvr + dr elements of a position, and sums kvr of them, 2 a (2 kvr + dr) FLOPs a position. The products that
    expand keys and values act on the one query and on the one output instead, and cost the same.

    Source: as for `prefill_flops`; DeepSeek-AI, DeepSeek-V2 (2024), section 2.1.2 and appendix C.
    """
    core = all_layers_core(config, 1, sequence, "causal-exact", is_absorbed=True)
    return batch * (sum(gemm_flops(config, 1).values()) + core)


def weight_bytes_read(config: ModelConfig, tokens: int, weight_bytes: float) -> int:
    """Return the bytes of weights that a step on `tokens` tokens must read, of `weight_bytes` each.

    Everything that is multiplied by or added, once; of the embedding one row for each token; of experts those that
    some token chose, E (1 - (1 - topk / E)^B) of an even and independent choice.

    Source: the expected number of distinct draws; Mixtral and DeepSeek-V3 balance the load of their experts.
    """
    count = count_parameters(config)
    read = count.total - count.components.get("positions", 0)
    if not config.is_tied:
        read -= count.components["embedding"]
    read += tokens * config.width * (2 if config.position_embeddings else 1)
    experts = config.experts
    if experts:
        idle = (1 - experts.per_token / experts.count) ** tokens
        read -= int(count.components["experts"] * idle)
    return round(read * weight_bytes)


def decode_step_work(config: ModelConfig, sequence: int, batch: int, dtype: str) -> Work:
    """Return the work of one step: one token for each of `batch` sequences, weights and cache in `dtype`.

    FLOPs = `decode_flops`. Bytes read = `weight_bytes_read` and the keys and values of the sequence - 1 earlier
    tokens; written = the new token's keys and values, and the logits. So cache read and written together are
    `kv_cache_bytes` of the whole sequence. The tables of rotary positions follow from the position and are no traffic.

    Source: as of `decode_flops`, `weight_bytes_read` and `kv_cache_bytes`; that what is new is written is ours.
    """
    size = DTYPE_BITS[dtype] // 8
    cache = kv_cache_bytes(config, sequence, batch, size)
    added = kv_cache_bytes(config, 1, batch, size)
    return Work(
        flops=decode_flops(config, sequence, batch),
        bytes_read=weight_bytes_read(config, batch, size) + cache - added,
        bytes_written=added + batch * config.vocabulary * size,
    )


def decode_layer_work(config: ModelConfig, sequence: int, batch: int, dtype: str) -> Work:
    """Return the work of one layer in a step, whose input and output are the hidden states of `batch` tokens.

    What two layers cost more than one, and the hidden state read and written once: between layers it need not leave
    the chip, so that a step counts none.

    Source: as of `decode_step_work`.
    """
    one, two = (decode_step_work(config.with_layers(layers), sequence, batch, dtype) for layers in (1, 2))
    hidden = batch * config.width * DTYPE_BITS[dtype] // 8
    return Work(
        flops=two.flops - one.flops,
        bytes_read=two.bytes_read - one.bytes_read + hidden,
        bytes_written=two.bytes_written - one.bytes_written + hidden,
    )


def decode_attention_work(config: ModelConfig, sequence: int, batch: int, dtype: str) -> Work:
    """Return the work of attention's own products in one layer of a step: softmax(q K^T) V, the cache read once.

    FLOPs = 4 s a d and bytes = w (2 s k d + 2 a d) of each sequence: in 16 bit the intensity nears a / k from below,
    whatever the batch, because each sequence has a cache of its own.

    Source: Austin et al., How to Scale Your Model (2025), inference: the intensity of attention in decoding.
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
    """Devices that share a model evenly, a batch of sequences, and what weights and cache lie in."""

    config: ModelConfig
    batch: int
    peak_flops_per_s: float
    """Of all devices."""
    bandwidth_bytes_per_s: float
    """Of all devices."""
    weight_bytes: float = 2
    """Of one parameter."""
    kv_bytes: int = 2
    """Of one element of the cache."""

    def prefill(self, prompt: int) -> tuple[int, int]:
        """Return the FLOPs of reading prompts, and the bytes: weights that their tokens need, the cache they fill."""
        return prefill_flops(self.config, prompt, self.batch), self._bytes(self.batch * prompt, prompt)

    def decode(self, seen: int) -> tuple[int, int]:
        """Return the FLOPs of a step whose tokens see `seen` positions, and the bytes of weights and cache it reads."""
        return decode_flops(self.config, seen, self.batch), self._bytes(self.batch, seen)

    def _bytes(self, tokens: int, positions: int) -> int:
        cache = kv_cache_bytes(self.config, positions, self.batch, self.kv_bytes)
        return weight_bytes_read(self.config, tokens, self.weight_bytes) + cache

    def times(self, work: tuple[int, int]) -> tuple[float, float]:
        """Return the least seconds that FLOPs take, and that bytes take."""
        flops, moved = work
        return flops / self.peak_flops_per_s, moved / self.bandwidth_bytes_per_s

    def critical_batch(self, seen: int) -> int | None:
        """Return the smallest batch whose step computes as long as it reads, or None if no batch does.

        Compute minus reading is convex in the batch (experts add fewer bytes each time), so it has one crossing at
        most.
        """

        def computes_as_long(batch: int) -> bool:
            serving = self._replace(batch=batch)
            compute_s, memory_s = serving.times(serving.decode(seen))
            return compute_s >= memory_s

        found = bisect_left(range(MOST), True, lo=1, key=computes_as_long)
        return found if found < MOST else None

    def decode_seconds(self, prompt: int, tokens: int) -> float:
        """Return the least time of all steps after the first token of a reply of `tokens` tokens.

        The step for token n sees prompt + n - 1 positions. Between the places where a window fills up, FLOPs and bytes
        grow evenly, so each such stretch is two arithmetic series that cross at most once: exact, however long the
        reply is.

        Source: the sum of the roofline of `decode` over the steps.
        """

        def is_compute_bound(seen: int) -> bool:
            compute_s, memory_s = self.times(self.decode(seen))
            return compute_s > memory_s

        def crossing(start: int, stop: int) -> int:
            begins = is_compute_bound(start)
            return start + bisect_left(range(start, stop), True, key=lambda seen: is_compute_bound(seen) != begins)

        def series(start: int, stop: int) -> float:
            ends = [max(self.times(self.decode(seen))) for seen in (start, stop - 1)]
            return sum(ends) / 2 * (stop - start) if start < stop else 0.0

        first, end = prompt + 1, prompt + tokens
        full = min(max(self.config.window or first, first), end)
        seconds = 0.0
        for start, stop in pairwise((first, full, end)):
            turn = crossing(start, stop)
            seconds += series(start, turn) + series(turn, stop)
        return seconds
