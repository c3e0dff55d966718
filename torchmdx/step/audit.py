"""Audits: comparison of what a step returns with the exact model in float64.

Small systems are evaluated as a whole. Of a large one a few atoms are compared, with everything that they depend on in
the structure. Systems and atoms are drawn by the number of each audit; what was not compared, a verdict says.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from torchmdx.evaluation.derivatives import require_apart
from torchmdx.models.coulomb_cutoff import sum_error_of
from torchmdx.models.ensemble import Ensemble
from torchmdx.models.potential import Potential
from torchmdx.neighbors.edges import Edges
from torchmdx.step.buffer_storage import FIRST_BAD, NOT_FINITE
from torchmdx.step.buffers import StepBuffers
from torchmdx.step.comparison import TOLERANCES, compare_systems
from torchmdx.step.drawn import draw
from torchmdx.step.exact import Results
from torchmdx.step.findings import Findings
from torchmdx.step.results import NonFiniteError
from torchmdx.structures.system import Batch

# Forces may be this many times further off than requested of a sum over a lattice: others cancel a part of them.
SUM_ERRORS = 5.0


@dataclass(frozen=True)
class Verdict:
    """error: relative force error against the exact model, None if not computed. reason: why it failed, else None.

    Attributes:
        compared, left_out: What was compared with the exact model, and what was not and why; None for nothing.
    """

    error: float | None
    reason: str | None
    compared: str | None = None
    left_out: str | None = None


def structure_of(batch: Batch, buffers: StepBuffers, kind: str) -> Batch:
    """A copy of the structure that a step was given, on the device of `batch`, which it evaluates.

    Args:
        kind: "host" or "device", where its positions and cell came from.
    """
    inputs = buffers.inputs if kind == "device" else buffers.host_inputs
    given = {name: inputs[name].clone().to(batch.positions.device) for name in ("positions", "cell")}
    return replace(batch, **given)


def judge(
    potential: Potential | Ensemble,
    structure: Batch,
    found: Results,
    precision: str,
    number: int,
    launched: Results | None = None,
) -> Verdict:
    """Audits the outputs `found` of a step for a structure. number: of the audit, which draws systems and atoms.

    Args:
        launched: The outputs of an eager run, which those of a replay are compared with for structures of any size.
    """
    device = structure.positions.device
    allowed = TOLERANCES[precision] + SUM_ERRORS * sum_error_of(potential, bool(structure.pbc.any()))
    if not structure.num_atoms:
        return Verdict(None, None, left_out="a structure without atoms, which has nothing to compare")
    outputs = {name: value.to(device) for name, value in found.items() if name != "flags"}
    if launched is not None:
        reasons = compare_systems(outputs, launched, structure, allowed, "a launch's").reasons
        if reasons:
            return Verdict(None, "; ".join(reasons))
    findings, drawn = Findings(potential, structure, outputs, allowed), draw(structure.counts().tolist(), number)
    findings.compare_whole(drawn.whole)
    if drawn.part is not None:
        findings.compare_part(drawn.part, number)
    findings.compare_sums()
    findings.skip(structure.num_systems - len(drawn.whole) - (drawn.part is not None))
    reason, compared, left_out = (
        "; ".join(dict.fromkeys(texts)) or None for texts in (findings.reasons, findings.compared, findings.left_out)
    )
    return Verdict(max(findings.errors, default=None), reason, compared, left_out)


def require_finite(flags: Any, evaluation: int, edges: Edges, buffers: StepBuffers, ordered: Batch) -> None:
    """Raises NonFiniteError for results that are not finite; AtomsTogether if two atoms coincide."""
    if not flags[NOT_FINITE]:
        return
    # The usual cause: two atoms at the same position. Engines see coordinates before rounding, too.
    vectors = edges.vectors(buffers.places, buffers.box, ordered.system_index)
    require_apart(edges, vectors, buffers.order)
    raise NonFiniteError(
        f"evaluation {evaluation}: positions, energy or forces of {int(flags[NOT_FINITE])} atoms are not "
        f"finite, the first is atom {int(flags[FIRST_BAD])}"
    )
