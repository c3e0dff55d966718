"""The driver of i-PI's `ffdirect`: evaluates all beads of a request in one captured step, inside of i-PI's process.

::

    <ffdirect name='torchmdx' pbc='False'>
      <pes>custom</pes> <pes_path>pes_torchmdx.py</pes_path> <batch_size>32</batch_size>
      <parameters>{template: ethanol.xyz, model: organic-1}</parameters>
    </ffdirect>

The file pes_torchmdx.py has two lines: ``from torchmdx.ipi import TorchmdxDriver`` and
``__DRIVER_CLASS__ = "TorchmdxDriver"``.
"""

from __future__ import annotations

import difflib
from typing import Any

from ipi.pes.dummy import Dummy_driver

from torchmdx.ipi.awaiting import launch_when_awaited
from torchmdx.ipi.beads import Beads, Numbers, load_beads
from torchmdx.ipi.species import check_species, require_species
from torchmdx.structures.files import read_record

__DRIVER_NAME__ = "torchmdx"
__DRIVER_CLASS__ = "TorchmdxDriver"

PARAMETERS = (
    *("template", "model", "device", "dtype", "charge", "index"),
    *("coulomb", "coulomb_cutoff", "coulomb_accuracy"),
)
GIVEN_BY_IPI = ("verbose", "verbosity")

Answer = tuple[float, Numbers, Numbers, str]


class TorchmdxDriver(Dummy_driver):
    """Evaluates one structure or a list of them for i-PI, with virials.

    Args:
        template: File with the elements, the order of atoms and the periodic directions of the structure.
        model: As for `torchmdx.load`.
        device: "cpu", "cuda" or "cuda:1".
        dtype: As for Calculator.
        charge: In e, instead of the file's.
        index: Of the structure in the file, as in ASE. i-PI's `<parameters>` has them as text.
        coulomb, coulomb_cutoff, coulomb_accuracy: As for `torchmdx.load`.

    Raises:
        ValueError: For parameters that are unknown or bad.
        TypeError: For parameters that are unknown or bad.
    """

    def __init__(
        self,
        template: str = "",
        model: str | None = None,
        device: str | None = None,
        dtype: str = "float32",
        charge: str | float | None = None,
        index: str | int = "-1",
        coulomb: str | None = None,
        coulomb_cutoff: str | float | None = None,
        coulomb_accuracy: str | float | None = None,
        **others: Any,
    ) -> None:
        _require_known(others)
        if not template:
            raise ValueError("template must be the file of a structure with the elements of all atoms, got none")
        record = read_record(template, str(index), _number("charge", charge))
        self._elements = record.atoms.numbers.tolist()
        self.beads: Beads = load_beads(
            model,
            record.atoms,
            dtype=dtype,
            device=device,
            charge=record.charge,
            coulomb=coulomb,
            coulomb_cutoff=_number("coulomb_cutoff", coulomb_cutoff),
            coulomb_accuracy=_number("coulomb_accuracy", coulomb_accuracy),
        )
        super().__init__(verbose=others.get("verbose", False))

    def compute_structure(self, cell: Numbers, pos: Numbers) -> Answer:
        """Energy, forces, virial and an empty text of one structure."""
        return self._answers([cell], [pos])[0]

    def compute(self, cell: Any, pos: Any) -> Any:
        """As `compute_structure`; for lists of cells and positions the list of results."""
        return self._answers(cell, pos) if isinstance(cell, list) else self.compute_structure(cell, pos)

    def require_names(self, names: list[str]) -> None:
        """Raises ValueError if i-PI's names of atoms are other elements than the template's."""
        require_species(names, self._elements)

    def _answers(self, cells: list[Numbers], positions: list[Numbers]) -> list[Answer]:
        try:
            energies, forces, virials = self.beads(positions, cells, columns=True)
        except ValueError:
            self._require_atoms(positions)
            raise
        return list(zip(energies.tolist(), forces, virials, [""] * len(forces), strict=True))

    def _require_atoms(self, positions: list[Numbers]) -> None:
        for place in positions:
            if place.shape != (self.beads.num_atoms, 3):
                raise ValueError(
                    f"i-PI's structure must have the {self.beads.num_atoms} atoms of the template, "
                    f"got {place.size // 3}"
                )


def _require_known(others: dict[str, Any]) -> None:
    for name in others:
        if name not in GIVEN_BY_IPI:
            near = difflib.get_close_matches(name, PARAMETERS, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise TypeError(f"parameters must be of {', '.join(PARAMETERS)}, got {name!r}{hint}")


def _number(name: str, value: str | float | None) -> float | None:
    try:
        return None if value is None else float(value)
    except ValueError:
        raise ValueError(f"{name} must be a number, got {value!r}") from None


launch_when_awaited(TorchmdxDriver)
check_species(TorchmdxDriver)
