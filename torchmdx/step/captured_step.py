"""CapturedStep: repeated evaluation of energy, forces and stress of a structure or a batch as one CUDA graph."""

from __future__ import annotations

import functools
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor

from torchmdx.engines.choose import engine_for, from_outside
from torchmdx.models.coulomb_cutoff import with_balanced_sums
from torchmdx.models.ensemble import Ensemble, frozen
from torchmdx.models.potential import Potential
from torchmdx.neighbors.search import EdgeSearch
from torchmdx.runtime.cpu_threads import limited_to
from torchmdx.runtime.device_guard import methods_on_own_device, prepare_linear_algebra
from torchmdx.runtime.fork_guard import check_fork
from torchmdx.runtime.kernel_compile import run_compiled
from torchmdx.runtime.thread_lock import ThreadLock, one_thread_at_a_time
from torchmdx.step.audit import Verdict, require_finite
from torchmdx.step.buffer_storage import UNCERTAINTIES
from torchmdx.step.buffers import StepBuffers, copy_checked
from torchmdx.step.capture_policy import GraphPolicy, require_mode
from torchmdx.step.change import fall_back, order_for_engine, refresh, repair, settle, take_over
from torchmdx.step.copies import parts_of, restored
from torchmdx.step.device_memory import checked_memory, memory_allocated, memory_explained, require_memory
from torchmdx.step.graph import Graph
from torchmdx.step.results import AuditError, StepResult
from torchmdx.step.spread_limit import checked_limit, require_agreement
from torchmdx.step.state import StepState, checked_precision
from torchmdx.step.structure_block import StructureBlock
from torchmdx.step.uncertainty import UncertaintyProduct, doubts_of, for_step
from torchmdx.structures.system import Batch, System

REFRESH_EVERY = 2000  # evaluations between updates of images and order: atoms diffuse slowly
MOST_ROUNDS = 8  # growing once is normally enough; a list that still does not fit indicates a collapsed structure


