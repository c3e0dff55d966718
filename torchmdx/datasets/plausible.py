"""Checks whether numbers are plausible in their declared units."""

from __future__ import annotations

import numpy as np

from torchmdx.datasets.energy_changes import EnergyChanges
from torchmdx.datasets.frames import Frames, Whole
from torchmdx.runtime.wording import number
from torchmdx.structures.units import BAR, GPA, HARTREE

# Nearest distances over the sum of covalent radii: bonds and metals are within 0.8 and 1.3. 1 Å is 1.89 bohr.
CLOSE, FAR = 0.65, 1.5
NOBLE = (2, 10, 18, 36, 54, 86)  # whose atoms may be far apart
# eV/Å, root mean square of a frame: about 1 in organic molecules at 300 K; kcal/mol declared as eV makes it 23.
STRONG, WEAK, RESTING = 10.0, 0.04, 1e-3
# Relative deviation of nearest distances above which forces below WEAK are implausible; thermal motion gives 2 %.
MOVING = 0.012
# Thomas-Fermi energy of a neutral atom, which is too large, by a third for carbon and by half for hydrogen.
THOMAS_FERMI = 0.7687 * HARTREE
TOO_DEEP = 1.5
# eV per atom, stress times volume: up to about 5 in solids at 100 GPa, 0.05 to 1 near equilibrium.
TIGHT, LOOSE = 10.0, 1e-3
MOST = 20000  # frames from which medians are taken


class Plausible:
    """Collects properties of frames in Å and eV, and describes implausible ones."""

    def __init__(self) -> None:
        self._ratio: list[float] = []
        self._distance: list[float] = []
        self._pair: list[tuple[int, int]] = []
        self._force: list[float] = []
        self._energy: list[float] = []
        self._depth: list[float] = []
        self._stress: list[tuple[float, float, int]] = []  # largest component, volume, atoms
        self._changes = EnergyChanges()

    def add(self, frames: Frames, distance: np.ndarray, pair: Whole, file: str = "") -> None:
        """distance [F] and pair [F,2]: as `checks.nearest` gives them. file: where the frames are from."""
        self._changes.add(frames, [file] * len(frames))
        if len(frames) == 0 or max(len(self._distance), len(self._energy), len(self._force)) > MOST:
            return
        from ase.data import covalent_radii

        bonded = np.isfinite(distance) & ~np.isin(pair, NOBLE).any(1)
        self._distance += distance[bonded].tolist()
        self._ratio += (distance / covalent_radii[pair].sum(1))[bonded].tolist()
        self._pair += [(int(a), int(b)) for a, b in np.sort(pair[bonded], 1)]
        starts = frames.offsets[:-1]
        square = np.add.reduceat((frames.forces.astype(np.float64) ** 2).mean(1), starts)
        self._force += np.sqrt((square / frames.counts)[frames.has_forces]).tolist()
        deepest = np.add.reduceat(THOMAS_FERMI * frames.atomic_numbers.astype(np.float64) ** (7 / 3), starts)
        self._energy += np.abs(frames.energy / frames.counts)[frames.has_energy].tolist()
        self._depth += np.abs(frames.energy / deepest)[frames.has_energy].tolist()
        there = frames.has_stress
        largest = np.abs(frames.stress[there].astype(np.float64)).max((1, 2), initial=0.0)
        volumes = np.abs(np.linalg.det(frames.cell[there]))
        self._stress += zip(largest.tolist(), volumes.tolist(), frames.counts[there].tolist(), strict=True)

    def warnings(self) -> list[str]:
        """One sentence for each quantity that is implausible in its declared unit."""
        found = [text for text in (self._lengths(), self._energies(), self._forces(), self._stresses()) if text]
        for one in self._changes.agreements():
            text = one.warning()
            # A factor between energies and forces has the cause that is already named.
            if text and (one.verdict == "against" or not found):
                found.append(text)
        return found

    def _lengths(self) -> str | None:
        if not self._ratio:
            return None
        ratio, distance = float(np.median(self._ratio)), float(np.median(self._distance))
        if CLOSE <= ratio <= FAR:
            return None
        if ratio < CLOSE:
            hint = "nm declared as Å" if ratio < 0.25 else "Å declared as bohr"
        else:
            hint = "Å or bohr declared as nm" if ratio > 4 else "bohr declared as Å"
        return (
            f"atoms are {'close' if ratio < CLOSE else 'far apart'}: the nearest pair of a frame is "
            f"{number(distance)} Å apart, {ratio:.2g} times a bond (medians); lengths may be {hint} (--length-unit)"
        )

    def _energies(self) -> str | None:
        if not self._depth or float(np.median(self._depth)) <= TOO_DEEP:
            return None
        return (
            f"energies are {number(float(np.median(self._energy)))} eV per atom (median), more than all electrons of "
            "these elements have; they may be in kcal/mol, kJ/mol or another unit than was declared (--energy-unit)"
        )

    def _forces(self) -> str | None:
        if not self._force:
            return None
        force = float(np.median(self._force))
        if force > STRONG:
            return (
                f"forces are {number(force)} eV/Å (median of the root mean squares of frames), more than in molecules "
                "and crystals; they may be in kcal/mol/Å, kJ/mol/nm or another unit (--energy-unit, --force-unit)"
            )
        if RESTING < force < WEAK and self._motion() > MOVING:
            return (
                f"forces are {number(force)} eV/Å (median of the root mean squares of frames), too small for "
                "structures that differ this much; they may be in hartree/bohr or another unit (--energy-unit, "
                "--force-unit)"
            )
        return None

    def _stresses(self) -> str | None:
        if not self._stress:
            return None
        stress, volume, atoms = np.array(self._stress).T
        if float(np.median(stress * volume / atoms)) <= TIGHT:
            return None
        ways = {
            "virials, which are energies (--virial-key instead of --stress-key)": stress / atoms,
            "in GPa (--stress-unit)": GPA * stress * volume / atoms,
            "in kbar (--stress-unit)": 1e3 * BAR * stress * volume / atoms,
        }
        likely = [way for way, values in ways.items() if LOOSE <= float(np.median(values)) <= TIGHT]
        hint = "; they may be " + ", or ".join(likely or ["in another unit (--stress-unit)"])
        return (
            f"stresses are {np.median(stress):.3g} eV/Å³ or {np.median(stress) / GPA:.3g} GPa (median of the largest "
            f"components of frames), more than in solids{hint}"
        )

    def _motion(self) -> float:
        """Relative deviation of nearest distances, for the pair of elements that is most often nearest."""
        pairs, index, count = np.unique(self._pair, axis=0, return_inverse=True, return_counts=True)
        if not len(pairs) or count.max() < 10:
            return 0.0
        distances = np.array(self._distance)[index.reshape(-1) == count.argmax()]
        quarter, middle, three = np.percentile(distances, [25, 50, 75])
        return float((three - quarter) / 1.35 / middle)
