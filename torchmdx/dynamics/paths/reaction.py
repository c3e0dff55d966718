"""ReactionPath: the images of a path with their energies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from ase import Atoms

NOISE = 1e-3  # eV, between images at a minimum and its neighbours


@dataclass(frozen=True, eq=False)
class ReactionPath:
    """A path of lowest energy from one minimum to another.

    Attributes:
        images: From the first to the last minimum, with energy and forces as results of a calculator.
        reason: Why the path has not converged; None if it has.
        fmax: The largest force of the band on an image, eV/Å.
        saddle: The refined transition state, with energy and forces; None without a refinement.
        curvature: At the refined state, along the unstable mode, eV/Å²; negative at a saddle.
    """

    images: list[Atoms]
    reason: str | None
    num_steps: int
    fmax: float
    saddle: Atoms | None = None
    curvature: float | None = None

    @property
    def converged(self) -> bool:
        return self.reason is None

    @property
    def energies(self) -> NDArray[np.float64]:
        """Of the images, eV."""
        return np.array([image.get_potential_energy() for image in self.images])

    @property
    def lengths(self) -> NDArray[np.float64]:
        """The distance of each image along the path, Å, in the space of all coordinates."""
        positions = np.array([image.positions for image in self.images])
        steps = np.linalg.norm(np.diff(positions, axis=0).reshape(len(positions) - 1, -1), axis=1)
        return np.concatenate([[0.0], np.cumsum(steps)])

    @property
    def highest(self) -> int:
        """The index of the image of highest energy."""
        return int(self.energies.argmax())

    @property
    def intermediates(self) -> list[int]:
        """Indices of images that lie below both neighbours. At these other minima a path has several steps."""
        lower, upper = (self.energies[1:-1] < other - NOISE for other in (self.energies[:-2], self.energies[2:]))
        return [int(k) for k in np.flatnonzero(lower & upper) + 1]

    @property
    def forward(self) -> float:
        """The barrier from the first minimum, eV."""
        return self._top() - float(self.energies[0])

    @property
    def backward(self) -> float:
        """The barrier from the last minimum, eV."""
        return self._top() - float(self.energies[-1])

    def _top(self) -> float:
        return float(self.energies.max() if self.saddle is None else self.saddle.get_potential_energy())

    def curve(self, num_points: int = 200) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Lengths, Å, and energies, eV, of a smooth curve through the images, whose slopes are those of the forces."""
        from scipy.interpolate import CubicHermiteSpline

        lengths, positions = self.lengths, np.array([image.positions for image in self.images])
        tangents = np.gradient(positions, lengths, axis=0)
        norms = np.linalg.norm(tangents.reshape(len(positions), -1), axis=1)
        slopes = [
            -float((image.get_forces() * tangent).sum() / norm)
            for image, tangent, norm in zip(self.images, tangents, norms, strict=True)
        ]
        where = np.linspace(0, lengths[-1], num_points)
        return where, CubicHermiteSpline(lengths, self.energies, slopes)(where)
