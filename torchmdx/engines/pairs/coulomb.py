"""Coulomb energies of all pairs without storing pairs. Second derivatives fall back to the plain formula."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from torchmdx.models.priors.coulomb import Coulomb
from torchmdx.models.priors.open_pairs import open_systems
from torchmdx.runtime.device_guard import on_device
from torchmdx.structures.system import Batch


class _Fused(torch.autograd.Function):
    """Energies [N]. The derivative is a kernel too, or that of the plain energies if it must be differentiable."""

    @staticmethod
    def forward(ctx: Any, prior: Coulomb, batch: Batch, positions: Tensor, charges: Tensor) -> Tensor:
        from torchmdx.engines.pairs.kernels.coulomb import AllPairs

        config = prior.config
        ctx.prior, ctx.batch = prior, batch
        ctx.pairs = AllPairs(
            batch.system_index, open_systems(batch), config.strength, float(config.damping), config.switch
        )
        ctx.save_for_backward(positions, charges)
        return ctx.pairs.energies(positions, charges, prior.weights.to(charges.dtype))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        positions, charges = ctx.saved_tensors
        (cotangent,) = gradients
        if torch.is_grad_enabled():
            return None, None, *_plain(ctx, positions, charges, cotangent)
        weights = ctx.prior.weights.to(charges.dtype)
        return None, None, *ctx.pairs.gradients(positions, charges, weights, cotangent.contiguous())


def _plain(ctx: Any, positions: Tensor, charges: Tensor, cotangent: Tensor) -> list[Tensor | None]:
    """Gradients of the plain energies that can be differentiated themselves."""
    # Charges may depend on positions: views make the two independent leaves of this graph.
    positions, charges = positions.view_as(positions), charges.view_as(charges)
    energies = ctx.prior.plain_pairs(ctx.batch, positions, charges)
    if not energies.requires_grad:  # no system without periodic directions
        return [torch.zeros_like(x) for x in (positions, charges)]
    wanted = [x for x, needed in zip((positions, charges), ctx.needs_input_grad[2:], strict=True) if needed]
    found = iter(torch.autograd.grad(energies, wanted, cotangent, create_graph=True, materialize_grads=True))
    return [next(found) if needed else None for needed in ctx.needs_input_grad[2:]]


def fused_pairs(prior: Coulomb, batch: Batch, positions: Tensor, charges: Tensor) -> Tensor:
    """Energies [N] of all pairs of systems without periodic directions, from positions [N,3] and charges [N,M]."""
    with on_device(positions.device):
        return _Fused.apply(prior, batch, positions.contiguous(), charges.contiguous())
