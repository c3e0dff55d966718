"""The transport of openmm-torch: a TorchForce around a custom operator; positions stay on the device."""

from __future__ import annotations

import functools
import secrets
import warnings
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openmm
import torch
from torch import Tensor

from torchmdx.openmm.evaluator import ForceEvaluator
from torchmdx.openmm.link_atoms import LinkAtoms
from torchmdx.openmm.transport_python import TO_ENERGY, TO_FORCE
from torchmdx.step.captured_step import CapturedStep
from torchmdx.structures.units import NANOMETER

# Keys are random numbers, so that a key from another process is not found.
_served: dict[int, TensorEvaluator] = {}


class TensorEvaluator:
    """Evaluates positions given as tensors, for one force; lives as long as the process."""

    def __init__(self, evaluator: ForceEvaluator) -> None:
        self.evaluator, settings = evaluator, evaluator.settings
        device = evaluator.potential.device
        self.periodic = settings.periodic
        self.index = None if settings.particles is None else torch.tensor(settings.particles, device=device)
        self.links = LinkAtoms(settings.link_atoms, settings.atoms or (), device) if settings.link_atoms else None
        self.step: CapturedStep | None = None
        # Inside an operator autograd is disabled for the thread, but audits of a capture need it for the exact model.
        # Evaluations therefore run in a thread of their own, for one Context at a time.
        self._worker = ThreadPoolExecutor(max_workers=1)

    def __call__(self, positions: Tensor, box: Tensor) -> tuple[Tensor, Tensor]:
        """Energy (kJ/mol) and forces [N,3] (kJ/mol/nm) of all particles at positions [N,3] and box [3,3] (nm).

        The energy has dtype float64, the forces have that of the positions: openmm-torch would release a converted copy
        before it reads it.
        """
        return self._worker.submit(self._evaluate, positions, box).result()

    def _evaluate(self, positions: Tensor, box: Tensor) -> tuple[Tensor, Tensor]:
        own = self.evaluator.potential.device
        chosen = positions.detach().to(own, torch.float64) * NANOMETER
        if self.index is not None:
            chosen = chosen[self.index]
        cell = box.detach().to(own, torch.float64) * NANOMETER if self.periodic else None
        placed = None if self.links is None else self.links.place(chosen, cell)
        chosen = chosen if placed is None else placed.positions
        if self.step is None:
            first_cell = None if cell is None else cell.cpu().numpy()
            self.step = self.evaluator.make_step(chosen.cpu().numpy(), first_cell)
            self.evaluator.keep_track(self.step)
        result = self.evaluator.run(self.step, chosen, cell, copy=True)
        energy, forces = torch.as_tensor(result.energy)[0], torch.as_tensor(result.forces)
        if self.links is not None and placed is not None:
            forces = self.links.distribute(forces, placed)
        if self.index is not None:
            forces = torch.zeros_like(positions, dtype=forces.dtype, device=forces.device).index_copy(
                0, self.index, forces
            )
        shifted = (energy.to(torch.float64) - self.evaluator.settings.energy_offset) * TO_ENERGY
        return shifted.to(positions.device, torch.float64), (forces * TO_FORCE).to(positions)


@torch.library.custom_op("torchmdx::openmm_evaluate", mutates_args=())
def _evaluate(positions: Tensor, box: Tensor, number: int) -> tuple[Tensor, Tensor]:
    if number not in _served:
        raise ValueError("a TorchForce works only in the process that created it: add the potential again")
    return _served[number](positions, box)


class _Numbered(torch.nn.Module):
    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number