@one_thread_at_a_time("__call__", "assign", "capture", "capture_energy", "__reduce__")
@methods_on_own_device("__init__", "__call__", "assign", "capture", "capture_energy")
class CapturedStep(StepState):
    """Evaluates a structure, or a batch, at changing positions and cells, as fast as this machine can.

    Example::

        step = CapturedStep(potential, System.from_ase(atoms))
        result = step(atoms.positions, atoms.cell.array)

    On a GPU the neighbour search, the model and the copies to and from the host are one CUDA graph. Each evaluation
    launches it once, on the caller's current stream, and synchronises once. The step owns its buffers: positions and
    cell are copied in and results are copied out; arrays of the caller are neither kept nor overwritten. A replay fixes
    atoms, elements, charges and periodic directions. Positions and cell may change freely. If the neighbour list is too
    small, it grows and the graph is captured again. The step copies the weights when it is created; after a change of
    weights create another step. Threads that share a step take turns. A copy or a pickle of a step has its structure,
    settings and last cell; it allocates and captures for itself.

    Args:
        mode: "graph" requires a graph (GraphRefused otherwise), "eager" never captures, "auto" captures at the third
            evaluation and keeps the graph if it is measured to be faster. `mode`, `why` and `report()` say what runs.
        stress, energies: Also compute stress, and the energy of each atom.
        skin: Å added to the search radius, so that most searches can be skipped.
        precision: "float32" or "float64" (on a GPU the exact model); None takes the potential's dtype.
        audit_every: Evaluations between comparisons with the exact model (0: only when a graph is captured).
        max_force_spread: For an ensemble, eV/Å; SpreadError if the forces on an atom have a larger spread.
        uncertainty: Also compute the uncertainties of the energy and of the energy of each atom, which a single
            potential knows if `Potential.uncertainty` is set.
        max_uncertainty: Of the energy of an atom, eV; UncertaintyError if it is larger. Implies `uncertainty`.
        engine: "fused", "pairs", "C", "exact" or the name of a registered engine; ValueError if it does not serve. None
            takes the fastest.
        max_memory: Bytes of the GPU; a large structure then has fewer of its tensors in memory at a time. None takes
            the fastest that fits; OutOfDeviceMemory if more is needed.
    """

    def __init__(
        self,
        potential: Potential | Ensemble,
        structure: System | Batch | Sequence[System],
        *,
        mode: str = "auto",
        stress: bool = False,
        energies: bool = False,
        skin: float = 0.0,
        precision: str | None = None,
        audit_every: int = 0,
        max_force_spread: float | None = None,
        uncertainty: bool = False,
        max_uncertainty: float | None = None,
        engine: str | None = None,
        max_memory: int | None = None,
    ) -> None:
        require_mode(mode, potential.device)
        check_fork(potential.device)
        prepare_linear_algebra(potential.device)
        self.lock = ThreadLock()
        if audit_every < 0:
            raise ValueError(f"audit_every must be >= 0 evaluations, got {audit_every}")
        self.precision, dtype = checked_precision(potential, precision), potential.dtype
        self.batch, self.device = Batch.of(structure).to(potential.device), potential.device
        limit = checked_limit(potential, max_force_spread, max_uncertainty)
        potential = for_step(potential, uncertainty or max_uncertainty is not None)
        self.potential = frozen(with_balanced_sums(potential, self.batch))
        potential.require_elements(self.batch.atomic_numbers)
        self.periodic = bool(self.batch.pbc.any())
        self.skin, self.audit_every, self.engine_asked = skin, audit_every, engine
        self.max_memory = checked_memory(max_memory, self.device)
        self.num_evaluations = self.num_recoveries = 0
        self.verdict = Verdict(None, None)  # of the last audit
        self._last_kind, self.fell_back = "host", False
        self.unsettled = self.assigning = False
        self._given_out: torch.cuda.Event | None = None
        before = memory_allocated(self.device)
        with memory_explained(self.batch, self.device):
            self._allocate(dtype, stress, energies)
        if limit is not None:
            self.buffers.most.fill_(limit)
        self._buffer_bytes = memory_allocated(self.device) - before
        require_memory(self._buffer_bytes, self.max_memory, self.batch)
        self.policy = GraphPolicy(mode, self.device, self.engine_why)

    def _allocate(self, dtype: torch.dtype, stress: bool, energies: bool) -> None:
        self.block = block = StructureBlock.of(self.batch, dtype)
        self.batch = batch = self.batch.clone() if block is None else block.batch
        doubts = doubts_of(self.potential)
        self.buffers = buffers = StepBuffers(batch, dtype, stress=stress, energies=energies, doubts=doubts, block=block)
        buffers.fill(batch)
        ordered = batch.clone().to(dtype=dtype) if block is None else block.ordered()
        self.ordered = replace(ordered, positions=buffers.positions, cell=buffers.cell)
        refresh(self, "device")
        self.product = None
        if doubts == UNCERTAINTIES:
            self.product = UncertaintyProduct(cast(Potential, self.potential), self.ordered)
        self.search = EdgeSearch(self.potential.search_cutoff(self.batch), skin=self.skin)
        self.search.allocate(self.ordered)
        self.engine, self.engine_why = engine_for(
            self.potential, self.ordered, stress=stress, precision=self.precision, engine=self.engine_asked,
            memory=self.max_memory or 0, capacity=self.search.capacity,
        )  # fmt: skip
        order_for_engine(self)
        self.audit_owed = from_outside(self.engine)  # others were compared with the exact model before
        self.engine.reserve(self.search.capacity)

    def __call__(self, positions: Any, cell: Any = None, *, copy: bool = True, forces: bool = True) -> StepResult:
        """Energy, forces and optionally stress at positions [N,3] Å and cell [3,3] or [S,3,3] Å (None: the last cell).

        copy=False returns views of the step's own buffers, valid until the next call. forces=False: a single potential
        on the CPU omits forces, which are None, unless stress or an audit needs them. Raises ValueError or TypeError
        for positions or cells of a wrong shape or type, NonFiniteError, SpreadError, OutOfDeviceMemory.
        """
        check_fork(self.device)
        self._require_assigned()
        kind = self._take_in(positions, cell)
        self.num_evaluations += 1
        self.with_forces = forces or self._needs_forces()
        with memory_explained(self.batch, self.device):
            if self.unsettled:
                settle(self, kind)
            elif self.num_evaluations % REFRESH_EVERY == 0:
                refresh(self, kind)
            for _ in range(MOST_ROUNDS):
                try:
                    result = self._round(kind, copy)
                except torch.cuda.OutOfMemoryError as error:
                    if not self.policy.give_up(error):
                        raise
                    self.audit_owed = False  # the graphs that needed it are gone
                    settle(self, kind)
                    continue
                if result is not None:
                    return result
        flags = self.buffers.host_arrays["flags"]
        raise RuntimeError(f"the neighbour list did not fit after {MOST_ROUNDS} rounds of growing: {flags.tolist()}")

    def assign(self, structure: System | Batch | Sequence[System]) -> None:
        """Takes another structure of the same number of atoms and systems into the same buffers and graphs.

        Raises ValueError, and keeps its structure, for other sizes and for a periodic structure if the step was created
        without periodic directions. After an interruption or OutOfDeviceMemory the step refuses evaluations until an
        assign succeeds.
        """
        take_over(self, Batch.of(structure))

    def __reduce__(self) -> tuple[Any, ...]:
        return restored, (type(self), *parts_of(self, self._last_kind))

    def capture(self, kind: str = "host") -> None:
        """Captures now instead of at the third evaluation; if the graph is not kept, `why` gives the reason.

        Args:
            kind: "host" or "device", where positions come from.

        Raises:
            GraphRefused: If mode="graph" and capture fails.
        """
        self._require_assigned()
        with memory_explained(self.batch, self.device):
            if self.unsettled:
                settle(self, kind)
            self.unsettled = True
            parts = (lambda: self._launch(kind), self.buffers.copied_outputs, functools.partial(self._judge, kind))
            reason = self.policy.consider(kind, *parts)
            self.unsettled = False
            if reason is not None:
                fall_back(self, reason)
            elif not self.policy.graphs:
                self.audit_owed = False  # the graph was refused for its time or memory

    def capture_energy(self) -> None:
        """Captures an evaluation of the energy without forces, from device inputs, as the graph "energy"."""
        self._require_assigned()
        with memory_explained(self.batch, self.device):
            if self.unsettled:
                settle(self, "device")
            self.unsettled = True
            self.policy.graphs["energy"] = Graph(lambda: self._launch("energy"), self.device)
            self.unsettled = False

    def _round(self, kind: str, copy: bool) -> StepResult | None:
        """The result of one evaluation; None if it must be repeated after a repair."""
        copied = self._run(kind, copy)
        flags = self.buffers.host_arrays["flags"]
        if repair(self, kind, flags):
            return None
        require_finite(flags, self.num_evaluations, self.search.edges, self.buffers, self.ordered)
        if not self._trusted():
            return None
        require_agreement(flags, self.batch, self.buffers)
        return self._give_out(kind, copy, copied)

    def _take_in(self, positions: Any, cell: Any) -> str:
        on_device = isinstance(positions, Tensor) and positions.device.type == "cuda"
        if on_device and positions.device != self.device:
            raise ValueError(f"positions must be on the CPU or on {self.device}, got {positions.device}")
        kind = "device" if on_device else "host"
        if self._given_out is not None:  # another stream may still read the last results
            self._given_out.wait(torch.cuda.current_stream(self.device))
        target = self.buffers.inputs if on_device else self.buffers.host_inputs
        copy_checked("positions", target["positions"], positions)
        if cell is not None:
            copy_checked("cell", target["cell"], cell)
        elif kind != self._last_kind:
            self.buffers.share_cell(to=kind)  # the last cell is in the other inputs
        self._last_kind = kind
        return kind

    def _run(self, kind: str, copy: bool) -> dict[str, Tensor] | None:
        """One evaluation, until energy and flags are on the host; copies of results on the device, if wanted."""
        copied = None
        if self.policy.due(kind, self.num_evaluations):
            self.capture(kind)
        graph = self.policy.graphs.get(kind)
        start = time.perf_counter()
        try:
            if graph:
                graph.replay()
            else:
                self.unsettled = True  # kernels use counters that only a complete evaluation resets
                with limited_to(self.threads):
                    run_compiled(lambda: self._launch(kind), self.device)
                self.unsettled = False
            if copy and kind == "device":  # queued before the host waits, so that it costs no time of the host
                copied = self.buffers.copied_outputs()
        finally:  # the next call overwrites the inputs of this one
            if self.buffers.on_gpu:
                torch.cuda.current_stream(self.device).synchronize()
        if not graph:
            self.policy.eager_seconds = time.perf_counter() - start
        return copied

    def _give_out(self, kind: str, copy: bool, copied: dict[str, Tensor] | None) -> StepResult:
        if kind == "host":
            result = StepResult.of(self.buffers.host_arrays, copy)
            return result if self.with_forces else replace(result, forces=None)
        if copied is None:
            self._given_out = torch.cuda.Event()
            self._given_out.record(torch.cuda.current_stream(self.device))
        return StepResult.of(copied or self.buffers.outputs, copy=False)

    def _trusted(self) -> bool:
        """Audits this evaluation if that is due. False after a fallback: the evaluation must be repeated.

        Raises:
            AuditError: If an audit that is due fails, or that of the engine that a fallback has chosen.
        """
        due = self._audit_due()
        if not (due or self.audit_owed):
            return True
        owed = self.audit_owed
        reason = self._judge(self._last_kind)
        if reason is None:
            return True
        if due or self.fell_back:
            self.audit_owed = owed
            raise AuditError(f"the audit of evaluation {self.num_evaluations}: {reason}")
        self.policy.refuse(reason)
        fall_back(self, reason)
        return False
