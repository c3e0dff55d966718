"""The engine of an ensemble: k engines over one list of edges, then mean and spread.

On a GPU the members of a small system are branches of one graph, which fork after the search and join before the mean::

    prepare -> search -+-> member 0 -+-> combine -> finish
                       +-> member 1 -+
                       +-> ...      -+

The kernels of a molecule have one program per atom and leave most of the GPU idle, so branches run concurrently, each
member in its own buffers. Larger systems fill the GPU: their members run one after the other and share scratch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from torchmdx.engines.engine import Engine, Outputs
from torchmdx.engines.gpu.engine import GpuEngine
from torchmdx.engines.plan import Plan
from torchmdx.engines.plan.members import most_side_by_side
from torchmdx.models.ensemble import UNCALIBRATED, mean_of, spread_of
from torchmdx.neighbors.edges import Edges
from torchmdx.runtime.device_guard import device_of_positions, runs_on
from torchmdx.runtime.own_streams import own_stream
from torchmdx.structures.system import Batch

_ALIGNED = 16  # elements: rows of a stack are aligned, so that kernels load whole words


class Stack:
    """Results of k members, one row each, as the combination reads them."""

    def __init__(self, count: int, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> None:
        size = int(torch.Size(shape).numel())
        self.stride = -(-max(size, 1) // _ALIGNED) * _ALIGNED
        self.block = torch.zeros(count, self.stride, dtype=dtype, device=device)
        self.rows = [row[:size].view(shape) for row in self.block]
        self.values = self.block[:, :size].view(count, *shape)

    def take(self, member: int, value: Tensor) -> None:
        """Copies a member's result into its row, unless the member has written it there."""
        row = self.rows[member]
        if value.data_ptr() != row.data_ptr():
            row.copy_(value)


class EnsembleEngine:
    """The engines of the members, on one device and batch, with the interface of a single engine."""

    plan: Plan | None = None

    def __init__(
        self,
        engines: Sequence[Engine],
        batch: Batch,
        *,
        stress: bool,
        spread_factors: tuple[float, float] = UNCALIBRATED,
    ) -> None:
        self.spread_factors = spread_factors
        self.engines, self.stress = list(engines), stress
        self.name, self.table_error = "", max(engine.table_error for engine in engines)
        device, dtype = batch.positions.device, batch.positions.dtype
        count, n, s = len(self.engines), batch.num_atoms, batch.num_systems
        self.energy = Stack(count, (s,), torch.float64, device)
        self.energies = Stack(count, (n,), torch.float64, device)
        self.forces = Stack(count, (n, 3), dtype, device)
        self.stresses = Stack(count, (s, 3, 3), torch.float64, device) if stress else None

        def new(*shape: int) -> Tensor:
            return torch.zeros(shape, dtype=torch.float64, device=device)

        self.outputs = Outputs(new(s), new(n), new(n, 3), new(s, 3, 3) if stress else None, new(s), new(n))
        self.streams = self._make_streams(device, n)
        self._describe()

    def _make_streams(self, device: torch.device, num_atoms: int) -> list[torch.cuda.Stream]:
        """One for each member but the first; none if members run one after the other."""
        fused = all(isinstance(engine, GpuEngine) for engine in self.engines)
        if device.type != "cuda" or num_atoms > most_side_by_side(fused=fused):
            return []
        return [own_stream(device, number) for number in range(1, len(self.engines))]

    def _describe(self) -> None:
        names = list(dict.fromkeys(engine.name for engine in self.engines))
        self.name = f"{len(self.engines)} members: {' and '.join(names)}"

    def reserve(self, capacity: int) -> None:
        first: GpuEngine | None = None
        for member, engine in enumerate(self.engines):
            engine.reserve(capacity)
            if isinstance(engine, GpuEngine):
                engine.place_results(*(stack.rows[member] for stack in (self.energy, self.energies, self.forces)))
                if first is None:
                    first = engine
                elif not self.streams:
                    engine.share_scratch(first)
        self._describe()

    @runs_on(device_of_positions)
    def run(self, positions: Tensor, cell: Tensor, edges: Edges, *, forces: bool = True) -> Outputs:
        def evaluate(member: int) -> None:
            self._take(member, self.engines[member].run(positions, cell, edges, forces=forces))

        if self.streams:
            self._side_by_side(evaluate, positions.device)
        else:
            for member in range(len(self.engines)):
                evaluate(member)
        if positions.device.type == "cuda":
            from torchmdx.engines.ensemble_kernel import launch_combine

            launch_combine(self)
        else:
            self._combine()
        if self.spread_factors != UNCALIBRATED:
            assert self.outputs.energy_spread is not None
            assert self.outputs.force_spread is not None
            self.outputs.energy_spread.mul_(self.spread_factors[0])
            self.outputs.force_spread.mul_(self.spread_factors[1])
        return self.outputs

    def _side_by_side(self, evaluate: Callable[[int], None], device: torch.device) -> None:
        """Branches that fork from the current stream and join it; in a capture they become branches of the graph.

        A branch frees what it allocates on its own stream: results leave it only in the stacks.
        """
        main = torch.cuda.current_stream(device)
        try:
            for member, stream in enumerate(self.streams, start=1):
                stream.wait_stream(main)
                with torch.cuda.stream(stream):
                    evaluate(member)
            evaluate(0)
        finally:  # also after an error: memory that is freed next must have no pending writes
            for stream in self.streams:
                main.wait_stream(stream)

    def _take(self, member: int, outputs: Outputs) -> None:
        self.energy.take(member, outputs.energy)
        self.energies.take(member, outputs.energies)
        self.forces.take(member, outputs.forces)
        if self.stresses is not None:
            assert outputs.stress is not None
            self.stresses.take(member, outputs.stress)

    def _combine(self) -> None:
        """`launch_combine` in torch."""
        out = self.outputs
        out.energy.copy_(mean_of(self.energy.values))
        out.energies.copy_(mean_of(self.energies.values))
        out.forces.copy_(mean_of(self.forces.values))
        if self.stresses is not None:
            assert out.stress is not None
            out.stress.copy_(mean_of(self.stresses.values))
        assert out.energy_spread is not None
        assert out.force_spread is not None
        out.energy_spread.copy_(spread_of(self.energy.values))
        out.force_spread.copy_(spread_of(self.forces.values, vectors=True))
