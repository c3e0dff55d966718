"""Settings of `torchmdx learn` up to the selection of frames: start, explore, uncertainty and select."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from torchmdx.dynamics.restraints import restraint_of
from torchmdx.training.data_section import files_of
from torchmdx.training.section import Count, Files, Finite, NotNegative, Positive, Section, Seed

Whole = Annotated[int, Field(ge=0)]


class StartSection(Section):
    """What is there before the first round. Its structures, and displaced copies, are labelled first."""

    structures: Files | None = Field(
        default=None, description="files of structures to explore from, in any format of ASE"
    )
    index: str = Field(default=":", description="indices of the structures in each file, as in ASE")
    smiles: list[str] = Field(default=[], description="molecules to explore from, as SMILES")
    conformers: Count = Field(default=1, description="starting structures of each SMILES")
    charge: Finite | None = Field(
        default=None, description="total charge of every structure in files, e; null: from the file, else 0"
    )
    multiplicity: Count | None = Field(
        default=None, description="spin multiplicity 2S+1; null: from the file, else the lowest possible"
    )
    checkpoint: str | None = Field(
        default=None, description="base potential that every training fine-tunes; null: train from scratch"
    )
    data: Files | None = Field(default=None, description="labelled files that are trained on from the beginning")
    count: Whole | None = Field(
        default=None,
        description="frames to label before the first round: structures, and displaced copies of them; null: "
        "select.count (with last_layer at least 20), or 0 with start.data",
    )
    rattle: Positive = Field(default=0.05, description="standard deviation of the displacements of copies, Å")
    strain: Annotated[float, Field(ge=0, lt=0.3)] = Field(
        default=0.02, description="standard deviation of the strains of the cells of copies"
    )
    seed: Seed = Field(default=0, description="random seed of all draws but those of the training")

    @model_validator(mode="after")
    def _something(self) -> StartSection:
        if not files_of(self.structures) and not self.smiles:
            raise ValueError("start needs structures or smiles to explore from, got neither")
        return self


class ExploreSection(Section):
    """Molecular dynamics with the potential of the last round, in batches of replicas."""

    temperatures: list[Positive] = Field(
        default=[300.0, 600.0], min_length=1, description="K; each starting structure has a replica at each"
    )
    pressures: list[Finite] = Field(
        default=[],
        description="bar; each temperature at each pressure; empty: constant volume",
    )
    replicas: Count = Field(default=1, description="replicas of each structure, temperature and pressure")
    steps: Count = Field(default=2000, description="steps of each replica in a round")
    timestep: Positive = Field(default=0.5, description="fs")
    friction: Positive = Field(default=10.0, description="of the Langevin thermostat, 1/ps")
    every: Count = Field(default=10, description="steps between frames, at which the uncertainty is checked")
    begin: Literal["start", "labelled"] = Field(
        default="start",
        description="start: replicas begin at the starting structures; labelled: at frames drawn from those labelled",
    )
    threshold: Positive | None = Field(
        default=None,
        description="uncertainty over which a replica ends or branches; null: 1 eV/Å, with last_layer 0.2 eV",
    )
    over: Literal["end", "branch"] = Field(
        default="end",
        description="over the threshold: end, or branch (continue from the last frame below half the threshold with "
        "other velocities)",
    )
    branches: Count = Field(default=3, description="branch: how often a replica does so before it ends")
    restraints: list[dict[str, Any]] = Field(
        default=[],
        description="harmonic biases: [{kind: distance, atoms: [0, 1], reference: 1.5, stiffness: 5.0}]; a list of "
        "references or stiffnesses has one for each of the replicas; structures: [0] restricts one to structures",
    )
    batch_atoms: Count | None = Field(
        default=None, description="atoms of the replicas that run at once; null: 2000 on a CPU, 50000 on a GPU"
    )
    dask: str | None = Field(
        default=None,
        description="scheduler of dask.distributed whose workers run the batches of batch_atoms, by address or file; "
        "null: this process runs one after another",
    )
    save_every: NotNegative = Field(
        default=60.0, description="s between states from which a killed exploration continues"
    )

    @model_validator(mode="after")
    def _possible(self) -> ExploreSection:
        if self.every > self.steps:
            raise ValueError(f"every must be at most steps, {self.steps}, got {self.every}")
        for number, table in enumerate(self.restraints):
            for name in ("reference", "stiffness"):
                value = table.get(name)
                if isinstance(value, list) and table.get("kind") != "position" and len(value) != self.replicas:
                    raise ValueError(
                        f"restraints[{number}].{name} must be a number, or a list of replicas, {self.replicas}, got "
                        f"{len(value)}"
                    )
            restraint_of({name: value for name, value in table.items() if name != "structures"}, f"restraint {number}")
        return self


class UncertaintySection(Section):
    """How uncertain a potential is about a frame: the largest value of any of its atoms."""

    kind: Literal["ensemble", "last_layer"] = Field(
        default="ensemble",
        description="ensemble: spread of forces (eV/Å) of potentials that are trained with other seeds; last_layer: "
        "uncertainty of energies of atoms (eV) of a single one, calibrated by frames that are held out",
    )
    members: Annotated[int, Field(ge=2)] = Field(default=3, description="ensemble: potentials to train")
    resample: bool = Field(default=False, description="ensemble: each is trained on another draw of the frames")

    @property
    def unit(self) -> str:
        """Of uncertainties and thresholds."""
        return "eV/Å" if self.kind == "ensemble" else "eV"

    @property
    def num_potentials(self) -> int:
        """Potentials that each training makes."""
        return self.members if self.kind == "ensemble" else 1


class SelectSection(Section):
    """Which frames of the exploration are labelled: uncertain ones that differ from each other and from labelled."""

    count: Count = Field(default=10, description="frames that are labelled in a round")
    random: Whole = Field(
        default=0,
        description="of count, frames drawn at random; if there are any, the error on fresh labels is theirs alone: an "
        "unbiased estimate, where that of uncertain frames is too large",
    )
    diversity: NotNegative = Field(
        default=1.0,
        description="frames are taken by uncertainty times distance to this power, the distance being that of the "
        "descriptors to the nearest labelled or selected frame; 0: by uncertainty alone",
    )
    duplicates: NotNegative = Field(
        default=0.1, description="frames nearer than this to a labelled or selected one are left out"
    )
    least: NotNegative = Field(default=0.0, description="uncertainty below which frames are not labelled")
    most: Positive | None = Field(
        default=None,
        description="uncertainty above which frames are discarded as broken; null: 10 times the threshold",
    )
    closest: Annotated[float, Field(ge=0, lt=1)] = Field(
        default=0.6, description="frames with atoms nearer than this part of the sum of covalent radii are left out"
    )

    @model_validator(mode="after")
    def _some_uncertain(self) -> SelectSection:
        if self.random > self.count:
            raise ValueError(f"random must be at most count, {self.count}, got {self.random}")
        if self.most is not None and self.most <= self.least:
            raise ValueError(f"most must be above least, {self.least:g}, got {self.most:g}")
        return self
