"""Ewald sums in training steps: vectors that are chosen on the host as a batch is loaded, in buffers of its shape."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from torchmdx.models.potential import Potential
from torchmdx.models.priors.bulk import BulkSums, takes_vectors
from torchmdx.models.priors.coulomb import Coulomb
from torchmdx.training.labelled import LabelledBatch

log = logging.getLogger(__name__)

WHY_NOT = (
    "training steps with slabs, wires or crystals that are summed on a mesh run kernel by kernel, without a CUDA "
    "graph: their Coulomb energy is summed over vectors or meshes that are chosen for every batch"
)


class LatticeSums:
    """The buffers of the Ewald sums of a potential, for the batches of one shape.

    Attributes:
        fixed: Whether the sums of the batch that was loaded last read nothing on the host and keep their shapes. True
            for a potential without such sums.
    """

    def __init__(self, potential: Potential, key: str, capacities: Mapping[str, int]) -> None:
        """key: of the shape; capacities: those of a run that is resumed, whose sums are rounded alike."""
        self._priors = [p for p in potential.priors if isinstance(p, Coulomb) and p.splitting is not None]
        self._names = [(f"{key} vectors {k}", f"{key} rows {k}") for k in range(len(self._priors))]
        self._rooms = [(capacities.get(vectors, 0), capacities.get(rows, 0)) for vectors, rows in self._names]
        self._bulk: list[BulkSums] = []
        self.fixed, self._said = True, False

    def load(self, labelled: LabelledBatch) -> bool:
        """Chooses vectors for a batch; False if graphs that were captured before have lost their buffers."""
        crystals, batch = labelled.crystals, labelled.batch
        self.fixed = all(
            crystals.are_bulk() and takes_vectors(crystals, prior.splitting, prior.config.periodic, batch.num_atoms)
            for prior in self._priors
            if prior.splitting is not None
        )
        if not self.fixed:
            if batch.positions.is_cuda and not self._said:
                log.info(WHY_NOT)
            self._said = True
            return True
        if not self._bulk:
            self._bulk = [
                BulkSums.empty(prior.splitting, batch.num_systems, batch.num_atoms, batch.positions.device, room)
                for prior, room in zip(self._priors, self._rooms, strict=True)
                if prior.splitting is not None
            ]
        kept = [sums.load(crystals) for sums in self._bulk]
        return all(kept)

    @contextmanager
    def used(self) -> Iterator[None]:
        """Within, the priors sum over these buffers."""
        try:
            for prior, sums in zip(self._priors, self._bulk if self.fixed else (), strict=False):
                prior.bulk = sums
            yield
        finally:
            for prior in self._priors:
                prior.bulk = None

    def capacities(self) -> dict[str, int]:
        """Slots and rows by name, as the constructor takes them."""
        rooms = [sums.room for sums in self._bulk] or self._rooms
        named = {
            name: n for names, room in zip(self._names, rooms, strict=True) for name, n in zip(names, room, strict=True)
        }
        return {name: number for name, number in named.items() if number}
