"""`torchmdx.relax`: many structures to their energy minima, in batches on one device."""

from __future__ import annotations

import logging
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import torch

from torchmdx.checkpoints.prepare import DTYPES, PotentialSource, chosen_head, dtype_named, prepare_potential
from torchmdx.dynamics.relaxation.batches import RelaxationBatches
from torchmdx.dynamics.relaxation.cell_space import CellSpace
from torchmdx.dynamics.relaxation.endings import failed
from torchmdx.dynamics.relaxation.fire import FireSettings
from torchmdx.dynamics.relaxation.tasks import RelaxationTask, Relaxed, groups_of, task_of
from torchmdx.models.ensemble import Ensemble
from torchmdx.models.potential import Potential
from torchmdx.runtime.devices import choose_device
from torchmdx.runtime.isolation import isolated
from torchmdx.runtime.wording import counted
from torchmdx.step.capture_policy import require_mode
from torchmdx.structures.units import GPA

if TYPE_CHECKING:
    from ase import Atoms

log = logging.getLogger(__name__)

SHARP = 1e-3  # eV/Å: forces in float32 are not accurate enough below


@isolated
def relax(
    structures: Atoms | Iterable[Atoms],
    potential: PotentialSource = None,
    *,
    fmax: float = 0.01,
    steps: int = 500,
    cell: bool = False,
    pressure: float = 0.0,
    cell_mask: Sequence[bool] | None = None,
    hydrostatic_strain: bool = False,
    constant_volume: bool = False,
    fixed_vectors: str = "",
    optimizer: str = "lbfgs",
    charge: float | None = None,
    dtype: str | None = None,
    device: torch.device | str | None = None,
    mode: str = "auto",
    batch_atoms: int | None = None,
    coulomb_cutoff: float | None = None,
    coulomb: str | None = None,
    coulomb_accuracy: float | None = None,
    head: str | None = None,
) -> list[Relaxed]:
    """Relaxes structures, or one, in batches; returns a `Relaxed` for each, in their order, in a list.

    Example::

        for found in torchmdx.relax(many, "model.safetensors"):
            print(found.atoms.get_potential_energy() if found.converged else found.reason)

    Each structure moves as if it were alone. One that has converged or failed leaves its batch, and another enters;
    the batch keeps its shape and its CUDA graph. A failure (reason: not finite, too far, out of steps, unknown element)
    does not affect the others. FixAtoms and FixCartesian are kept; other constraints are a failure.

    Args:
        potential, charge: As for `Calculator`.
        fmax: Converged if all forces are below, eV/Å, and with moving cells the derivative of the enthalpy with respect
            to strain, divided by the number of atoms, eV.
        steps: At most, of each.
        optimizer: "lbfgs", which hands structures in trouble to FIRE for some steps, or "fire".
        cell: Relax cells too. A lattice vector along a direction that is not periodic stays as it is.
        cell_mask: Strains that are free, xx, yy, zz, yz, xz, xy; hydrostatic_strain, constant_volume: as for ASE's
            FrechetCellFilter; fixed_vectors: such as "c".
        pressure: External, GPa.
        dtype: As for `Calculator`; None takes float32, float64 for an fmax below 0.001 eV/Å.
        device, mode: As for `Calculator`.
        batch_atoms: Atoms in a batch; None chooses by device and memory.
        coulomb_cutoff, coulomb, coulomb_accuracy, head: As for `Calculator`.
    """
    from ase import Atoms

    space = CellSpace(
        mask=None if cell_mask is None else tuple(cell_mask),
        hydrostatic=hydrostatic_strain,
        constant_volume=constant_volume,
        fixed_vectors=fixed_vectors,
    )
    found = relax_each(
        [structures] if isinstance(structures, Atoms) else structures,
        chosen_head(potential, head),
        FireSettings(fmax=fmax, steps=steps, cell=cell, pressure=pressure * GPA, optimizer=optimizer, space=space),
        charge=charge,
        dtype=dtype,
        device=device,
        mode=mode,
        batch_atoms=batch_atoms,
        coulomb_cutoff=coulomb_cutoff,
        coulomb=coulomb,
        coulomb_accuracy=coulomb_accuracy,
    )
    return sorted(found, key=lambda one: one.index)


def relax_each(
    structures: Iterable[Atoms],
    potential: PotentialSource,
    settings: FireSettings,
    *,
    charge: float | None = None,
    dtype: str | None = None,
    device: torch.device | str | None = None,
    mode: str = "auto",
    batch_atoms: int | None = None,
    coulomb_cutoff: float | None = None,
    coulomb: str | None = None,
    coulomb_accuracy: float | None = None,
    stop: Callable[[], bool] = lambda: False,
    report: Callable[[str], None] = log.info,
) -> Iterator[Relaxed]:
    """As `relax`, but yields each structure as soon as it has ended.

    Args:
        stop: Asked between two steps; once True, nothing more is yielded.
        report: Takes lines on batches and memory. Raises as `relax`, before the first.
    """
    dtype = dtype_named(dtype or default_dtype(settings.fmax))
    if batch_atoms is not None and batch_atoms < 1:
        raise ValueError(f"batch_atoms must be >= 1, got {batch_atoms}")
    target = choose_device(device)
    require_mode(mode, target)
    model = prepare_potential(potential, DTYPES[dtype], target, coulomb_cutoff, coulomb, coulomb_accuracy)
    return _run(list(structures), model, settings, charge, dtype, mode, batch_atoms, stop, report)


def default_dtype(fmax: float) -> str:
    """For forces that must be below fmax, eV/Å."""
    return "float64" if fmax < SHARP else "float32"


def _run(
    structures: list[Atoms],
    model: Potential | Ensemble,
    settings: FireSettings,
    charge: float | None,
    dtype: str,
    mode: str,
    batch_atoms: int | None,
    stop: Callable[[], bool],
    report: Callable[[str], None],
) -> Iterator[Relaxed]:
    tasks: list[RelaxationTask] = []
    for index, atoms in enumerate(structures):
        try:
            tasks.append(task_of(index, atoms, model, settings, charge))
        except (ValueError, TypeError) as error:
            yield failed(index, atoms, str(error))
    _warn_of_doubts(model, tasks)
    for group in groups_of(tasks):
        yield from RelaxationBatches(
            model, group, settings, precision=dtype, mode=mode, batch_atoms=batch_atoms, stop=stop, report=report
        ).run()


def _warn_of_doubts(model: Potential | Ensemble, tasks: list[RelaxationTask]) -> None:
    """Warns once of each kind of structure that the potential was not made for, with the number of structures."""
    kinds: Counter[tuple[int, float, bool]] = Counter()
    numbers: dict[tuple[int, float, bool], list[int]] = {}
    for task in tasks:
        system = task.system
        key = (int(system.atomic_numbers.sum()) % 2, system.charge, bool(system.pbc.any()))
        kinds[key] += 1
        numbers.setdefault(key, system.atomic_numbers.tolist())
    found: dict[str, int] = {}
    for key, count in kinds.items():
        for doubt in model.doubts(numbers[key], key[1], key[2]):
            found[doubt] = found.get(doubt, 0) + count
    for doubt, count in found.items():
        warnings.warn(f"{counted(count, 'structure')} of {len(tasks)}: {doubt}", stacklevel=4)  # who called `relax`
