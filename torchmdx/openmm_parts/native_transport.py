"""The transport without Python in the step: sessions of the C++ plugin over captured steps."""

from __future__ import annotations

import itertools
import json
import weakref

import numpy as np
import openmm
import torch
from numpy.typing import NDArray

from torchmdx.openmm_parts.evaluator import Evaluator
from torchmdx.openmm_parts.settings import ForceSettings
from torchmdx.openmm_plugin import native
from torchmdx.openmm_plugin.native import Handles
from torchmdx.openmm_plugin.one_context import share_context
from torchmdx.step import CapturedStep
from torchmdx.step_result import GraphRefused

# Evaluators of potentials in memory, for copies of a System within this process.
_in_memory: weakref.WeakValueDictionary[int, Evaluator] = weakref.WeakValueDictionary()
_numbers = itertools.count(1)


class GraphSession:
    """A step of its own for one Context."""

    def __init__(self, evaluator: Evaluator, device: int | None) -> None:
        self.evaluator, self.device = evaluator, device
        self.num_atoms = len(evaluator.settings.numbers)
        self.step: CapturedStep | None = None

    def start(self, positions: NDArray[np.float64], cell: NDArray[np.float64] | None) -> Handles:
        """Captures. Raises GraphRefused where that cannot be done, ValueError for another GPU than the potential's."""
        own = self.evaluator.potential.device
        if own.type != "cuda" or (own.index or 0) != self.device:
            raise ValueError(
                f"transport 'native' needs the potential on the GPU of the Context, cuda:{self.device}, got {own}: "
                f"give device='cuda:{self.device}', or DeviceIndex to the Context"
            )
        with torch.cuda.device(own):
            self.step = step = self.evaluator.make_step(positions, cell)
            self.evaluator.sessions.append(weakref.ref(step))
            self._redo(step)
            if "device" not in step.policy.graphs:
                step.capture("device")
            if "device" not in step.policy.graphs:
                raise GraphRefused(f"transport 'native' needs a CUDA graph, which was refused: {step.why}")
            step.capture_energy()
            torch.cuda.synchronize(own)
            return self._handles(step)

    @staticmethod
    def _redo(step: CapturedStep) -> None:
        """Evaluates what is in the device buffers; mends, or raises, what the flags say."""
        inputs = step.buffers.inputs
        step(inputs["positions"], inputs["cell"], copy=False)

    def recover(self, energy_only: bool) -> Handles:
        step = self.step
        assert step is not None
        with torch.cuda.device(step.device):
            self._redo(step)
            if not step.policy.graphs:
                raise GraphRefused(f"transport 'native' cannot go on without a CUDA graph: {step.why}; use 'python'")
            torch.cuda.synchronize(step.device)
            return self._handles(step)

    @staticmethod
    def _handles(step: CapturedStep) -> Handles:
        graphs, buffers = step.policy.graphs, step.buffers
        energy = graphs.get("energy")
        return Handles(
            graph=graphs["device"].graph.raw_cuda_graph_exec(),
            energy_graph=0 if energy is None else energy.graph.raw_cuda_graph_exec(),
            positions=buffers.inputs["positions"].data_ptr(),
            cell=buffers.inputs["cell"].data_ptr(),
            forces=buffers.outputs["forces"].data_ptr(),
            device_flags=buffers.outputs["flags"].data_ptr(),
            host_energy=buffers.host_outputs["energy"].data_ptr(),
            host_flags=buffers.host_outputs["flags"].data_ptr(),
        )

    def evaluate(
        self, positions: NDArray[np.float64], cell: NDArray[np.float64] | None
    ) -> tuple[float, NDArray[np.float64]]:
        return self.evaluator.evaluate(positions, cell)

    def close(self) -> None:
        self.step = None


class StepProvider:
    """Opens a session for each Context of a force."""

    def __init__(self, evaluator: Evaluator) -> None:
        self.evaluator = evaluator

    def open(self, device: int | None) -> GraphSession:
        return GraphSession(self.evaluator, device)


def why_not_native(settings: ForceSettings, asked: bool) -> str | None:
    """None if the plugin can serve; else why not. asked: for it by name, so that platforms of the CPU count as well."""
    if settings.device.startswith("cuda"):
        reason = native.unavailable(cuda=True)
        if reason is None:
            reason = share_context()
        if reason is None and settings.mode == "eager":
            reason = "mode 'eager' was asked for, and it replays CUDA graphs"
        if reason is None and settings.audit_every:
            reason = "audits need Python at every evaluation"
        return reason
    if not asked:
        return f"the potential is on the {settings.device}, where the C++ force would call Python as well"
    return native.unavailable(cuda=False)


def make_native_force(evaluator: Evaluator, system: openmm.System) -> openmm.Force:
    """Adds the force of the plugin."""
    settings = evaluator.settings
    reference = {"settings": settings.to_text(), "in_memory": 0}
    if settings.checkpoint is None:
        number = next(_numbers)
        _in_memory[number] = evaluator
        reference["in_memory"] = number
    native.restore_with(_restore)
    return native.add_force(
        system,
        StepProvider(evaluator),
        atoms=settings.atoms,
        periodic=settings.periodic,
        scale_parameter=settings.scale_parameter,
        reference=json.dumps(reference),
        cuda=settings.device.startswith("cuda"),
    )


def _restore(text: str) -> StepProvider:
    """The provider of a saved force. Raises ValueError or FileNotFoundError."""
    reference = json.loads(text)
    settings = ForceSettings.from_text(reference["settings"])
    if settings.checkpoint is not None:
        return StepProvider(Evaluator(settings, settings.load_potential()))
    evaluator = _in_memory.get(reference["in_memory"])
    if evaluator is None or evaluator.settings != settings:
        raise ValueError(
            "the potential of this force was given in memory, not as a checkpoint file: it can be restored only in the "
            "process that made it"
        )
    return StepProvider(evaluator)
