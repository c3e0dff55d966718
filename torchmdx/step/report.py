"""The report of a captured step: how it evaluates, with sizes, times and memory."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from torchmdx.engines.choose import ewald_of, planned_and_actual
from torchmdx.engines.engine import Engine
from torchmdx.models.coulomb_cutoff import coulomb_cutoff_of
from torchmdx.models.ensemble import Ensemble
from torchmdx.models.potential import Potential
from torchmdx.neighbors.search import EdgeSearch
from torchmdx.step.audit import Verdict
from torchmdx.step.capture_policy import GraphPolicy
from torchmdx.structures.system import Batch


@dataclass(frozen=True, kw_only=True)
class StepReport:
    """Mode and engine with the reason for each, sizes, and measurements at capture (None if nothing was captured).

    Attributes:
        nodes: Kernels and copies in the graph.
        memory_bytes: Buffers, graph and model, as torch counts them; bytes_per_atom: of these.
        replay_ms, eager_ms: Time of an evaluation with and without the graph.
        error: Relative force error against the exact model in float64, in the last audit.
        compared, not_compared: What that audit compared with the exact model, and what it left out and why; None before
            an audit, and where there is nothing to say.
        table_error: Largest error of a tabulated filter or its slope, relative to the largest value; 0 without tables.
        members: Number of members of an ensemble; None for a single potential.
        threads: Of an evaluation on the CPU; None on a GPU.
        plan: Which kernels were planned, why, and what runs instead of those that are not available.
        coulomb_cutoff: Å, beyond which a reaction field replaces Coulomb interactions; None if nothing is truncated.
        ewald: Accuracy, splitting and number of vectors of an Ewald sum; None if there is none.
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
    compared: str | None
    not_compared: str | None
    threads: int | None
    plan: str | None = None
    coulomb_cutoff: float | None = None
    ewald: str | None = None
    bytes_per_atom: int | None = None

    @classmethod
    def of(
        cls,
        potential: Potential | Ensemble,
        batch: Batch,
        search: EdgeSearch,
        engine: Engine,
        engine_why: str,
        policy: GraphPolicy,
        evaluations: int,
        recoveries: int,
        memory_bytes: int,
        verdict: Verdict,
        threads: int | None,
    ) -> StepReport:
        """The report on the parts of a step; synchronises with the GPU."""
        graph = next(iter(policy.graphs.values()), None)
        edges = int(search.edges.num_edges)
        return cls(
            mode=policy.mode,
            why=policy.why,
            engine=engine.name,
            engine_why=engine_why,
            members=len(potential) if isinstance(potential, Ensemble) else None,
            atoms=batch.num_atoms,
            systems=batch.num_systems,
            edges=edges,
            capacity=search.capacity,
            head_room=search.capacity / max(edges, 1) - 1,
            evaluations=evaluations,
            searches=search.num_updates(),
            recoveries=recoveries,
            nodes=graph.num_nodes if graph else None,
            memory_bytes=memory_bytes,
            capture_s=graph.seconds if graph else None,
            replay_ms=policy.replay_seconds * 1e3 if graph else None,
            eager_ms=policy.eager_seconds * 1e3 if policy.eager_seconds == policy.eager_seconds else None,
            table_error=engine.table_error,
            error=verdict.error,
            compared=verdict.compared,
            not_compared=verdict.left_out,
            threads=threads,
            plan=planned_and_actual(engine),
            coulomb_cutoff=coulomb_cutoff_of(potential, periodic=bool(batch.pbc.any())),
            bytes_per_atom=round(memory_bytes / batch.num_atoms) if memory_bytes and batch.num_atoms else None,
            ewald=ewald_of(engine) if bool(batch.pbc.any()) else None,
        )

    def __str__(self) -> str:
        lines = []
        for name, value in asdict(self).items():
            if value is None:
                continue
            shown = f"{value:.3g}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else value
            shown = shown.replace("\n", "\n" + 15 * " ")
            lines.append(f"{name.replace('_', ' '):>13}  {shown}")
        return "\n".join(lines)
