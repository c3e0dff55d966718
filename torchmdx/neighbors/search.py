"""EdgeSearch: a neighbour list with fixed shapes that is updated in place and grown when necessary."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from torchmdx.neighbors.backends import Search
from torchmdx.neighbors.brute_force import require_cutoff
from torchmdx.neighbors.capacity import (
    UNCOUNTABLE,
    require_addressable,
    require_capacity,
    require_memory,
    with_head_room,
)
from torchmdx.neighbors.choose import BACKENDS, choose_backend, make_search
from torchmdx.neighbors.edges import Edges, empty_edges
from torchmdx.neighbors.images import require_countable
from torchmdx.neighbors.operator import remember, update_edges
from torchmdx.neighbors.reverse import find_reverse
from torchmdx.runtime.device_guard import device_of_positions, runs_on
from torchmdx.runtime.isolation import isolated
from torchmdx.runtime.kernel_compile import run_compiled
from torchmdx.structures.system import Batch


class EdgeSearch:
    """All pairs within cutoff + skin of a batch, in buffers with fixed addresses and shapes.

    Example::

        search = EdgeSearch(cutoff=5.0)
        edges = search.allocate(batch)
        for positions, cell in frames:
            edges = search.update(positions, cell)
            while edges.overflow:  # reads the flag from the device
                search.grow()
                edges = search.update(positions, cell)

    `allocate` looks at the structures and chooses a capacity with head-room. `update` keeps every shape, allocates
    nothing, never waits for a GPU and can be captured in a CUDA graph; the Edges it returns are the search's own
    buffers, overwritten by the next update. `overflow` and `needed` in them are values on the device: when overflow
    is set the list is incomplete and must not be used. `grow` reads `needed` and makes room: buffers are new, so
    graphs that hold the old ones must be captured again.

    Updates of one search share its scratch: on a GPU one must be ordered after the other, as on one stream.
    An `allocate` or `grow` that fails or is interrupted leaves the search as it was. After an interrupted `assign` or
    `update` call `renew`.

    Args:
        skin: Å beyond the cutoff. An update returns at once, without the host taking part, unless an atom moved more
            than skin/2 or the cell changed enough to matter; `num_updates()` counts the real searches.
        backend: "auto", or one of BACKENDS.
        reverse: Also keep, in `reverse` [E], the slot of every edge's other direction.
    """

    def __init__(self, cutoff: float, *, skin: float = 0.0, backend: str = "auto", reverse: bool = False) -> None:
        require_cutoff(cutoff)
        if not (0 <= skin < float("inf")):
            raise ValueError(f"skin must be >= 0 Å and finite, got {skin}")
        if backend != "auto" and backend not in BACKENDS:
            raise ValueError(f"backend must be auto or one of {', '.join(BACKENDS)}, got {backend!r}")
        self.cutoff, self.skin, self.asked = float(cutoff), float(skin), backend
        self.reverse_wanted = reverse
        self.reverse: Tensor | None = None
        self.batch: Batch | None = None
        self._half_assigned = False
        self._searched_cell: Tensor | None = None
        self._handle = remember(self)

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._handle = remember(self)  # a copy must not be found by the number of the original

    @isolated
    def allocate(self, batch: Batch, capacity: int | None = None) -> Edges:
        """Buffers for these atoms, systems and periodic directions, and the list at the batch's positions.

        Args:
            capacity: Slots; None for those needed now and head-room.

        Raises:
            ValueError: For an unfit backend or capacity.
            CapacityError: For a cell that is flat or has too many images within the radius, and too many edges for
                memory.
        """
        require_countable(batch.cell, batch.pbc, self.radius)
        if capacity is not None:
            require_capacity(capacity)
        backend = choose_backend(self.asked, batch)
        if capacity is None:
            needed = self._needed(batch, backend)
            _require_room(needed, batch.positions.device)
            capacity = with_head_room(needed, batch.num_atoms)
        self._make(batch, backend, capacity)
        return self.update(batch.positions, batch.cell)

    def _needed(self, batch: Batch, backend: str) -> int:
        """Edges of a batch, counted by a list too short to hold them."""
        edges = empty_edges(batch, 1)
        search = make_search(backend, batch, self.cutoff, self.skin, edges)
        positions, cell = batch.positions.detach().contiguous(), batch.cell.detach().contiguous()
        if batch.num_atoms:
            run_compiled(lambda: search.update(positions, cell), positions.device)
        return int(edges.needed)

    def assign(self, batch: Batch, counts: Sequence[int] | None = None) -> bool:
        """Other atoms in the same buffers: as many atoms and systems as allocated, in systems of other sizes.

        The next update searches, whatever the skin. False where the search cannot keep its buffers: they are new, as
        after `grow`.

        Args:
            counts: Atoms of each system, if the host knows them. Then nothing is read from the device, and an invalid
                cell is flagged by the next update, as with `update`, instead of being refused here.

        Raises:
            ValueError: For other numbers.
            CapacityError: For cells that can't be searched.
        """
        old = self.batch
        if old is None:
            raise RuntimeError("allocate must be called before assign")
        if (batch.num_atoms, batch.num_systems) != (old.num_atoms, old.num_systems):
            raise ValueError(
                f"assign needs {old.num_atoms} atoms in {old.num_systems} systems, "
                f"got {batch.num_atoms} in {batch.num_systems}"
            )
        if counts is None:
            require_countable(batch.cell, batch.pbc, self.radius)
        elif len(counts) != batch.num_systems or sum(counts) != batch.num_atoms:
            raise ValueError(
                f"counts must be of {batch.num_systems} systems with {batch.num_atoms} atoms in all, "
                f"got {len(counts)} with {sum(counts)}"
            )
        half, self._half_assigned = self._half_assigned, True
        if not half and self._search.assign(batch, counts):
            self.batch, self._half_assigned = batch, False
            return True
        self._make(batch, self.backend, self.capacity)
        return False

    def update(self, positions: Tensor, cell: Tensor | None = None) -> Edges:
        """The list at positions [N,3] Å and cell [S,3,3] Å (None: the batch's), in the search's own buffers."""
        batch = self._require_allocated()
        cell = batch.cell if cell is None else cell
        for name, given, own in (("positions", positions, batch.positions), ("cell", cell, batch.cell)):
            if given.shape != own.shape or given.dtype != own.dtype or given.device != own.device:
                raise ValueError(
                    f"{name} must be {list(own.shape)} {own.dtype} on {own.device} as allocated, "
                    f"got {list(given.shape)} {given.dtype} on {given.device}"
                )
        e = self.edges
        positions, cell = positions.detach(), cell.detach()
        if torch.compiler.is_compiling():
            update_edges(
                positions, cell, e.row_ptr, e.source, e.target, e.shifts, e.num_edges, e.needed, e.overflow,
                self._handle,
            )  # fmt: skip
        else:
            self.update_buffers(positions, cell)
        return e

    def grow(self) -> int:
        """Enlarges the capacity to what the last update needed, plus head room, and returns it. Reads the device.

        Then nothing has changed.

        Raises:
            CapacityError: When no capacity will do: too many edges for int32 or for memory, or a cell that can't be
                searched, because it has no volume or the radius covers too many of its images.
        """
        batch = self._require_allocated()
        needed = self.require_growable()
        self._make(
            batch, self.backend, with_head_room(max(needed, self.capacity), batch.num_atoms), self._search.updates
        )
        return self.capacity

    def require_growable(self) -> int:
        """How many edges the last update needed; raises CapacityError as `grow` does. Reads the device."""
        batch = self._require_allocated()
        needed = int(self.edges.needed)
        if needed >= UNCOUNTABLE and self._searched_cell is not None:
            require_countable(self._searched_cell, batch.pbc, self.radius)
        _require_room(needed, self.edges.source.device)
        return needed

    def renew(self) -> None:
        """New buffers of the same capacity, after an update that was interrupted; the next update searches.

        The searches on a GPU count in scratch that only a complete update resets.
        """
        self._make(self._require_allocated(), self.backend, self.capacity, self._search.updates)

    @property
    def radius(self) -> float:
        """The search radius, cutoff + skin, Å."""
        return self.cutoff + self.skin

    @property
    def capacity(self) -> int:
        return self.edges.capacity

    def num_updates(self) -> int:
        """How many updates have searched since `allocate`. Reads the device."""
        return int(self._search.updates)

    @property
    def invalid(self) -> Tensor:
        """Whether an atom of the last search had no usable coordinates, or a cell no volume, [] bool on the device.

        Such an atom has no neighbours: NaN, infinite, or more than a million cells away.
        """
        return self._search.invalid

    def _require_allocated(self) -> Batch:
        if self.batch is None:
            raise RuntimeError("allocate must be called before update and grow")
        if self._half_assigned:
            raise RuntimeError("the last assign did not finish: call assign or allocate before update and grow")
        return self.batch

    def _make(self, batch: Batch, backend: str, capacity: int, updates: Tensor | None = None) -> None:
        """Replaces list and scratch together, once all of them exist. updates: the count to continue from."""
        edges = empty_edges(batch, capacity)
        search: Search = make_search(backend, batch, self.cutoff, self.skin, edges)
        if updates is not None:
            search.updates.copy_(updates)
        reverse = torch.zeros(capacity, dtype=torch.int32, device=edges.source.device) if self.reverse_wanted else None
        # No call stands between these stores, so that no signal handler runs between them.
        self.batch, self.backend, self.edges, self._search = batch, backend, edges, search
        self.reverse, self._half_assigned = reverse, False

    @runs_on(device_of_positions)
    @isolated
    def update_buffers(self, positions: Tensor, cell: Tensor) -> None:
        """`update` without its checks: the body of the torch operator."""
        if len(positions) == 0:
            return
        self._searched_cell = cell  # of a captured search the buffer, which has the cell of the last replay
        self._search.update(positions.contiguous(), cell.contiguous())
        if self.reverse is not None:
            find_reverse(self.edges, self.reverse)


def _require_room(needed: int, device: torch.device) -> None:
    require_addressable(needed)
    if device.type == "cpu":
        require_memory(needed)
