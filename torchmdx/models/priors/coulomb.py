"""Coulomb interaction of predicted or given partial charges, damped at the distances that the network describes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Self

import torch
from torch import Tensor

from torchmdx.models.priors.base import Geometry, Prior, PriorConfig, is_number, shapes_are_fixed
from torchmdx.models.priors.ewald import KeptVectors, KVectors
from torchmdx.models.priors.open_pairs import open_blocks, open_systems
from torchmdx.models.priors.reciprocal import reciprocal_energies
from torchmdx.models.priors.splitting import Splitting
from torchmdx.structures.system import Batch
from torchmdx.structures.units import COULOMB

if TYPE_CHECKING:
    from torchmdx.models.priors.bulk import BulkSums

BACKGROUND = (
    "sums the Coulomb energy of a periodic system with a total charge of {charge:+g} e, which a uniform background "
    "neutralizes: its energy, and its pressure, depend on the size of the cell"
)
PERIODIC = ("reaction_field", "ewald", "pme", "auto")
MOST_ACCURATE, LEAST_ACCURATE = 1e-13, 1e-2


@dataclass(frozen=True, kw_only=True)
class CoulombConfig(PriorConfig):
    """Settings of the damped Coulomb interaction.

    Attributes:
        periodic: How systems with periodic directions are treated: "reaction_field" truncates the interaction; "ewald"
            sums over all images, "pme" with the smooth part on a mesh; "auto" takes the faster of both, and captured
            steps choose its cutoff by size.
        cutoff: Å, for systems with periodic directions: of the reaction field, whose `dielectric` is beyond it
            (infinity: a conductor, for which the force at the cutoff is zero too), or of the part of an Ewald sum over
            pairs, which does not change its result.
        accuracy: Of an Ewald sum: error of forces, relative to their root mean square.
        cut_in_vacuum: Whether the cutoff applies to systems without periodic directions too. Otherwise all pairs
            interact.
        damping: Å, distance below which pairs are damped.
        switch: Two distances, Å, between which a cosine switches pairs on; it replaces the damping.
        charges: "predicted" by the network, or "given" as the partial_charges of each structure.
        weights: Of the charges of the embedding and of each layer, or of every channel of every layer; None: all equal.
        strength: Energy of two elementary charges 1 Å apart, eV Å.
    """

    name: ClassVar[str] = "coulomb"
    cutoff: float = 10.0
    cut_in_vacuum: bool = False
    damping: float = 4.6
    switch: tuple[float, float] | None = None
    charges: str = "predicted"
    dielectric: float = 78.3
    weights: tuple[float, ...] | None = None
    strength: float = COULOMB
    periodic: str = "reaction_field"
    accuracy: float = 1e-5

    def __post_init__(self) -> None:
        self._require_lengths("cutoff", "damping")
        self._require_finite("strength")
        self._require("cut_in_vacuum", isinstance(self.cut_in_vacuum, bool), "True or False")
        self._require("dielectric", is_number(self.dielectric) and self.dielectric >= 1, ">= 1")
        self._require("charges", self.charges in ("predicted", "given"), "predicted or given")
        if self.switch is not None:
            lower, upper = (float(length) for length in self.switch)
            self._require("switch", 0 <= lower < upper < math.inf, "two rising lengths >= 0 Å")
            object.__setattr__(self, "switch", (lower, upper))
        if self.weights is not None:
            weights = tuple(float(weight) for weight in self.weights)
            if not all(map(math.isfinite, weights)) or not sum(weights) > 0:
                raise ValueError(
                    f"weights of the prior coulomb must be finite and add up to more than 0, got {weights}"
                )
            object.__setattr__(self, "weights", weights)
        self._require_lattice_settings()

    def _require_lattice_settings(self) -> None:
        self._require("periodic", self.periodic in PERIODIC, f"one of {', '.join(PERIODIC)}")
        possible = is_number(self.accuracy) and MOST_ACCURATE <= self.accuracy <= LEAST_ACCURATE
        self._require("accuracy", possible, f"from {MOST_ACCURATE:g} to {LEAST_ACCURATE:g}")
        if not self.sums_lattice:
            return
        if self.cut_in_vacuum:
            raise ValueError(
                f"cut_in_vacuum of the prior coulomb needs periodic 'reaction_field', got periodic {self.periodic!r}"
            )
        name, longest = "damping" if self.switch is None else "switch", self.damped_up_to
        self._require("cutoff", self.cutoff >= longest, f"at least the {name}'s {longest:g} Å in an Ewald sum")

    @property
    def sums_lattice(self) -> bool:
        """Whether periodic systems are summed over all images."""
        return self.periodic != "reaction_field"

    @property
    def damped_up_to(self) -> float:
        """The distance beyond which pairs interact fully, Å."""
        return float(self.damping) if self.switch is None else self.switch[1]

    def scaled(self, factor: float) -> Self:
        return self._times("strength", factor)


class Coulomb(Prior):
    """E = ½ k Σ_ij (1 - d(r_ij)) Σ_m w_m q_im q_jm / Σ_m w_m · g(r_ij)

    ::

      | variable | symbol |
      |---|---|
      | damping | d(r) = exp(1 - 1 / (1 - (r / damping)²)) below the damping length, 0 beyond it; or the switch |
      | shape | g(r) = 1 / r, or under a cutoff c: 1 / r + (ε - 1) / (2 ε + 1) · r² / c³ - 3 ε / (2 ε + 1) / c |

    In an Ewald sum every pair within the cutoff has (1 - d(r)) (1 / r - s) - erf(α r) / r instead, and the rest is a
    sum over the reciprocal lattice (torchmdx.models.priors.reciprocal): damped pairs and all images interact as 1 / r.

    Attributes:
        kept: The vectors of an engine's Ewald sums; None: chosen for every evaluation.
        bulk: Vectors and buffers of the batch that is evaluated, in a training step; None: as `kept` says.
    """

    config: CoulombConfig
    weights: Tensor

    def __init__(self, config: CoulombConfig, sets: int = 1, channels: int = 1) -> None:
        """sets: number of sets of predicted charges (embedding and layers), each with `channels` channels."""
        super().__init__()
        self.config = config
        self.sees_all_pairs = not config.cut_in_vacuum
        self.splitting = Splitting.of(config.accuracy, float(config.cutoff)) if config.sums_lattice else None
        self.kept: KeptVectors | None = None
        self.bulk: BulkSums | None = None
        weights = torch.tensor(config.weights or (1.0,) * sets, dtype=torch.float64)
        if len(weights) not in (sets, sets * channels):
            raise ValueError(
                f"weights of the prior coulomb must be {sets} (embedding and layers) or {sets * channels} "
                f"(one for each channel), got {len(weights)}"
            )
        if len(weights) == sets:
            weights = weights.repeat_interleave(channels)
        self.register_buffer("weights", weights / weights.sum(), persistent=False)

    def cutoff(self, periodic: bool) -> float:
        return float(self.config.cutoff) if periodic or self.config.cut_in_vacuum else 0.0

    def doubts(self, title: str, periodic: bool, charge: float = 0.0) -> list[str]:
        if not periodic:
            return []
        if self.splitting is not None:
            return [f"{title} {BACKGROUND.format(charge=charge)}"] if charge else []
        if self.config.charges == "given":
            return []
        return [
            f"{title} truncates the Coulomb energy of periodic systems at {self.config.cutoff:g} Å, with a reaction "
            "field: energies and forces depend on this cutoff, because the predicted charges of a molecule do not sum "
            "to its charge. Coulomb forces in a box of water can be off by more than half; coulomb='ewald' (--coulomb "
            "ewald) sums over all images"
        ]

    @property
    def sums(self) -> str | None:
        """A description of its Ewald sum; None with a reaction field."""
        if (split := self.splitting) is None:
            return None
        pairs = f"accuracy {split.accuracy:g}: α {split.alpha:.3f} 1/Å, pairs up to {round(split.cutoff, 2):g} Å"
        latest = None if self.kept is None else self.kept.latest
        if latest is None:
            rest = {"ewald": "vectors", "pme": "a mesh"}.get(self.config.periodic, "vectors or a mesh")
            return f"{pairs}, and {rest}, chosen at the first evaluation"
        return f"{pairs}, {latest.size}"

    def keep_lists(self) -> None:
        self.kept = KeptVectors()

    def atomic_charges(self, charges: Tensor) -> Tensor:
        """One charge for each atom [N] from all channels [N,M]: their mean, weighted as in the energy."""
        return charges @ self.weights.to(charges.dtype)

    def forward(self, geometry: Geometry) -> Tensor:
        charges = self.charges(geometry)
        energies = self.within_cutoff(geometry, charges)
        if self.splitting is not None:
            energies = energies + self.beyond_cutoff(geometry, charges)
        if self.sees_all_pairs:
            energies = energies + geometry.open_pairs(self, charges)
        return energies

    def charges(self, geometry: Geometry) -> Tensor:
        """Partial charges [N,M]. Raises ValueError for structures without them if they are to be given."""
        if self.config.charges == "predicted":
            assert geometry.charges is not None, "the registry makes no such prior for other networks"
            return geometry.charges
        return self.given_charges(geometry.batch)

    @staticmethod
    def given_charges(batch: Batch) -> Tensor:
        """Partial charges [N,1] of the structures. Raises ValueError if there are none."""
        given = batch.partial_charges
        if given is None:
            raise ValueError(
                "this potential takes partial charges as given: structures need partial_charges, which ASE calls "
                "initial charges"
            )
        return given[:, None]

    def within_cutoff(self, geometry: Geometry, charges: Tensor) -> Tensor:
        """Energies [N] of the pairs in the list, for systems to which the cutoff applies."""
        config, batch, r = self.config, geometry.batch, geometry.distance
        inside = r < config.cutoff
        if not config.cut_in_vacuum:
            atoms = (~open_systems(batch)).index_select(0, batch.system_index)
            inside = inside & geometry.at_target(atoms)
        r = torch.where(inside, r, config.cutoff)
        weighted = charges * self.weights.to(charges.dtype)
        products = (geometry.at_target(weighted) * geometry.at_source(charges)).sum(-1)
        shape = self.undamped(r) * self.reaction_field(r)
        if self.splitting is not None:
            shape = shape - torch.erf(self.splitting.alpha * r) / r
        return geometry.halved_onto_atoms(torch.where(inside, config.strength * products * shape, 0.0))

    def beyond_cutoff(self, geometry: Geometry, charges: Tensor) -> Tensor:
        """Energies [N] of an Ewald sum's part over the reciprocal lattice. Raises ValueError as `KVectors.of`."""
        batch, lattice = geometry.batch, geometry.lattice
        if self.bulk is not None and lattice is not None:
            given = (lattice.positions, lattice.cell, charges, self.weights)
            return self.config.strength * self.bulk.energies(*given)
        if not shapes_are_fixed(batch.positions) and not bool(batch.pbc.any()):
            return charges.new_zeros(batch.num_atoms)
        assert lattice is not None, "engines and evaluations give it to every prior"
        vectors = self.vectors_for(batch, charges, geometry.edges.overflow)
        given = (lattice.positions, lattice.cell, charges, self.weights)
        return self.config.strength * reciprocal_energies(vectors, batch, *given)

    def vectors_for(self, batch: Batch, charges: Tensor, overflow: Tensor) -> KVectors:
        """The vectors of an Ewald sum for a batch with charges [N,M]; overflow: as for `KeptVectors.serve`."""
        assert self.splitting is not None
        if self.kept is not None:
            return self.kept.serve(batch, self.splitting, charges, overflow, self.config.periodic)
        if shapes_are_fixed(batch.positions):
            raise RuntimeError("an Ewald sum can be captured in an engine only: take torchmdx.CapturedStep")
        return KVectors.of(batch, self.splitting, charges, method=self.config.periodic)

    def plain_pairs(self, batch: Batch, positions: Tensor, charges: Tensor) -> Tensor:
        """Energies [N] of all pairs of systems without periodic directions."""
        energies = charges.new_zeros(batch.num_atoms)
        weighted = charges * self.weights.to(charges.dtype)
        for block in open_blocks(batch):
            r = block.distances(positions)
            shape = torch.where(block.pairs, self.undamped(r) / r, 0.0)
            potentials = shape @ charges[block.atoms]
            energy = 0.5 * self.config.strength * (weighted[block.atoms] * potentials).sum(-1)
            energies = energies.index_add(0, block.atoms.flatten(), energy.flatten())
        return energies

    def undamped(self, r: Tensor) -> Tensor:
        """1 - d(r), of any shape: 0 at contact, 1 beyond the damping length."""
        if self.config.switch is not None:
            lower, upper = self.config.switch
            return 0.5 - 0.5 * torch.cos(math.pi * ((r - lower) / (upper - lower)).clamp(0, 1))
        square = (r / self.config.damping) ** 2
        inside = square < 1 - 1e-3  # d is below exp(-999) beyond it: zero even in float64
        gap = 1 - torch.where(inside, square, 0.0)
        return torch.where(inside, 1 - torch.exp(1 - 1 / gap), 1.0)

    @property
    def alpha(self) -> float:
        """α of an Ewald sum, 1/Å; 0 with a reaction field."""
        return 0.0 if self.splitting is None else self.splitting.alpha

    @property
    def field(self) -> tuple[float, float]:
        """(a, b) of g(r) = 1 / r + a r² - b under the cutoff; in an Ewald sum b is its shift."""
        if self.splitting is not None:
            return 0.0, self.splitting.shift
        # In terms of 1/ε, so that ε may be infinite.
        inverse, cutoff = 1 / self.config.dielectric, float(self.config.cutoff)
        return (1 - inverse) / (2 + inverse) / cutoff**3, 3 / (2 + inverse) / cutoff

    def reaction_field(self, r: Tensor) -> Tensor:
        """g(r) under the cutoff."""
        a, b = self.field
        return 1 / r + a * r**2 - b
