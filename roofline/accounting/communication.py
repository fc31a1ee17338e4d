"""Bytes that each device sends in the collectives of training.

The factors are those by which nccl-tests turns a message and a time into a bus bandwidth.
"""

from __future__ import annotations


def all_reduce_bytes(message_bytes: int, devices: int) -> int:
    """Return 2 (n - 1) / n M: what each of n devices sends to sum M bytes on all of them.

    Source: nccl-tests, PERFORMANCE.md; ring all-reduce, Patarasuk and Yuan (2009).
    """
    return -(-2 * (devices - 1) * message_bytes // devices)


def all_gather_bytes(message_bytes: int, devices: int) -> int:
    """Return (n - 1) / n M: what each of n devices sends to gather M bytes; of a reduce-scatter or all-to-all too.

    Source: nccl-tests, PERFORMANCE.md.
    """
    return -(-(devices - 1) * message_bytes // devices)


def data_parallel_bytes(params: int, gradient_bytes: int, devices: int) -> int:
    """Return what each device sends in a step of plain data parallelism, or of ZeRO 1 and 2: one all-reduce.

    Source: Rajbhandari et al., ZeRO (2020), section 7.
    """
    return all_reduce_bytes(params * gradient_bytes, devices)


def fully_sharded_bytes(params: int, weight_bytes: int, gradient_bytes: int, devices: int) -> int:
    """Return the same with sharded weights (ZeRO 3): two gathers of the weights, one reduce-scatter of gradients.

    Source: Rajbhandari et al., ZeRO (2020), section 7: 1.5 times plain data parallelism.
    """
    gathered = 2 * all_gather_bytes(params * weight_bytes, devices)
    return gathered + all_gather_bytes(params * gradient_bytes, devices)


def tensor_parallel_bytes(layers: int, sequence: int, batch: int, width: int, element_bytes: int, devices: int) -> int:
    """Return the same of tensor parallelism: 4 all-reduces of w s b h in each layer, two forward and two backward.

    Source: Shoeybi et al., Megatron-LM (2019), figure 4.
    """
    return 4 * layers * all_reduce_bytes(element_bytes * sequence * batch * width, devices)


def expert_parallel_bytes(
    layers: int, tokens: int, per_token: int, width: int, element_bytes: int, devices: int
) -> int:
    """Return the same of experts on different devices, forward: tokens go to their experts and come back.

    Source: Lepikhin et al., GShard (2020): two all-to-alls of T topk h in each layer.
    """
    return 2 * layers * all_gather_bytes(tokens * per_token * width * element_bytes, devices)
