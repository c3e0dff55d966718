"""Steps of a batch: an evaluation by a captured step, and an update of FIRE, several of them without the host."""

from __future__ import annotations

import torch

from torchmdx.dynamics.relaxation.fire import Fire, FireSettings
from torchmdx.models.ensemble import Ensemble
from torchmdx.models.potential import Potential
from torchmdx.runtime.device_guard import methods_on_own_device
from torchmdx.step.buffer_storage import FAR, NOT_FINITE, NUM_FLAGS, OVERFLOW
from torchmdx.step.captured_step import CapturedStep
from torchmdx.step.change import gave_up
from torchmdx.step.graph import Graph
from torchmdx.step.results import NonFiniteError
from torchmdx.structures.system import Batch


def stress_needed(batch: Batch, settings: FireSettings) -> bool:
    """For cells that move, and among the results of all periodic structures."""
    return settings.cell or bool(batch.pbc.any())


@methods_on_own_device("__init__", "run")
class Evaluations:
    """A captured step for the structures in `fire`.

    While the step has a CUDA graph, `run` replays it and the update alternately, and reads flags only after the last.
    If the list of neighbours overflowed on the way, or atoms went far, it starts over from a copy, with evaluations
    that repair. An evaluation that is not finite ends the systems that it belongs to, and no others.
    """

    def __init__(self, potential: Potential | Ensemble, batch: Batch, fire: Fire, precision: str, mode: str) -> None:
        self.fire, self.device = fire, potential.device
        stress = stress_needed(batch, fire.settings)
        self.step = CapturedStep(potential, batch, mode=mode, stress=stress, precision=precision)
        self._seen = torch.zeros(NUM_FLAGS, dtype=torch.int64, device=fire.device)
        self._update: Graph | None = None
        self.num_replayed = 0

    def run(self, count: int) -> None:
        """This number of steps; systems that end on the way stay where they are."""
        if not self._can_replay() or not self._replay(count):
            for _ in range(count):
                self._evaluate()
                self._advance()

    def results(self) -> dict[str, torch.Tensor]:
        """Copies of forces [N,3] and, for moving cells, stress [S,3,3] of the last evaluation, on the CPU."""
        out = self.step.buffers.outputs
        return {name: out[name].cpu().clone() for name in ("forces", "stress") if name in out}

    def _evaluate(self) -> None:
        fire = self.fire
        try:
            self.step(fire.positions, fire.cell, copy=False)
        except (NonFiniteError, ValueError):  # ValueError: two atoms at the same position
            # The results of all systems are in the buffers; the update ends those that are not finite.
            if not int(self.step.buffers.host_outputs["flags"][NOT_FINITE]):
                raise

    def _advance(self) -> None:
        out = self.step.buffers.outputs
        self.fire.advance(out["energy"], out["forces"], out.get("stress"))

    # -- on a GPU ------------------------------------------------------------------------------------------------------

    def _can_replay(self) -> bool:
        step = self.step
        return "device" in step.policy.graphs and not (step.audit_owed or step.unsettled or step.assigning)

    def _replay(self, count: int) -> bool:
        """False, with the state as before, if an evaluation must be repaired."""
        if self._update is None:
            self._capture_update()
        fire, step = self.fire, self.step
        assert self._update is not None
        before = fire.saved()
        self._seen.zero_()
        self._fill_inputs()
        graph = step.policy.graphs["device"]
        for _ in range(count):
            graph.replay()
            self._update.replay()
        flags = self._seen.tolist()  # the only synchronization
        if flags[OVERFLOW] or flags[FAR] or (flags[NOT_FINITE] and gave_up(step)):
            fire.load(before)
            return False
        self.num_replayed += count
        return True

    def _capture_update(self) -> None:
        before = self.fire.saved()
        self._update = Graph(self._update_and_fill, self.fire.device)
        self.fire.load(before)  # the capture ran the update

    def _update_and_fill(self) -> None:
        self._seen.copy_(torch.maximum(self._seen, self.step.buffers.outputs["flags"]))
        self._advance()
        self._fill_inputs()

    def _fill_inputs(self) -> None:
        inputs = self.step.buffers.inputs
        inputs["positions"].copy_(self.fire.positions)
        inputs["cell"].copy_(self.fire.cell)
