"""The transport without Python at each step: sessions of the C++ plugin, which replays captured steps."""

from __future__ import annotations

import numpy as np
import openmm
import torch
from numpy.typing import NDArray
from torch import Tensor

from torchmdx.openmm.embedded_region import EmbeddedStep
from torchmdx.openmm.evaluator import ForceEvaluator
from torchmdx.openmm.link_atoms import LinkAtoms
from torchmdx.openmm.native import native
from torchmdx.openmm.native.one_context import share_context, share_or_warn
from torchmdx.openmm.native.provider import Handles
from torchmdx.openmm.native_audit import BackgroundAudit
from torchmdx.openmm.references import evaluator_of, reference_to
from torchmdx.openmm.settings import ForceSettings
from torchmdx.runtime.c_arrays import address
from torchmdx.step.captured_step import CapturedStep
from torchmdx.step.results import AuditError, GraphRefused, SpreadError
from torchmdx.structures.units import KJ_PER_MOL

# Raised for a structure that cannot be evaluated, unlike lack of memory or an interruption: the step remains usable.
_OF_STRUCTURES = (ArithmeticError, SpreadError, ValueError)


class GraphSession:
    """The step of one Context."""

    def __init__(self, evaluator: ForceEvaluator, device: int | None) -> None:
        self.evaluator, self.device = evaluator.on_gpu(device), device
        particles = evaluator.settings.particles
        self.num_atoms = evaluator.settings.num_particles if particles is None else len(particles)
        self.step: CapturedStep | None = None
        self.audits: BackgroundAudit | None = None
        self._links = self._links_on(device)

    def start(self, positions: NDArray[np.float64], cell: NDArray[np.float64] | None) -> Handles:
        """Captures.

        After a failed recovery: continues with the step if it is usable, else with a new one.

        Raises:
            GraphRefused: If that fails.
            ValueError: If the Context is not on the potential's GPU.
        """
        own = self.evaluator.potential.device
        if own.type != "cuda" or own.index != self.device:
            raise ValueError(
                f"transport 'native' needs the potential on the GPU of the Context, cuda:{self.device}, got {own}: "
                f"give device='cuda:{self.device}', or DeviceIndex to the Context"
            )
        self.evaluator.require_together(positions)
        if self.evaluator.links is not None:
            box = None if cell is None else torch.from_numpy(cell)
            positions = self.evaluator.links.place(torch.from_numpy(positions), box).positions.numpy()
        with torch.cuda.device(own):
            step = self.step
            if step is None:
                # The step's own audits would count only evaluations from Python, which are few, and would block.
                step = self.evaluator.make_step(positions, cell, mode="graph", audit_every=0)
                self.evaluator.keep_track(step)
                self.step = step
            _shared(step)[0].copy_(torch.from_numpy(positions))
            if cell is not None:
                step.buffers.inputs["cell"].copy_(torch.from_numpy(cell))
            return self._renewed(step)

    def recover(self, energy_only: bool) -> Handles:
        step = self.step
        assert step is not None
        with torch.cuda.device(step.device):
            self.evaluator.require_together(step.buffers.inputs["positions"].cpu().numpy())
            return self._renewed(step)

    def _renewed(self, step: CapturedStep) -> Handles:
        """Evaluates the inputs in the device buffers, with new graphs if needed; drops a step that becomes unusable."""
        try:
            if self.audits is not None:
                self.audits.settle()  # a capture interferes with work on other streams
            inputs = step.buffers.inputs
            self.evaluator.run(step, inputs["positions"], inputs["cell"], copy=False)
            if "device" not in step.policy.graphs:  # after a fallback to the exact model
                raise GraphRefused(
                    f"transport 'native' needs a CUDA graph, which was refused: {step.why}; use 'python'"
                )
            if "energy" not in step.policy.graphs:
                step.capture_energy()
            if self.audits is None and (every := self.evaluator.settings.audit_every):
                self.audits = BackgroundAudit(step, every)
            torch.cuda.current_stream(step.device).synchronize()
            return self._handles(step)
        except (*_OF_STRUCTURES, AuditError):
            raise
        except BaseException:
            self.close()
            raise

    def _handles(self, step: CapturedStep) -> Handles:
        graphs, buffers = step.policy.graphs, step.buffers
        energy, wide, (inner, distances) = graphs.get("energy"), torch.float64, self._links
        positions, forces = _shared(step)

        def on_gpu(name: str, array: Tensor, dtype: torch.dtype) -> int:
            return address(name, array, dtype, device=step.device)

        return Handles(
            graph=graphs["device"].graph.raw_cuda_graph_exec(),
            energy_graph=0 if energy is None else energy.graph.raw_cuda_graph_exec(),
            positions=on_gpu("positions", positions, wide),
            cell=on_gpu("cell", buffers.inputs["cell"], wide),
            forces=on_gpu("forces", forces, wide),
            device_flags=on_gpu("flags", buffers.outputs["flags"], torch.int64),
            host_energy=address("energy", buffers.host_outputs["energy"], wide),
            host_flags=address("flags", buffers.host_outputs["flags"], torch.int64),
            audit_every=0 if self.audits is None else self.audits.every,
            audit_failed=0 if self.audits is None else self.audits.failed.ctypes.data,
            num_links=inner.numel(),
            link_inner=on_gpu("link atoms", inner, torch.int32) if len(inner) else 0,
            link_distances=on_gpu("link distances", distances, wide) if len(inner) else 0,
        )

    def _links_on(self, device: int | None) -> tuple[Tensor, Tensor]:
        """Places of inner atoms (int32) and distances (float64, Å) of link atoms on a GPU; empty without a GPU."""
        settings = self.evaluator.settings
        links = settings.link_atoms if device is not None else ()
        made = LinkAtoms(links, settings.atoms or (), "cpu")
        to = f"cuda:{device}" if links else "cpu"
        return made.inner.to(to, torch.int32), made.distances[:, 0].contiguous().to(to)

    def audit(self, evaluation: int, step: int) -> None:
        assert self.audits is not None
        self.audits.start(evaluation, step)

    def evaluate(
        self, positions: NDArray[np.float64], cell: NDArray[np.float64] | None, *, with_forces: bool = True
    ) -> tuple[float, NDArray[np.float64]]:
        return self.evaluator.evaluate(positions, cell, with_forces=with_forces)

    def close(self) -> None:
        audits, self.step, self.audits = self.audits, None, None
        if audits is not None:
            audits.close()


