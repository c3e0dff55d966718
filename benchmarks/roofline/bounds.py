"""Lower bounds of the time of a captured step, for the kernels that it takes."""

from __future__ import annotations

from benchmarks.roofline.device_rates import device_rates
from benchmarks.roofline.engine_evaluations import evaluations_of
from benchmarks.roofline.floors import Work, floors, work_of
from torchmdx import CapturedStep, Ensemble, Potential


def least_seconds(step: CapturedStep, potential: Potential | Ensemble, precision: str) -> dict[str, float]:
    """The floors of a step on its device, by what takes the time; empty if the work of the model is not known.

    Counted for the positions of its last evaluation.
    """
    members = list(potential) if isinstance(potential, Ensemble) else [potential]
    work = Work()
    for member, how in zip(members, evaluations_of(step.engine), strict=True):
        part = work_of(member, step.batch.num_atoms, _edges_within(step, member), how)
        if part is None:
            return {}
        work += part
    return floors(work, device_rates(potential.device, precision, work.units))


def _edges_within(step: CapturedStep, potential: Potential) -> int:
    """Edges that are evaluated: the list may have longer ones than the cutoff of the network."""
    edges, batch, cutoff = step.search.edges, step.ordered, float(potential.config.cutoff)
    if potential.search_cutoff(step.batch) + step.skin <= cutoff:
        return int(edges.num_edges)
    vectors = edges.vectors(batch.positions, batch.cell, batch.system_index)
    return int((vectors.norm(dim=1) <= cutoff).sum())
