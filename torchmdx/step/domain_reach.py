"""How far atoms influence each other in a potential, and whether it can be divided among processes."""

from __future__ import annotations

from typing import cast

from torchmdx.models.ensemble import Ensemble
from torchmdx.models.potential import Potential
from torchmdx.models.priors.base import Prior
from torchmdx.models.tensornet import TensorNet


def why_not(potential: Potential | Ensemble) -> str | None:
    """Why a potential cannot be divided among processes; None if it can."""
    for member in members_of(potential):
        if member.predicts_charges:
            return f"a {type(member.network).__name__} conserves the charges of the whole system"
        if type(member.network) is not TensorNet:
            return f"its network must be a TensorNet, got a {type(member.network).__name__}"
        for prior in _priors(member):
            if prior.reach is None:
                return f"the prior {prior.config.name} may depend on atoms at any distance"
    return None


def num_hops(potential: Potential | Ensemble) -> int:
    """How many times the network gathers from neighbours: in the embedding and, as a rule, in each layer."""
    return max(_hops_of(member) for member in members_of(potential))


def reach(potential: Potential | Ensemble) -> float:
    """The distance, Å, up to which atoms influence the energy of an atom."""
    found = []
    for member in members_of(potential):
        found.append(_hops_of(member) * float(member.config.cutoff))
        found += [(prior.reach or 0) * max(prior.cutoff(True), prior.cutoff(False)) for prior in _priors(member)]
    return max(found)


def _hops_of(potential: Potential) -> int:
    """0 for a network that is never divided."""
    return int(getattr(potential.config, "num_hops", 0))


def _priors(potential: Potential) -> list[Prior]:
    return [cast(Prior, prior) for prior in potential.priors]


def members_of(potential: Potential | Ensemble) -> list[Potential]:
    """Of an ensemble; a single potential is its own."""
    return potential.members if isinstance(potential, Ensemble) else [potential]
