"""How files of labelled structures are read: format, units, names of quantities, and what happens to broken frames."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from torchmdx.datasets.blocks import Keys
from torchmdx.datasets.readers import format_named, format_of
from torchmdx.datasets.store import Store
from torchmdx.datasets.units import Units

STORE = "store"
USUAL = Keys()


@dataclass(frozen=True, kw_only=True)
class ReadingOptions:
    """format: one of `readers.FORMATS`; None: detected. Units: None is that of the format, or derived from others.

    Attributes:
        broken: Refuse or skip. Stores among the files are recognized; format, units and names do not apply to them.
    """

    format: str | None = None
    energy_unit: str | None = None
    length_unit: str | None = None
    force_unit: str | None = None
    stress_unit: str | None = None
    dipole_unit: str | None = None
    keys: Keys = USUAL
    broken: str = "refuse"

    def __post_init__(self) -> None:
        if self.broken not in ("refuse", "skip"):
            raise ValueError(f"broken must be refuse or skip, got {self.broken!r}")
        if self.keys.virial is not None and self.stress_unit is not None:
            raise ValueError(
                f"a virial is in the energy unit: the stress unit must not be given, got {self.stress_unit!r}"
            )

    def formats(self, files: Sequence[str | Path]) -> list[str]:
        """The format of each file, or store. Raises FileNotFoundError; ValueError if nothing of this can be applied."""
        found = [STORE if Store.is_store(file) else self.format or format_of(Path(file)) for file in files]
        for name in found:
            self.units(name)
        for file in files:
            if not Path(file).exists():
                raise FileNotFoundError(f"no data at {str(file)!r}")
        if all(name == STORE for name in found) and (self != ReadingOptions(broken=self.broken)):
            raise ValueError("names, units and format apply to files, but all data are stores, in eV and Å")
        return found

    def units(self, format: str) -> Units:
        """The units of files of a format. Raises ValueError for unknown ones."""
        if format == STORE:
            return Units()
        usual = format_named(format)
        return Units(
            self.energy_unit or usual.energy_unit,
            self.length_unit or usual.length_unit,
            self.force_unit,
            self.stress_unit,
            self.dipole_unit,
        )

    def plain(self) -> dict[str, Any]:
        """The settings as JSON values."""
        return asdict(self)
