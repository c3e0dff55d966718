"""`torchmdx.neb`: the path of lowest energy between two minima, and the barrier along it."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from torchmdx.ase.calculator import Calculator
from torchmdx.checkpoints.prepare import DTYPES, PotentialSource, dtype_named, prepare_potential
from torchmdx.dynamics.paths.reaction import ReactionPath
from torchmdx.models.digest import origin_of
from torchmdx.models.ensemble import Ensemble
from torchmdx.models.potential import Potential
from torchmdx.runtime.devices import choose_device
from torchmdx.runtime.isolation import isolated
from torchmdx.step.capture_policy import require_mode

if TYPE_CHECKING:
    from ase import Atoms

log = logging.getLogger(__name__)

STARTS = ("idpp", "linear")
# The highest image climbs once the forces of the band are below this multiple of fmax, and below CLIMB_BELOW, eV/Å.
CLIMB_FROM, CLIMB_BELOW = 10.0, 0.5
ENDS_STEPS = 1000


@isolated
def neb(
    first: Atoms,
    last: Atoms,
    potential: PotentialSource = None,
    *,
    images: int = 7,
    fmax: float = 0.05,
    steps: int = 500,
    spring: float = 0.1,
    climb: bool = True,
    start: str = "idpp",
    relax_ends: bool = True,
    refine: bool = False,
    charge: float | None = None,
    dtype: str = "float32",
    device: torch.device | str | None = None,
    mode: str = "auto",
    coulomb_cutoff: float | None = None,
    coulomb: str | None = None,
    coulomb_accuracy: float | None = None,
    head: str | None = None,
    stop: Callable[[], bool] = lambda: False,
    report: Callable[[str], None] = log.info,
) -> ReactionPath:
    """The path of lowest energy between two minima, by a nudged elastic band whose images are evaluated as one batch.

    Example::

        path = torchmdx.neb(minima[0], minima[1], "model.safetensors")
        print(path.converged, path.forward, path.backward)

    FIRE moves all images at once, with the improved tangent; the highest climbs once the others are near the path.
    FixAtoms and FixCartesian of the first end are kept. Atoms of periodic structures take their nearest images. Without
    fixed atoms, molecules are superimposed and periodic structures shifted as a whole. The order of the atoms must be
    the same at both ends.

    Args:
        potential, charge, device, mode, coulomb_cutoff, coulomb, coulomb_accuracy, head: As for `Calculator`.
        images: Between the ends.
        fmax: Converged if all forces of the band are below, eV/Å; the ends are relaxed to a fifth of it.
        steps: At most.
        spring: Spring constant between images, eV/Å².
        climb: Move the highest image to the saddle.
        start: "idpp", the image dependent pair potential, or "linear" interpolation.
        relax_ends: Relax both ends first; otherwise they are treated as minima.
        refine: Search the saddle from the highest image by the dimer method, to a tenth of fmax; `reason` of the path
            says if it finds none.
        dtype: As for `Calculator`.
        stop: Asked between two steps.
        report: Takes a line about each of some steps.

    Raises:
        ValueError: For ends that no path connects, and ends that do not relax or are the same minimum.
    """
    from torchmdx.dynamics.paths.ends import fitted, relaxed_ends, require_same_atoms
    from torchmdx.dynamics.relaxation.fire import FireSettings

    _require(images, fmax, steps, spring, start)
    require_same_atoms(first, last, charge)
    name, target = dtype_named(dtype), choose_device(device)
    require_mode(mode, target)
    model = prepare_potential(potential, DTYPES[name], target, coulomb_cutoff, coulomb, coulomb_accuracy, head)
    if relax_ends:
        settings = FireSettings(fmax=fmax / 5, steps=ENDS_STEPS)
        first, last = relaxed_ends(
            first, last, model, settings, charge=charge, dtype=name, device=target, mode=mode, stop=stop, report=report
        )
    last = fitted(first, last)
    how = dict(mode=mode, precision=name)
    path = _path(first, last, images, model, charge, how, start, (fmax, steps, spring, climb), stop, report)
    if refine and path.converged:
        path = _refined(path, model, charge, name, mode, fmax / 10, steps)
    for image in path.images:
        image.info |= origin_of(model).info
    return path


def _require(images: int, fmax: float, steps: int, spring: float, start: str) -> None:
    if images < 1:
        raise ValueError(f"images must be >= 1, got {images}")
    if not 0 < fmax < math.inf:
        raise ValueError(f"fmax must be > 0 eV/Å, got {fmax}")
    if steps < 1:
        raise ValueError(f"steps must be >= 1, got {steps}")
    if not 0 < spring < math.inf:
        raise ValueError(f"spring must be > 0 eV/Å², got {spring}")
    if start not in STARTS:
        raise ValueError(f"start must be one of {', '.join(STARTS)}, got {start!r}")


def _path(
    first: Atoms, last: Atoms, images: int, model: Potential | Ensemble, charge: float | None, how: dict[str, Any],
    start: str, settings: tuple[float, int, float, bool], stop: Callable[[], bool], report: Callable[[str], None],
) -> ReactionPath:  # fmt: skip
    """The converged band, or what it is after the last step."""
    from ase.mep.neb import idpp_interpolate, interpolate

    from torchmdx.dynamics.paths.band import Band, Evaluated

    fmax, steps, spring, climb = settings
    all_images = [first.copy(), *(first.copy() for _ in range(images)), last.copy()]
    Evaluated([first, last], model, charge, **how)([all_images[0], all_images[-1]])
    band = Band(all_images, Evaluated(all_images[1:-1], model, charge, **how), spring)
    interpolate(all_images, mic=False, apply_constraint=False)
    if start == "idpp":
        idpp_interpolate(_plain(band), traj=None, log=None, mic=bool(first.pbc.any()))
    taken, largest = _optimize(band, fmax, steps, climb, stop, report)
    path = ReactionPath(all_images, None, taken, largest)
    if largest >= fmax or band.climb != climb:
        place = f"{taken} steps" + ", before the highest image climbed" * (band.climb != climb)
        return replace(path, reason=f"not converged to {fmax} eV/Å in {place}: largest force {largest:.3g}")
    if path.highest in (0, images + 1):
        return replace(path, reason="no barrier was found: the highest image is an end of the path")
    return path


def _plain(band: Any) -> Any:
    """The images in a band of ASE, whose forces come from the calculators that IDPP sets."""
    from ase.mep import NEB

    return NEB(band.images, k=0.1, method="improvedtangent")


def _optimize(
    band: Any, fmax: float, steps: int, climb: bool, stop: Callable[[], bool], report: Callable[[str], None]
) -> tuple[int, float]:
    """Moves the band; returns the number of steps and the largest force, eV/Å."""
    from ase.optimize import FIRE

    stages = [False, True] if climb else [False]
    taken = 0
    for climbing in stages:
        band.climb = climbing
        enough = fmax if climbing == climb else max(fmax, min(CLIMB_FROM * fmax, CLIMB_BELOW))
        with FIRE(band, logfile=None) as optimizer:
            for _ in optimizer.irun(fmax=enough, steps=steps - taken):
                if optimizer.nsteps % 10 == 0:
                    _tell(report, band, taken + optimizer.nsteps, climbing)
                if stop():
                    break
            taken += optimizer.nsteps
        if stop() or taken >= steps:
            break
    return taken, band.largest_force()


def _tell(report: Callable[[str], None], band: Any, step: int, climbing: bool) -> None:
    top = max(image.get_potential_energy() for image in band.images) - band.images[0].get_potential_energy()
    report(
        f"step {step}: barrier {top:.4f} eV, largest force {band.largest_force():.4f} eV/Å" + ", climbing" * climbing
    )


def _refined(
    path: ReactionPath,
    model: Potential | Ensemble,
    charge: float | None,
    dtype: str,
    mode: str,
    fmax: float,
    steps: int,
) -> ReactionPath:
    from torchmdx.dynamics.paths.saddle import refined

    place = min(max(path.highest, 1), len(path.images) - 2)
    tangent = path.images[place + 1].positions - path.images[place - 1].positions
    calculator = Calculator(model, dtype=dtype, device=model.device, charge=charge, mode=mode)
    try:
        saddle, curvature = refined(path.images[place], tangent, calculator, fmax, steps)
    except ValueError as error:
        return replace(path, reason=f"the path converged, but its refinement failed: {error}")
    return replace(path, saddle=saddle, curvature=curvature)
