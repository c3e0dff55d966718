"""The state of a captured step: what an evaluation uses and a change replaces."""

from __future__ import annotations

import torch
from torch import Tensor

from torchmdx.engines.choose import slower_because
from torchmdx.engines.cpu.engine import CpuEngine
from torchmdx.engines.cpu.with_priors import CpuPriorEngine
from torchmdx.engines.engine import Engine
from torchmdx.engines.ensemble import EnsembleEngine
from torchmdx.engines.gpu.engine import GpuEngine
from torchmdx.models.ensemble import Ensemble
from torchmdx.models.potential import Potential
from torchmdx.neighbors.search import EdgeSearch
from torchmdx.runtime.cpu_threads import num_threads
from torchmdx.runtime.precisions import require_precision
from torchmdx.step.audit import Verdict, judge, structure_of
from torchmdx.step.buffer_storage import FAR, NOT_FINITE, OVERFLOW
from torchmdx.step.buffers import StepBuffers
from torchmdx.step.capture_policy import GraphPolicy
from torchmdx.step.report import StepReport
from torchmdx.step.structure_block import StructureBlock
from torchmdx.step.uncertainty import UncertaintyProduct
from torchmdx.step.whole_step import Moving, launch_whole
from torchmdx.structures.system import Batch


class StepState:
    """Structure, buffers, neighbour list, engine and graphs of a step, and the work of one evaluation.

    A change may be interrupted at any line. While `unsettled` is set, order, neighbour list, scratch memory and graphs
    may be inconsistent, and the next evaluation makes them consistent first. While `assigning` is set, the structure
    is incomplete, and evaluations are refused.

    Attributes:
        engine_asked: The name of the engine that was asked for; None: the fastest.
        max_memory: Bytes that the step may take; None: what the device has.
        batch: The structure in the caller's order and frame.
        ordered: The same atoms in the order and frame of the buffers, which the engine sees.
        verdict: Of the last audit.
        audit_owed: An audit must pass before the next result is returned.
        fell_back: The engine is the exact model, because the fast path failed an audit.
        with_forces: Whether the current evaluation computes forces.
    """

    potential: Potential | Ensemble
    device: torch.device
    batch: Batch
    ordered: Batch
    block: StructureBlock | None  # of `batch`, `ordered` and a part of the buffers, for few atoms
    buffers: StepBuffers
    search: EdgeSearch
    engine: Engine
    product: UncertaintyProduct | None  # of a single potential's uncertainty, if it is wanted
    inputs_kept: Tensor | None = None  # of the last layer, in the order of `ordered`, where they are evaluated
    engine_why: str
    engine_asked: str | None
    max_memory: int | None
    policy: GraphPolicy
    precision: str
    verdict: Verdict
    num_evaluations: int
    periodic: bool  # whether the structure that it was made for is, in any direction
    num_recoveries: int
    _buffer_bytes: int
    audit_every: int
    audit_owed: bool
    fell_back: bool
    with_forces: bool = True
    unsettled: bool
    assigning: bool

    @property
    def threads(self) -> int | None:
        """Threads of an evaluation on the CPU, one if the structure is small; None on a GPU."""
        if self.device.type != "cpu":
            return None
        engines = self.engine.engines if isinstance(self.engine, EnsembleEngine) else [self.engine]
        if all(isinstance(engine, (CpuEngine, CpuPriorEngine)) for engine in engines):
            return torch.get_num_threads()  # at most: these divide their work by size themselves
        return num_threads(self.search.capacity, exact=self.precision == "float64")

    @property
    def error(self) -> float | None:
        """Relative force error that the last audit found; None before the first."""
        return self.verdict.error

    @property
    def mode(self) -> str:
        """What an evaluation is: "graph" or "eager"."""
        return self.policy.mode

    @property
    def why(self) -> str:
        """The reason for the mode, and for an engine that is not the fastest."""
        slower = slower_because(self.engine)
        return self.policy.why if slower is None else f"{self.policy.why}; without the fused kernels: {slower}"

    def report(self) -> StepReport:
        """How this step evaluates, with sizes, times and memory."""
        parts = (self.potential, self.batch, self.search, self.engine, self.engine_why, self.policy)
        counts = (self.num_evaluations, self.num_recoveries, self.memory_bytes())
        return StepReport.of(*parts, *counts, self.verdict, self.threads)

    def memory_bytes(self) -> int:
        """Device memory of buffers, neighbour list, scratch memory and graphs."""
        return self._buffer_bytes + sum(graph.num_bytes for graph in self.policy.graphs.values())

    def _require_assigned(self) -> None:
        if self.assigning:
            raise RuntimeError("the last assign did not finish: call assign again before an evaluation")

    @property
    def last_inputs(self) -> Tensor:
        """A copy of the inputs of the last layer [N,D] in the last evaluation, in the caller's order.

        Raises:
            ValueError: Before the first evaluation, and for a step without `uncertainty=True`.
        """
        if self.inputs_kept is None:
            raise ValueError("last_inputs needs an evaluation of a step with uncertainty=True, got none")
        return torch.empty_like(self.inputs_kept).index_copy_(0, self.buffers.order.long(), self.inputs_kept)

    def _judge(self, kind: str, launched: dict[str, Tensor] | None = None) -> str | None:
        """Audits the evaluation that has just been done. Returns why it is wrong, None if it passes.

        Args:
            kind: Where its inputs came from and its results went.
            launched: Outputs of a launch with the same inputs.
        """
        flags = self.buffers.host_outputs["flags"]
        self.audit_owed = True  # until one has passed
        if flags[FAR] or flags[OVERFLOW] or flags[NOT_FINITE]:
            return None  # no forces to compare: the evaluation is repaired or refused first, then audited
        outputs = self.buffers.outputs if kind == "device" else self.buffers.host_outputs
        structure = structure_of(self.batch, self.buffers, kind)
        verdict = judge(self.potential, structure, outputs, self.precision, self.num_evaluations, launched)
        self.verdict = verdict
        self.audit_owed = verdict.reason is not None
        return verdict.reason

    def _audit_due(self) -> bool:
        return bool(self.audit_every) and self.num_evaluations % self.audit_every == 0

    def _needs_forces(self) -> bool:
        """Whether an evaluation has forces that are not asked for."""
        one_on_cpu = self.device.type == "cpu" and not isinstance(self.potential, Ensemble)
        return not one_on_cpu or self.buffers.stress_wanted or self._audit_due() or self.audit_owed

    def _launch_moving(self, moving: Moving) -> bool:
        """Launches steps of dynamics as one kernel; false, and nothing is done, if none serves this step."""
        parts = (self.engine, self.buffers, self.search, self.ordered)
        return bool(self.buffers.num_atoms) and not self.periodic and launch_whole(*parts, "steps", moving)

    def _launch(self, kind: str) -> None:
        """Launches all the work of one evaluation; reads nothing on the host, so that it can be captured.

        Args:
            kind: "host" or "device", where inputs come from and results go; "energy": device inputs, no forces;
                "steps": device inputs and results, of which the host reads nothing.
        """
        buffers = self.buffers
        if not buffers.num_atoms:
            buffers.finish_without_atoms(from_host=kind == "host")
            return
        whole = self.with_forces and not self.periodic
        if whole and launch_whole(self.engine, buffers, self.search, self.ordered, kind):
            assert isinstance(self.engine, GpuEngine)
            assert self.engine.model.buffers is not None
            self.inputs_kept = self.engine.model.buffers.last_inputs
            return
        buffers.prepare(self.ordered.system_index, from_host=kind == "host")
        edges = self.search.update(buffers.positions, buffers.cell)
        outputs = self.engine.run(buffers.places, buffers.box, edges, forces=kind != "energy" and self.with_forces)
        # Those of an earlier evaluation may not be finite.
        forces = outputs.forces if self.with_forces else torch.zeros_like(outputs.forces)
        doubts = outputs.spread
        if self.product is not None:
            assert outputs.last_inputs is not None, f"the engine {self.engine.name} returns no inputs of the last layer"
            self.inputs_kept = outputs.last_inputs
            doubts = outputs.uncertainties or self.product(outputs.last_inputs)
        results = (outputs.energy, outputs.energies, forces, outputs.stress, doubts)
        buffers.finish(edges, *results, to_host=kind == "host", read=kind != "steps")


def checked_precision(potential: Potential | Ensemble, precision: str | None) -> str:
    """The precision; None: that of the potential. Raises ValueError if it needs a potential in another dtype."""
    name = require_precision(precision or str(potential.dtype).removeprefix("torch."))
    if str(potential.dtype) != f"torch.{name}":
        raise ValueError(f"precision {name!r} needs a potential in torch.{name}, got {potential.dtype}")
    return name
