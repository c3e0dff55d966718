"""Settings of the data of a training run."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, model_validator

from torchmdx.datasets.blocks import Keys
from torchmdx.datasets.readers import FORMATS
from torchmdx.datasets.reading import ReadingOptions
from torchmdx.datasets.splits import PARTS
from torchmdx.models.heads import require_head_name
from torchmdx.training.section import Files, Finite, Part, Positive, Section, Seed

FORMAT_NAMES = tuple(FORMATS)
DEFAULT_TEST = 0.1


def files_of(value: object) -> list[str] | None:
    """The names of files in a setting; None for a size."""
    return [value] if isinstance(value, str) else list(value) if isinstance(value, list) else None


class DataSection(Section):
    """Labelled structures, and their split into training, validation and test frames."""

    path: str | list[str] = Field(
        default="",
        description="a packed store, or files in any supported format, converted to a store in output.directory",
    )
    heads: dict[str, Files] = Field(
        default={},
        description="levels of theory, instead of path: {pbe: [pbe.xyz], scan: [scan.xyz]}; each has a head of its own "
        "on the shared network. The first is the default of the checkpoint; sizes of parts are of each",
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
    dipole_unit: str | None = Field(
        default=None, description="unit of dipole moments in files: e*angstrom, e*bohr or debye; null: e * length_unit"
    )
    energy_key: str | None = Field(default=None, description="name of the energy in files, as REF_energy; null: usual")
    forces_key: str | None = Field(default=None, description="name of the forces in files; null: usual names")
    stress_key: str | None = Field(default=None, description="name of the stress in files; null: usual names")
    virial_key: str | None = Field(
        default=None, description="name of the virial in files, from which the stress is computed; null: none is read"
    )
    charge_key: str | None = Field(default=None, description="name of the total charge in files; null: usual names")
    charges_key: str | None = Field(
        default=None, description="name of the partial charges of atoms in files; null: usual names"
    )
    dipole_key: str | None = Field(default=None, description="name of the dipole moment in files; null: usual names")
    positions_key: str | None = Field(default=None, description="name of the positions in archives and HDF5 files")
    atomic_numbers_key: str | None = Field(
        default=None, description="name of the atomic numbers in archives and HDF5 files"
    )
    cell_key: str | None = Field(default=None, description="name of the cell in archives and HDF5 files")
    broken: Literal["refuse", "skip"] = Field(default="refuse", description="unusable frames: refuse (error) or skip")
    split: str | None = Field(default=None, description="file of a recorded split; null: draw one as set below")
    train: Part | Files | None = Field(
        default=None, description="training frames: a count, a fraction < 1, or files instead of path; null: all others"
    )
    validation: Part | Files = Field(
        default=0.1, description="validation frames: a count, a fraction < 1, or files; 0: none"
    )
    test: Part | Files | None = Field(
        default=None,
        description="test frames: a count, a fraction < 1, or files; null: 0.1, or none if train names files",
    )
    split_by: Literal["frame", "formula", "file"] = Field(
        default="frame", description="what the split keeps together: frame, formula or file"
    )
    seed: Seed = Field(default=0, description="random seed of the split")
    references: Literal["auto", "fit", "isolated", "zero"] | dict[int, Finite] = Field(
        default="auto",
        description="reference energies of elements: auto (isolated atoms of the data plus a fitted constant per "
        "element), fit (least squares), isolated (isolated atoms, fit for others), zero, or eV by atomic number "
        "{1: -13.6}",
    )
    checks: Literal["refuse", "warn", "off"] = Field(
        default="refuse",
        description="checks of labels and copies at the start: refuse (an error for extreme findings), warn, or off",
    )
    scale: Literal["forces"] | Positive = Field(
        default="forces",
        description="eV per unit of network output: forces (their root mean square in eV/Å) or a number",
    )

    @model_validator(mode="after")
    def _one_source(self) -> DataSection:
        files = self.part_files()
        for name, named in self.heads.items():
            require_head_name(name)
            if not files_of(named):
                raise ValueError(f"heads must name the files of each head, got none for {name}")
        if self.heads and (self.path not in ("", []) or files):
            raise ValueError(
                "heads need no path, and parts that are drawn (a count or a fraction), got "
                + (f"path {self.path!r}" if self.path else f"files of {next(iter(files))}")
            )
        if "train" in files and self.path not in ("", []):
            raise ValueError(f"path must not be given if train names files, got path {self.path!r}")
        if files and self.split is not None:
            raise ValueError(f"{next(iter(files))} must not name files if split names a recorded split, got both")
        return self

    def part_files(self) -> dict[str, list[str]]:
        """The files of the parts that are given as files."""
        named = {name: files_of(getattr(self, name)) for name in PARTS}
        return {name: files for name, files in named.items() if files is not None}

    def pool_files(self) -> list[str]:
        """The files from which the other parts are drawn: those of path, of all heads, or of train."""
        if self.heads:
            return [file for files in self.heads.values() for file in files_of(files) or []]
        return files_of(self.train) or [name for name in files_of(self.path) or [] if name]

    def sizes(self) -> dict[str, Any]:
        """Sizes of the parts that are drawn, as arguments of `torchmdx.datasets.splits.split`."""
        files = self.part_files()
        test = self.test if self.test is not None else 0.0 if "train" in files else DEFAULT_TEST
        wanted = {"train": self.train, "validation": self.validation, "test": test}
        return {name: (None if name == "train" else 0) if name in files else size for name, size in wanted.items()}

    def reading(self) -> ReadingOptions:
        """How files are read."""
        return ReadingOptions(
            format=self.format,
            energy_unit=self.energy_unit,
            length_unit=self.length_unit,
            force_unit=self.force_unit,
            stress_unit=self.stress_unit,
            dipole_unit=self.dipole_unit,
            keys=Keys(
                energy=self.energy_key,
                forces=self.forces_key,
                stress=self.stress_key,
                virial=self.virial_key,
                charge=self.charge_key,
                positions=self.positions_key,
                atomic_numbers=self.atomic_numbers_key,
                cell=self.cell_key,
                charges=self.charges_key,
                dipole=self.dipole_key,
            ),
            broken=self.broken,
        )

    def given_reading(self) -> list[str]:
        """Names of the settings that apply to files and were given; `broken` has no effect on stores either way."""
        reading = self.reading().plain()
        given = [name for name, value in reading.items() if value is not None and name not in ("keys", "broken")]
        return [*given, *(f"{name}_key" for name, value in reading["keys"].items() if value is not None)]
