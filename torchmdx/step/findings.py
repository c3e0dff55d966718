"""What an audit finds: comparisons with the exact model of what it draws, in words for the report."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from torchmdx.models.ensemble import Ensemble, members_of
from torchmdx.models.potential import Potential
from torchmdx.models.priors.base import Prior
from torchmdx.runtime.wording import counted
from torchmdx.step import drawn
from torchmdx.step.comparison import Comparison, compare_atoms, compare_sums, compare_systems
from torchmdx.step.device_memory import release_frames
from torchmdx.step.environment import NotAffordable
from torchmdx.step.exact import Results, exact_copy, exact_results, local_results, whole_only
from torchmdx.structures.system import Batch

log = logging.getLogger("torchmdx.step.captured_step")

EXACT = "the exact model's"
OF_ATOMS = ("forces", "force_spread", "energies", "energies_uncertainty")
TITLES = {"energy": "energy", "energies": "energies of atoms", "forces": "forces", "stress": "stress"}
# Environments are added until they have this number of atoms in total.
ENOUGH_AROUND = 3000
# Systems and atoms that a report names.
MOST_NAMED = 6


@dataclass
class Findings:
    """Comparisons of the results `found` for a structure, within a tolerance, as far as they have been made.

    Attributes:
        errors: Relative force errors.
        reasons: What is wrong.
        compared, left_out: What was compared with the exact model, and what was not and why.
    """

    potential: Potential | Ensemble
    structure: Batch
    found: Results
    allowed: float
    errors: list[float] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)
    compared: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)

    def compare_sums(self) -> None:
        """Of all systems, without the exact model."""
        priors = (prior for member in members_of(self.potential) for prior in member.priors)
        alone = not any(isinstance(prior, Prior) and prior.acts_from_outside for prior in priors)
        self.reasons += compare_sums(self.found, self.structure, self.allowed, alone=alone)
        summed = [*(["forces"] if alone else []), *(["energies of atoms"] if "energies" in self.found else [])]
        if summed:
            self.compared.append(f"sums of {_listed(summed)} of every system")

    def compare_whole(self, systems: Sequence[int]) -> None:
        """All results of these systems."""
        if not systems:
            return
        part, atoms = drawn.select(self.structure, systems)
        if not part.num_atoms:
            return
        numbers = torch.tensor(systems, device=atoms.device)
        chosen = {name: value[atoms if name in OF_ATOMS else numbers] for name, value in self.found.items()}
        who = f"{counted(part.num_atoms, 'atom')} in {self._systems(systems)}"
        try:
            exact = exact_results(self.potential, part, stress="stress" in self.found)
        except torch.cuda.OutOfMemoryError as error:
            self._without_memory(who, error)
            return
        self._add(compare_systems(chosen, exact, part, self.allowed, EXACT))
        self.compared.append(f"{self._quantities()} of {who}")

    def compare_part(self, system: int, number: int) -> None:
        """Forces and energies of atoms of a system that is too large as a whole; number: as for `draw_centres`."""
        count = int(self.structure.counts()[system])
        who = f"the {counted(count, 'atom')} of system {system}"
        limit = f"the exact model is given at most {drawn.MOST_WHOLE:,} atoms as a whole"
        if (reason := whole_only(self.potential, bool(self.structure.pbc[system].any()))) is not None:
            self.left_out.append(f"{who}: {reason}, and {limit}")
            return
        try:
            self._compare_atoms(who, drawn.draw_centres(self.structure, system, number))
        except NotAffordable as error:
            limit = str(error)
        except torch.cuda.OutOfMemoryError as error:
            self._without_memory(who, error)
            return
        names = [title for name, title in TITLES.items() if name in self.found and name not in OF_ATOMS]
        self.left_out.append(f"{_listed([*names, 'the other atoms'])} of {who}: {limit}")

    def _compare_atoms(self, who: str, centres: Sequence[int]) -> None:
        """Compares the environments of these atoms in turn, until there are enough."""
        exact, done, num_around = exact_copy(self.potential), [], 0
        num_forces = num_energies = 0
        try:
            for centre in centres:
                local = local_results(exact, self.structure, centre)
                chosen = {name: self.found[name][local.atoms] for name in OF_ATOMS if name in self.found}
                self._add(compare_atoms(chosen, local.results, self.allowed, EXACT))
                num_forces, num_energies = num_forces + len(local.results["forces"]), num_energies + len(local.atoms)
                num_around += local.num_around
                done.append(f"{centre:,}")
                if num_around + local.num_around > ENOUGH_AROUND:
                    break
        finally:  # what was compared counts, if another environment is too large
            if done:
                energies = f" and energies of {num_energies:,}" if "energies" in self.found else ""
                forces = f"forces on {num_forces:,}{energies}"
                self.compared.append(f"{forces} of {who}, around {_named('atom', done)}")

    def skip(self, count: int) -> None:
        """Notes the number of systems that were not drawn."""
        if count:
            systems = counted(count, "system")
            self.left_out.append(f"{systems} of {self.structure.num_systems:,}, which this audit did not draw")

    def _add(self, comparison: Comparison) -> None:
        self.errors.append(comparison.error)
        self.reasons += comparison.reasons

    def _without_memory(self, who: str, error: torch.cuda.OutOfMemoryError) -> None:
        release_frames(error)
        self.left_out.append(f"{who}: the GPU has too little memory for the exact model")
        log.warning("an audit could not compare %s", self.left_out[-1])

    def _systems(self, systems: Sequence[int]) -> str:
        if len(systems) == self.structure.num_systems:
            return "the whole structure" if len(systems) == 1 else f"all {len(systems):,} systems"
        return _named("system", [f"{system:,}" for system in systems])

    def _quantities(self) -> str:
        doubts = ["spreads"] * ("force_spread" in self.found) + ["uncertainties"] * ("energy_uncertainty" in self.found)
        return _listed([title for name, title in TITLES.items() if name in self.found] + doubts)


def _listed(words: Sequence[str]) -> str:
    *most, last = words
    return f"{', '.join(most)} and {last}" if most else last


def _named(noun: str, names: Sequence[str]) -> str:
    """A noun with the names of what it stands for, of which only some are given if there are many."""
    if len(names) > MOST_NAMED:
        return f"{len(names):,} {noun}s ({', '.join(names[:MOST_NAMED])}, ...)"
    return f"{noun}s {_listed(names)}" if len(names) > 1 else f"{noun} {names[0]}"
