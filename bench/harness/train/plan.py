"""A training case for the accounting: its plan, its FLOPs, and the memory that its verification needs."""

from __future__ import annotations

from dataclasses import replace

from bench.harness.train.options import TrainingCase
from roofline.accounting.activations import Kernels, torch_kernels
from roofline.accounting.flops import FlopCount, train_flops
from roofline.accounting.parameters import count_parameters
from roofline.accounting.state import RECIPES
from roofline.accounting.step_memory import StepPlan, step_memory

CONVENTION = "gemm-causal-exact"
"""How the model's FLOPs are counted: every product, and the pairs of tokens that a causal mask lets through."""

WIDE_BYTES = {"fp32": 8, "bf16": 4}
"""Bytes of an element in the precision that a step is verified in, by compute dtype."""


def plan_of(case: TrainingCase, device_type: str) -> StepPlan:
    """Return a case as accounting sees it."""
    recipe = RECIPES[case.recipe]
    kernels = torch_kernels(case.config, recipe, device_type)
    shape = (case.sequence, case.batch, case.micro_batches)
    return StepPlan(case.config, recipe, case.optimizer, *shape, case.checkpoint, kernels)


def flops_of(plan: StepPlan) -> FlopCount:
    """Return the FLOPs that the model needs for a step, and those that are executed again."""
    recompute = "none" if plan.checkpoint == "none" else "full"
    return train_flops(plan.config, plan.sequence, plan.batch, CONVENTION, recompute)


def countable_flops(plan: StepPlan) -> int:
    """Return what torch's counter finds in a step with attention taken apart: every pair of tokens, no mask."""
    recompute = "none" if plan.checkpoint == "none" else "full"
    return train_flops(plan.config, plan.sequence, plan.batch, "gemm-full", recompute, is_flash=False).hardware_flops


def checking_bytes(plan: StepPlan, device_type: str) -> int:
    """Return roughly the memory that verification needs: the plain model and its gradients beside the step's.

    In fp64 a GPU has no fused attention: the scores are kept.
    """
    wide = WIDE_BYTES[plan.recipe.compute_dtype]
    recipe = replace(plan.recipe, activation_bytes=wide, weight_bytes=wide, gradient_bytes=wide, cast_bytes=0)
    has_scores = device_type != "cpu" and plan.recipe.compute_dtype == "fp32"
    kernels = Kernels(wide, is_norm_fused=False, is_flash=not has_scores, is_key_expanded=device_type != "cpu")
    plain = replace(plan, recipe=recipe, batch=1, micro_batches=1, checkpoint="none", kernels=kernels)
    own = step_memory(replace(plan, optimizer="sgd")).components()
    # A copy is made in the weights' own dtype first, gradients and all, and the gradients are compared in fp64.
    copied = plan.recipe.weight_bytes + plan.recipe.gradient_bytes
    largest = 3 * 8 * plan.config.vocabulary * plan.config.width
    resident = own["parameters"] + own["gradients"] + own["inputs"]
    checked = step_memory(replace(plain, optimizer="sgd")).total
    return resident + copied * count_parameters(plan.config).total + checked + largest
