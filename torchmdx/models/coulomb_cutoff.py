"""How a potential treats the Coulomb energy of periodic systems, and the same potential with another treatment.

Every interface with `coulomb_cutoff`, `coulomb` and `coulomb_accuracy` passes them to `with_coulomb_cutoff`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import cast

import torch

from torchmdx.models.ensemble import Ensemble, members_of
from torchmdx.models.potential import Potential
from torchmdx.models.priors.base import Prior
from torchmdx.models.priors.coulomb import MOST_ACCURATE, Coulomb, CoulombConfig
from torchmdx.models.priors.splitting import DEFAULT_CUTOFF as EWALD_CUTOFF
from torchmdx.models.priors.splitting import MESH_CUTOFF, Splitting, takes_mesh
from torchmdx.structures.cell import volume
from torchmdx.structures.system import Batch

TREATMENTS = ("ewald", "pme", "reaction_field", "reaction_field_everywhere")
FIELD_CUTOFF = 10.0  # Å, of a reaction field that replaces an Ewald sum
TIGHTER = 100  # how much more accurate the sums are that others are compared with


def with_coulomb_cutoff(
    potential: Potential | Ensemble, cutoff: float | None, coulomb: str | None = None, accuracy: float | None = None
) -> Potential | Ensemble:
    """The same potential, sharing its weights, with another treatment of its Coulomb energy; all None: as it is.

    Args:
        coulomb: "ewald" sums over all images of a periodic system, and over all pairs of others, and "pme" does so on
            a mesh; "reaction_field" truncates the energy of periodic systems, "reaction_field_everywhere" that of all;
            None: as the potential, and with a cutoff as "reaction_field".
        cutoff: Å, of the reaction field, which with "reaction_field" applies to systems that are not periodic only if
            the potential truncates there too. With an Ewald sum it divides the work and does not change the result;
            None: steps choose it by size, and a mesh for large systems.
        accuracy: Of sums over all images: error of forces, relative to their root mean square.

    Raises:
        ValueError: For a potential without Coulomb energy, an unknown treatment, a cutoff that is not > 0 and finite,
            and an accuracy of an energy that is truncated.
    """
    if accuracy is not None:
        return _as_accurate(with_coulomb_cutoff(potential, cutoff, coulomb), accuracy)
    if cutoff is None and coulomb is None:
        return potential
    if coulomb is not None and coulomb not in TREATMENTS:
        raise ValueError(f"coulomb must be one of {', '.join(TREATMENTS)}, or None, got {coulomb!r}")
    if isinstance(potential, Ensemble):
        return potential.with_members([_changed(member, cutoff, coulomb) for member in potential])
    return _changed(potential, cutoff, coulomb)


def with_coulomb_cutoff_of_one(
    potential: Potential, cutoff: float | None, coulomb: str | None = None, accuracy: float | None = None
) -> Potential:
    """As `with_coulomb_cutoff`, of a single potential."""
    changed = with_coulomb_cutoff(potential, cutoff, coulomb, accuracy)
    assert isinstance(changed, Potential)
    return changed


def has_coulomb(potential: Potential | Ensemble) -> bool:
    """Whether a potential, or a member of an ensemble, has a Coulomb energy."""
    return any(_coulomb_of(member) for member in members_of(potential))


def takes_charges(potential: Potential | Ensemble) -> bool:
    """Whether a potential, or a member of an ensemble, takes the partial charges of atoms as given."""
    return any(prior.config.charges == "given" for member in members_of(potential) for prior in _coulomb_of(member))


def coulomb_cutoff_of(potential: Potential | Ensemble, periodic: bool) -> float | None:
    """The cutoff beyond which the Coulomb energy is truncated, Å, for systems with or without periodic directions.

    None if nothing is truncated.
    """
    priors = (prior for member in members_of(potential) for prior in _coulomb_of(member))
    return max((prior.cutoff(periodic) for prior in priors if prior.splitting is None), default=0.0) or None


def sum_error_of(potential: Potential | Ensemble, periodic: bool) -> float:
    """The requested error of forces of Ewald sums, relative; 0 where there are none."""
    priors = (prior for member in members_of(potential) for prior in _coulomb_of(member))
    errors = (prior.config.accuracy for prior in priors if prior.splitting is not None)
    return max(errors, default=0.0) if periodic else 0.0


def with_tight_sums(potential: Potential) -> Potential:
    """The same potential with Ewald sums that others can be compared with."""

    def tight(config: CoulombConfig) -> CoulombConfig:
        # Where it is fast, an Ewald sum also for a mesh: a second method.
        method = "auto" if config.periodic == "pme" else config.periodic
        return replace(config, accuracy=max(MOST_ACCURATE, config.accuracy / TIGHTER), periodic=method)

    return _with(potential, tight) if sum_error_of(potential, True) else potential


def with_balanced_sums(potential: Potential | Ensemble, batch: Batch) -> Potential | Ensemble:
    """The same potential with the cutoffs of its Ewald sums, where they are free, for the largest cell of a batch.

    Reads the device.
    """
    largest = float(torch.where(batch.pbc.all(-1), volume(batch.cell), 0.0).max()) if batch.num_systems else 0.0

    def balanced(config: CoulombConfig) -> CoulombConfig:
        if config.periodic != "auto":
            return config
        split = Splitting.balanced(config.accuracy, largest)
        cutoff = MESH_CUTOFF if takes_mesh(split, batch.num_atoms / batch.num_systems, largest) else split.cutoff
        return _summed(config, cutoff, "auto")

    if not largest or not sum_error_of(potential, True):
        return potential
    if isinstance(potential, Ensemble):
        return potential.with_members([_with(member, balanced) for member in potential])
    return _with(potential, balanced)


def _as_accurate(potential: Potential | Ensemble, accuracy: float) -> Potential | Ensemble:
    if not sum_error_of(potential, True):
        raise ValueError(
            f"coulomb_accuracy needs a sum over all images (coulomb='ewald'), got {accuracy:g} for "
            f"{members_of(potential)[0].card.title}, whose Coulomb energy is truncated, or which has none"
        )

    def accurate(config: CoulombConfig) -> CoulombConfig:
        return replace(config, accuracy=accuracy) if config.sums_lattice else config

    if isinstance(potential, Ensemble):
        return potential.with_members([_with(member, accurate) for member in potential])
    return _with(potential, accurate)


def _changed(potential: Potential, cutoff: float | None, coulomb: str | None) -> Potential:
    if not _coulomb_of(potential):
        given = f"{cutoff} Å" if coulomb is None else repr(coulomb)
        name = "coulomb_cutoff" if coulomb is None else "coulomb"
        raise ValueError(
            f"{name} needs a potential with a Coulomb energy, got {given} for {potential.card.title}, which has none"
        )
    if coulomb == "ewald":
        length, kind = (EWALD_CUTOFF, "auto") if cutoff is None else (cutoff, "ewald")
        return _with(potential, lambda config: _summed(config, length, kind))
    if coulomb == "pme":
        return _with(potential, lambda config: _summed(config, MESH_CUTOFF if cutoff is None else cutoff, "pme"))
    everywhere = coulomb == "reaction_field_everywhere"
    return _with(potential, lambda config: _truncated(config, cutoff, everywhere))


def _summed(config: CoulombConfig, cutoff: float, kind: str) -> CoulombConfig:
    longest = config.damping if config.switch is None else config.switch[1]
    return replace(config, periodic=kind, cut_in_vacuum=False, cutoff=max(cutoff, float(longest)))


def _truncated(config: CoulombConfig, cutoff: float | None, everywhere: bool) -> CoulombConfig:
    own = FIELD_CUTOFF if config.sums_lattice else config.cutoff
    length, in_vacuum = own if cutoff is None else cutoff, everywhere or config.cut_in_vacuum
    return replace(config, periodic="reaction_field", cutoff=length, cut_in_vacuum=in_vacuum)


def _with(potential: Potential, change: Callable[[CoulombConfig], CoulombConfig]) -> Potential:
    priors = [change(prior.config) if isinstance(prior, Coulomb) else prior for prior in potential.priors]
    return potential.with_priors(cast(list[Prior | CoulombConfig], priors))


def _coulomb_of(potential: Potential) -> list[Coulomb]:
    return [prior for prior in potential.priors if isinstance(prior, Coulomb)]
