"""Settings of the data of a training run."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from torchmdx.datasets.readers import FORMATS
from torchmdx.training.section import Finite, Part, Positive, Section, Seed

FORMAT_NAMES = tuple(FORMATS)


class DataSection(Section):
    """Labelled structures, and their split into training, validation and test frames."""

    path: str | list[str] = Field(
        default="",
        description="a packed store, or files in any supported format, converted to a store in output.directory",
    )
    format: Literal[FORMAT_NAMES] | None = Field(  # type: ignore[valid-type]
        default=None, description=f"format of the files: {', '.join(FORMAT_NAMES)}; null: from name and content"
    )
    energy_unit: str | None = Field(
        default=None, description="unit of energies in files; null: eV, or that of the format"
    )
    length_unit: str | None = Field(
        default=None, description="unit of lengths in files; null: Å, or that of the format"
    )
    force_unit: str | None = Field(default=None, description="unit of forces in files; null: energy_unit / length_unit")
    stress_unit: str | None = Field(
        default=None, description="unit of stress in files, as GPa or kbar; null: energy_unit / length_unit³"
    )
    energy_key: str | None = Field(default=None, description="name of the energy in files, as REF_energy; null: usual")
    forces_key: str | None = Field(default=None, description="name of the forces in files; null: usual names")
    stress_key: str | None = Field(default=None, description="name of the stress in files; null: usual names")
    virial_key: str | None = Field(
        default=None, description="name of the virial in files, from which the stress is computed; null: none is read"
    )
    charge_key: str | None = Field(default=None, description="name of the total charge in files; null: usual names")
    positions_key: str | None = Field(default=None, description="name of the positions in archives and HDF5 files")
    atomic_numbers_key: str | None = Field(
        default=None, description="name of the atomic numbers in archives and HDF5 files"
    )
    cell_key: str | None = Field(default=None, description="name of the cell in archives and HDF5 files")
    broken: Literal["refuse", "skip"] = Field(default="refuse", description="unusable frames: refuse (error) or skip")
    split: str | None = Field(default=None, description="file of a recorded split; null: draw one as set below")
    train: Part | None = Field(
        default=None, description="training frames: a count, or a fraction < 1; null: all others"
    )
    validation: Part = Field(default=0.1, description="validation frames: a count, or a fraction < 1; 0: none")
    test: Part = Field(default=0.1, description="test frames: a count, or a fraction < 1; 0: none")
    split_by: Literal["frame", "formula", "file"] = Field(
        default="frame", description="what the split keeps together: frame, formula or file"
    )
    seed: Seed = Field(default=0, description="random seed of the split")
    references: Literal["fit", "zero"] | dict[int, Finite] = Field(
        default="fit",
        description="reference energies of the elements: fit (least squares), zero, or eV by atomic number {1: -13.6}",
    )
    scale: Literal["forces"] | Positive = Field(
        default="forces",
        description="eV per unit of network output: forces (their root mean square in eV/Å) or a number",
    )

    def reading(self) -> dict[str, Any]:
        """The settings that say how files are read, as arguments of `torchmdx.datasets.convert.convert`."""
        return {
            "format": self.format,
            "energy_unit": self.energy_unit,
            "length_unit": self.length_unit,
            "force_unit": self.force_unit,
            "stress_unit": self.stress_unit,
            "keys": {
                "energy": self.energy_key,
                "forces": self.forces_key,
                "stress": self.stress_key,
                "virial": self.virial_key,
                "charge": self.charge_key,
                "positions": self.positions_key,
                "atomic_numbers": self.atomic_numbers_key,
                "cell": self.cell_key,
            },
            "broken": self.broken,
        }

    def given_reading(self) -> list[str]:
        """Names of the settings that apply to files and were given; `broken` has no effect on stores either way."""
        reading = self.reading()
        given = [name for name, value in reading.items() if value is not None and name not in ("keys", "broken")]
        return [*given, *(f"{name}_key" for name, value in reading["keys"].items() if value is not None)]