class _Plain(_Numbered):
    def forward(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        energy, forces = torch.ops.torchmdx.openmm_evaluate(positions, positions[:0], self.number)
        return energy, forces


class _ScaledForce(_Numbered):
    def forward(self, positions: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
        energy, forces = torch.ops.torchmdx.openmm_evaluate(positions, positions[:0], self.number)
        return energy * scale.to(energy), forces * scale.to(forces)


class _Periodic(_Numbered):
    def forward(self, positions: Tensor, boxvectors: Tensor) -> tuple[Tensor, Tensor]:
        energy, forces = torch.ops.torchmdx.openmm_evaluate(positions, boxvectors, self.number)
        return energy, forces


class _PeriodicScaled(_Numbered):
    def forward(self, positions: Tensor, boxvectors: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
        energy, forces = torch.ops.torchmdx.openmm_evaluate(positions, boxvectors, self.number)
        return energy * scale.to(energy), forces * scale.to(forces)


_MODULES: dict[tuple[bool, bool], type[_Numbered]] = {
    (False, False): _Plain,
    (False, True): _ScaledForce,
    (True, False): _Periodic,
    (True, True): _PeriodicScaled,
}


def _scripted(module: torch.nn.Module) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # openmm-torch accepts only TorchScript
        return torch.jit.script(module)


def _torch_force(module: Any) -> Any:
    """A TorchForce that uses the forces of a module.

    The constructor saves the module with torch.jit.save, which warns. A warning turned into an error would pass through
    C++ and abort the process.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        import openmmtorch

        force = openmmtorch.TorchForce(module)
    force.setOutputsForces(True)
    return force


@functools.cache
def why_not_torch(cuda: bool) -> str | None:
    """None if openmm-torch works with this version of torch, tested with a TorchForce on one particle; else why not.

    Args:
        cuda: On OpenMM's CUDA platform, which has its own implementation; else on the Reference platform.
    """
    try:
        system = openmm.System()
        system.addParticle(1.0)
        system.addForce(_torch_force(_scripted(_Probe())))
        platform = openmm.Platform.getPlatformByName("CUDA" if cuda else "Reference")
        context = openmm.Context(system, openmm.VerletIntegrator(0.001), platform)
        context.setPositions([openmm.Vec3(1, 2, 3)])
        context.getState(energy=True, forces=True)
    except ImportError as error:
        return f"openmm-torch cannot be imported: {error}"
    except Exception as error:  # errors of many types, if it was built for another torch
        return f"openmm-torch does not work with torch {torch.__version__}: {str(error).splitlines()[0]}"
    return None


class _Probe(torch.nn.Module):
    def forward(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        return positions.sum(), -torch.ones_like(positions)


def module_of(evaluator: ForceEvaluator) -> Any:
    """The module that a TorchForce calls with positions [N,3] nm, the box [3,3] nm if periodic, and any scale."""
    settings, number = evaluator.settings, secrets.randbits(62)
    _served[number] = TensorEvaluator(evaluator)
    return _scripted(_MODULES[settings.periodic, settings.scale_parameter is not None](number))


def served_by(force: Any) -> ForceEvaluator | None:
    """The evaluator of a TorchForce that was made in this process; None for others."""
    module = force.getModule() if hasattr(force, "getModule") else None
    served = _served.get(getattr(module, "number", 0))
    return None if served is None else served.evaluator


def make_torch_force(evaluator: ForceEvaluator, system: openmm.System) -> openmm.Force:
    """Adds a TorchForce. It cannot be restored in another process, because the operator's state is in this one.

    Raises:
        ValueError: For a non-periodic potential in a periodic system: openmm-torch passes positions wrapped into the
            box, atom by atom if they are not bonded.
    """
    settings = evaluator.settings
    if settings.surroundings is not None:
        raise ValueError("transport 'torch' has no electrostatic embedding: use transport 'python'")
    if not settings.periodic and system.usesPeriodicBoundaryConditions():
        raise ValueError(
            "transport 'torch' needs periodic=True in a periodic system, because openmm-torch gives positions wrapped "
            "into the box; use transport 'native' or 'python' for periodic=False"
        )
    force = _torch_force(module_of(evaluator))
    force.setUsesPeriodicBoundaryConditions(settings.periodic)
    if settings.scale_parameter is not None:
        force.addGlobalParameter(settings.scale_parameter, 1.0)
    return system.getForce(system.addForce(force))
