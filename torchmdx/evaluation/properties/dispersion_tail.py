"""What the cutoffs of D2 and D3 leave out in a periodic system: an estimate for pairs that decay as r⁻⁶.

::

    E(∞) - E(c) = (E(c') - E(c)) / (1 - (c / c')³)        as sums over all pairs beyond a cutoff c fall as c⁻³

and the same of pressures. Between c and c' pairs are summed, beyond it they are taken to be spread evenly.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from torchmdx.models.ensemble import Ensemble, members_of
from torchmdx.models.potential import Potential
from torchmdx.models.priors.base import Geometry, PriorConfig
from torchmdx.models.priors.d2 import D2Config
from torchmdx.models.priors.d3 import D3Config
from torchmdx.models.registry import make_prior
from torchmdx.neighbors.explicit import search_explicitly
from torchmdx.structures.cell import volume
from torchmdx.structures.system import Batch, System

FARTHER = 1.5  # the second cutoff, in first ones


@dataclass(frozen=True)
class Tail:
    """prior: its name. cutoff: Å. energy: eV, beyond the cutoff; pressure: eV/Å³, that it would add."""

    prior: str
    cutoff: float
    energy: float
    pressure: float


def dispersion_tails(potential: Potential | Ensemble, system: System) -> list[Tail]:
    """For every D2 and D3 of a potential, of an ensemble those of the first member; none unless the system is bulk."""
    if not bool(system.pbc.all()):
        return []
    member = members_of(potential)[0]
    batch = Batch.of(system).to("cpu", torch.float64)
    size = float(volume(batch.cell)[0])
    found = []
    for config in member.prior_configs:
        if isinstance(config, (D2Config, D3Config)):
            near, far = (
                _values(replace(config, cutoff=scale * config.cutoff), batch, member) for scale in (1, FARTHER)
            )
            energy, slope = ((b - a) / (1 - FARTHER**-3) for a, b in zip(near, far, strict=True))
            found.append(Tail(config.name, float(config.cutoff), energy, -slope / (3 * size)))
    return found


def _values(config: D2Config | D3Config, batch: Batch, member: Potential) -> tuple[float, float]:
    """The energy, eV, and its derivative in a factor of all lengths."""
    settings: PriorConfig = config
    prior, edges = make_prior(settings, member.config), search_explicitly(batch, float(config.cutoff))
    distance = torch.linalg.vector_norm(edges.vectors(batch.positions, batch.cell, batch.system_index), dim=-1)
    with torch.enable_grad():
        factor = torch.ones((), dtype=distance.dtype, device=distance.device, requires_grad=True)
        energy = prior(Geometry(batch, edges, factor * distance, batch.positions, None)).sum()
        (slope,) = torch.autograd.grad(energy, factor)
    return float(energy.detach()), float(slope)
