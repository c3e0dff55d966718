"""The cutoff of the Coulomb energy of predicted charges in periodic systems: which it is, and a potential with another.

Beyond the cutoff there is a reaction field. Every door passes its `coulomb_cutoff` to `with_coulomb_cutoff`.
"""

from __future__ import annotations

from dataclasses import replace

from torchmdx.models.ensemble import Ensemble, members_of
from torchmdx.models.potential import Potential
from torchmdx.models.priors.coulomb import Coulomb, CoulombConfig


def with_coulomb_cutoff(potential: Potential | Ensemble, cutoff: float | None) -> Potential | Ensemble:
    """The same potential, sharing its weights, with another cutoff of its Coulomb energy, Å; None: as it is.

    The cutoff applies to systems with periodic directions, and to others only if the potential truncates there too.
    Raises ValueError for a potential without Coulomb energy, and for a cutoff that is not > 0 and finite.
    """
    if cutoff is None:
        return potential
    if isinstance(potential, Ensemble):
        return Ensemble([_changed(member, cutoff) for member in potential], potential.names)
    return _changed(potential, cutoff)


def with_coulomb_cutoff_of_one(potential: Potential, cutoff: float | None) -> Potential:
    """As `with_coulomb_cutoff`, of a single potential."""
    return potential if cutoff is None else _changed(potential, cutoff)


def coulomb_cutoff_of(potential: Potential | Ensemble, periodic: bool) -> float | None:
    """The cutoff of the Coulomb energy, Å, for systems with or without periodic directions; None if there is none."""
    found = (prior.cutoff(periodic) for member in members_of(potential) for prior in _coulomb_of(member))
    return max(found, default=0.0) or None


def _changed(potential: Potential, cutoff: float) -> Potential:
    if not _coulomb_of(potential):
        raise ValueError(
            f"coulomb_cutoff needs a potential with a Coulomb energy, got {cutoff} Å for {potential.card.title}, which "
            "has none"
        )
    configs = [
        replace(config, cutoff=cutoff) if isinstance(config, CoulombConfig) else config
        for config in potential.prior_configs
    ]
    changed = potential.with_priors(configs)
    changed.card = potential.card
    return changed


def _coulomb_of(potential: Potential) -> list[Coulomb]:
    return [prior for prior in potential.priors if isinstance(prior, Coulomb)]