def _shared(step: CapturedStep) -> tuple[Tensor, Tensor]:
    """Positions and forces of the force's particles in device memory, which C++ writes and reads."""
    if isinstance(step, EmbeddedStep):
        return step.outer.positions, step.outer.forces
    return step.buffers.inputs["positions"], step.buffers.outputs["forces"]


class StepProvider:
    """Opens a session for each Context of a force."""

    def __init__(self, evaluator: ForceEvaluator) -> None:
        self.evaluator = evaluator

    def open(self, device: int | None) -> GraphSession:
        return GraphSession(self.evaluator, device)


def why_not_native(settings: ForceSettings, asked: bool) -> str | None:
    """None if the plugin can be used; else why not. asked: requested by name, which allows the CPU as well."""
    if settings.device.startswith("cuda"):
        reason = native.unavailable(cuda=True)
        if reason is None:
            reason = share_context()
        if reason is None and settings.mode == "eager":
            reason = "mode 'eager' was requested, and it replays CUDA graphs"
        return reason
    if not asked:
        return f"the potential is on the {settings.device}, where the C++ force would call Python as well"
    return native.unavailable(cuda=False)


def make_native_force(evaluator: ForceEvaluator, system: openmm.System) -> openmm.Force:
    """Adds the force of the plugin."""
    settings = evaluator.settings
    load_plugin(cuda=settings.device.startswith("cuda"))
    return native.add_force(
        system,
        StepProvider(evaluator),
        atoms=settings.particles,
        periodic=settings.periodic,
        scale_parameter=settings.scale_parameter,
        energy_offset=settings.energy_offset / KJ_PER_MOL,
        reference=reference_to(evaluator),
        cuda=settings.device.startswith("cuda"),
    )


def _restore(reference: str) -> StepProvider:
    """The provider of a saved force. Raises ValueError or FileNotFoundError."""
    evaluator = evaluator_of(reference)
    if evaluator.settings.device.startswith("cuda"):
        share_or_warn()  # before any Context is created
    return StepProvider(evaluator)


def preload_plugin() -> bool:
    """Loads the plugin if it has been compiled before, so that importing torchmdx.openmm suffices to read XML.

    Returns whether it is loaded. Compiles nothing and does not touch a GPU.
    """
    platforms = {openmm.Platform.getPlatform(index).getName() for index in range(openmm.Platform.getNumPlatforms())}
    if not native.load_cached(cuda="CUDA" in platforms):
        return False
    native.restore_with(_restore)
    return True


def load_plugin(cuda: bool | None = None) -> None:
    """Loads the plugin, so that XmlSerializer can read Systems that were saved with its force.

    Args:
        cuda: Include the CUDA platform; None: if a GPU is available.

    Raises:
        ImportError: If the plugin cannot be used.
    """
    cuda = torch.cuda.is_available() if cuda is None else cuda
    reason = native.unavailable(cuda)
    if reason is not None:
        raise ImportError(f"transport 'native' cannot be used: {reason}")
    native.restore_with(_restore)
