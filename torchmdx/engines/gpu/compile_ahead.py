"""Kernels of CUDA C++, compiled in a thread while the other parts of an engine are made, such as its filter tables."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from torchmdx.engines.plan.clusters import ClusterNetwork
from torchmdx.runtime.once import ahead

if TYPE_CHECKING:
    import torch

    from torchmdx.engines.plan.kernels import KernelPlan
    from torchmdx.models.tensornet import TensorNetConfig


def compile_ahead(
    plan: KernelPlan,
    config: TensorNetConfig,
    atoms: int,
    slots: int,
    device: torch.device,
    *,
    stress: bool,
    uncertainty: bool,
) -> None:
    """Starts to compile and load what a plan needs; who needs it waits, and says what failed.

    Not the one launch of a TensorNet2, which has to know its priors.
    """
    if plan.atom_tiles:
        from torchmdx.engines.gpu import atom_tiles, row_messages  # need Triton

        ahead("atom-tiles", functools.partial(atom_tiles.launchers, device))
        ahead("messages", functools.partial(row_messages.launchers, device))
    if plan.edge_maps:
        from torchmdx.engines.gpu import edge_maps

        ahead("edge-maps", functools.partial(edge_maps.launchers, device))
    if plan.clusters is not None and not plan.one_launch:
        from torchmdx.engines.gpu import charged_cluster

        constants = tuple(plan.clusters.constants.items())
        ahead("charged-cluster", functools.partial(charged_cluster.launchers, device, constants))
    if plan.one_launch and plan.clusters is None:
        from torchmdx.engines.gpu import one_launch

        network = ClusterNetwork.of(config)
        more = one_launch.extras(virials=stress, uncertainty=uncertainty)
        ahead("one-launch", functools.partial(one_launch.planned, atoms, slots, network, device, more))
