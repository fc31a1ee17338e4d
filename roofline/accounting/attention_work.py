"""Which keys a query sees, and what the two products of attention cost."""

from __future__ import annotations


def doubled_pairs(queries: int, keys: int, mask: str, window: int | None = None) -> int:
    """Return twice the pairs of query and key that are counted, so that half a square stays a whole number.

    `full` counts every pair, q c. `causal-exact` counts what a query sees when the last query sees all keys (bottom
    right): q c - q (q - 1) / 2. `causal-half` takes half of the square q x q in place of its triangle: q c - q^2 / 2.
    With a window, a query sees at most the `window` last of its keys, under every mask; under `full` and
    `causal-half` a window that is shorter than the keys is counted exactly, because no half is in use for it.

    Args:
        queries: of one sequence.
        keys: of one sequence, at least as many as queries.
        mask: `full`, `causal-half` or `causal-exact`.
        window: keys that a query sees, itself included; None for all.

    Source: vllm-project/vllm pull request 34150 (bottom-right pairs); facebookresearch/xformers issue 1402, which has
        1536 and 1632 FLOPs for the half square and for exact pairs.
    """
    if window is not None and window < keys:
        return 2 * _windowed_pairs(queries, keys, window)
    if mask == "full":
        return 2 * queries * keys
    if mask == "causal-half":
        return 2 * queries * keys - queries**2
    return 2 * _windowed_pairs(queries, keys, keys)


def _windowed_pairs(queries: int, keys: int, window: int) -> int:
    """Return the sum over queries of min(window, keys up to its own)."""
    first = keys - queries + 1
    growing = max(0, min(queries, window - first))
    return growing * first + growing * (growing - 1) // 2 + (queries - growing) * window


def attention_core_flops(
    queries: int,
    keys: int,
    heads: int,
    query_key_dim: int,
    value_dim: int,
    mask: str = "full",
    window: int | None = None,
) -> int:
    """Return the FLOPs of Q K^T and P V of one sequence in one layer, forward: 2 x pairs x a x (d_qk + d_v).

    Grouped key/value heads do not make it cheaper: every query head has its own products.

    Source: Chowdhery et al., PaLM (2022), appendix B, for all pairs; `doubled_pairs` for the masks.
    """
    return doubled_pairs(queries, keys, mask, window) * heads * (query_key_dim + value_dim)
