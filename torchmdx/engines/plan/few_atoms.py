"""Which kernels of CUDA C++ evaluate few atoms, in one launch or between other kernels: for engines/plan/kernels.py."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchmdx.engines.plan import serves
from torchmdx.engines.plan.clusters import SHARES, AtomClusters, ClusterNetwork
from torchmdx.engines.plan.machine import Machine
from torchmdx.engines.plan.workload import Stage, Workload

if TYPE_CHECKING:
    from torchmdx.models.tensornet import TensorNetConfig
    from torchmdx.models.tensornet2 import TensorNet2Config

# The most atoms for which one launch is faster than the chain: with one layer, and with more. On an H100 90 atoms take
# 65 instead of 82 us, and 97 instead of 114 us; 120 atoms take 80 instead of 92 us, and 133 instead of 129 us.
MOST_ONE_LAUNCH, MOST_WITH_LAYERS = 120, 90
# The same for few channels, which the chain has to itself while one launch pads them.
MOST_OF_CHANNELS = {32: 30, 64: 60}
# The same for a TensorNet2 in charged_launch.cu, where each cluster has one atom. On an H100 15 atoms of AceFF-2.0 take
# 142 instead of 173 us; with two atoms in a cluster, 22 take 196 instead of 180 us, and 30 196 instead of 188 us.
MOST_CHARGED = 15
NOT_TESTED = (
    "blocks that wait for each other were tested on an H100 and H200, not on {}: `torchmdx bench --all` tests it"
)


def one_launch(config: TensorNetConfig, work: Workload, machine: Machine, priors: bool) -> tuple[bool, Stage]:
    """Whether one_launch.cu evaluates a TensorNet. priors: other energies are evaluated between the passes."""
    several, single = "several launches", "one launch of CUDA C++"

    def no(reason: str) -> tuple[bool, Stage]:
        return False, Stage("few atoms", several, reason, single)

    if not machine.is_hopper:
        return no(f"one launch needs a GPU of the architecture sm_90, got {machine.name}")
    if not machine.clusters:
        return no(NOT_TESTED.format(machine.name))
    if (reason := serves.one_launch(config)) is not None:
        return no(reason)
    limit = _most_in_one_launch(config)
    if not 0 < work.atoms <= limit:
        return no(f"one launch is faster for 1 to {limit} atoms, got {work.atoms:,}")
    if priors:
        return no("priors are evaluated between the forward and the backward pass")
    if not work.alone or work.domain:
        return no("other work may run at the same time, and its blocks wait for each other")
    if work.slots > serves.MOST_SLOTS:
        return no(f"one launch has numbers for {serves.MOST_SLOTS:,} edges, got {work.slots:,}")
    most = machine.most_clusters(SHARES)
    found = AtomClusters.choose(work.atoms, most, ClusterNetwork.of(config), work.slots) if most else None
    if found is None:
        return no(f"one launch has no room for {work.atoms} atoms in {most} clusters")
    why = f"{found.clusters} clusters of {SHARES} blocks run together"
    if not work.periodic and not work.stress and found.serves_steps(work.atoms):
        why += "; without a skin they also search for neighbours"
    return True, Stage("few atoms", single, why, several)


def _most_in_one_launch(config: TensorNetConfig) -> int:
    """Up to how many atoms one launch is faster."""
    few = [most for channels, most in MOST_OF_CHANNELS.items() if config.num_channels <= channels]
    return min([MOST_ONE_LAUNCH, MOST_ONE_LAUNCH if config.num_layers <= 1 else MOST_WITH_LAYERS, *few])


def charged_clusters(
    config: TensorNet2Config, work: Workload, machine: Machine
) -> tuple[AtomClusters | None, list[Stage]]:
    """How charged_cluster.cu divides the atoms of a chain with one program per atom; None if it does not serve."""
    plain, clustered = "Triton, a program per atom", "CUDA C++, clusters of blocks"

    def no(reason: str) -> tuple[None, list[Stage]]:
        return None, [Stage("within atoms", plain, reason, clustered)]

    if (reason := serves.charged_clusters(config, machine)) is not None:
        return no(reason)
    if not work.forces:
        return no("clusters of blocks need buffers of few atoms with forces")
    if work.slots > serves.MOST_SLOTS or (found := serves.atom_clusters(work.atoms)) is None:
        return no(f"clusters of blocks serve few atoms, got {work.atoms:,} with {work.slots:,} edges")
    return found, [Stage("within atoms", clustered, f"{found.clusters} clusters of {SHARES} blocks", plain)]


def charged_launch(
    config: TensorNet2Config, work: Workload, machine: Machine, clusters: AtomClusters | None, priors: bool
) -> tuple[bool, list[Stage]]:
    """Whether charged_launch.cu evaluates a TensorNet2. priors: other than Coulomb energies of all pairs."""
    several, single = "several launches", "one launch of CUDA C++"

    def no(reason: str) -> tuple[bool, list[Stage]]:
        return False, [Stage("few atoms", several, reason, single)]

    if clusters is None:
        return False, []
    if work.atoms > MOST_CHARGED:
        return no(f"one launch is faster for 1 to {MOST_CHARGED} atoms, got {work.atoms:,}")
    if (reason := serves.charged_launch(config, machine)) is not None:
        return no(reason)
    if not machine.clusters:
        return no(NOT_TESTED.format(machine.name))
    if priors or work.stress or work.search_cutoff > config.cutoff:
        return no("it has forces and Coulomb energies of all pairs, but no stress and no other priors")
    if not work.alone or work.domain:
        return no("other work may run at the same time, and its blocks wait for each other")
    return True, [Stage("few atoms", single, f"{clusters.clusters} clusters of {SHARES} blocks run together", several)]
