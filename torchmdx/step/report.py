"""What a captured step does and costs, in numbers."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from torchmdx.models.ensemble import Ensemble

if TYPE_CHECKING:
    from torchmdx.step.captured_step import CapturedStep


@dataclass(frozen=True, kw_only=True)
class StepReport:
    """mode and why · engine and why · sizes · what was measured at capture (None where nothing was captured).

    nodes: kernels and copies in the graph. memory_bytes: buffers, graph and model as torch counts them. replay_ms and
    eager_ms: an evaluation with and without the graph. error: relative force error against the exact model in float64.
    table_error: largest error of a tabulated filter or its slope, relative to the largest; 0 without tables.
    members: of an ensemble; None for a single potential.
    """

    mode: str
    why: str
    engine: str
    engine_why: str
    members: int | None
    atoms: int
    systems: int
    edges: int
    capacity: int
    head_room: float
    evaluations: int
    searches: int
    recoveries: int
    nodes: int | None
    memory_bytes: int
    capture_s: float | None
    replay_ms: float | None
    eager_ms: float | None
    table_error: float
    error: float | None

    @classmethod
    def of(cls, step: CapturedStep) -> StepReport:
        """Reads the numbers of a step; waits for the GPU."""
        policy = step.policy
        graph = next(iter(policy.graphs.values()), None)
        edges = int(step.search.edges.num_edges)
        return cls(
            mode=step.mode,
            why=step.why,
            engine=step.engine.name,
            engine_why=step.engine_why,
            members=len(step.potential) if isinstance(step.potential, Ensemble) else None,
            atoms=step.batch.num_atoms,
            systems=step.batch.num_systems,
            edges=edges,
            capacity=step.search.capacity,
            head_room=step.search.capacity / max(edges, 1) - 1,
            evaluations=step.num_evaluations,
            searches=step.search.num_updates(),
            recoveries=step.num_recoveries,
            nodes=graph.num_nodes if graph else None,
            memory_bytes=step.memory_bytes(),
            capture_s=graph.seconds if graph else None,
            replay_ms=policy.replay_seconds * 1e3 if graph else None,
            eager_ms=policy.eager_seconds * 1e3 if policy.eager_seconds == policy.eager_seconds else None,
            table_error=step.engine.table_error,
            error=step.error,
        )

    def __str__(self) -> str:
        lines = []
        for name, value in asdict(self).items():
            if value is None:
                continue
            shown = f"{value:.3g}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else value
            lines.append(f"{name.replace('_', ' '):>13}  {shown}")
        return "\n".join(lines)
