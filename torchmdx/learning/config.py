"""Settings of `torchmdx learn`: typed and validated; those of the training are the training's own."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from torchmdx.dynamics.restraints import restraint_of
from torchmdx.training.config import (
    Config,
    FinetuneSection,
    ModelSection,
    OptimizerSection,
    ScheduleSection,
    TrainingSection,
)
from torchmdx.training.data_section import DataSection, files_of
from torchmdx.training.distillation.fit import AVERAGED, LONGEST_MEMORY
from torchmdx.training.loss_section import LossSection
from torchmdx.training.section import Count, Files, Finite, NotNegative, Positive, Section, Seed

FEWEST_STEPS = 8  # of an epoch, if there are as many frames
Whole = Annotated[int, Field(ge=0)]
# What `torchmdx learn` itself sets in a section of the training, and where it is set instead.
SET_HERE = {
    "data": {
        "path": "start.data",
        "heads": "start.data",
        "train": "start.data",
        "split": "start.data",
        "test": "select.random, which are labelled before they are trained on",
    },
    "finetune": {"checkpoint": "start.checkpoint"},
    "training": {"ensemble": "uncertainty.members"},
}


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
        "select.count, or 0 with start.data",
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
    every: Count = Field(default=10, description="steps between frames, at which the uncertainty is looked at")
    begin: Literal["start", "labelled"] = Field(
        default="start",
        description="start: replicas begin at the starting structures; labelled: at frames drawn from those labelled",
    )
    threshold: Positive | None = Field(
        default=None,
        description="uncertainty of an atom's force, eV/Å, over which a replica ends or branches; null: 1",
    )
    over: Literal["end", "branch"] = Field(
        default="end",
        description="over the threshold: end, or branch (go on from the last frame below half the threshold with "
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
    save_every: NotNegative = Field(
        default=60.0, description="s between states from which a killed exploration goes on"
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
    """How uncertain a potential is about a frame: the largest value of any atom, in eV/Å of its force."""

    kind: Literal["ensemble"] = Field(
        default="ensemble", description="ensemble: spread of potentials that are trained with other seeds"
    )
    members: Annotated[int, Field(ge=2)] = Field(default=3, description="ensemble: potentials to train")
    resample: bool = Field(default=False, description="ensemble: each is trained on another draw of the frames")


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
    least: NotNegative = Field(default=0.0, description="uncertainty, eV/Å, below which frames are not labelled")
    most: Positive | None = Field(
        default=None,
        description="uncertainty, eV/Å, above which frames are taken for broken ones; null: 10 times the threshold",
    )
    closest: Annotated[float, Field(ge=0, lt=1)] = Field(
        default=0.6, description="frames with atoms nearer than this part of the sum of covalent radii are left out"
    )

    @model_validator(mode="after")
    def _some_uncertain(self) -> SelectSection:
        if self.random > self.count:
            raise ValueError(f"random must be at most count, {self.count}, got {self.random}")
        if self.most is not None and self.most <= self.least:
            raise ValueError(f"most must be above least, {self.least:g} eV/Å, got {self.most:g}")
        return self


class LabelSection(Section):
    """The reference: any calculator of `torchmdx label`."""

    calculator: str = Field(default="", description="gfn2-xtb, emt, another of `torchmdx label`, or module:name")
    options: dict[str, Any] = Field(default={}, description="arguments of the calculator: {accuracy: 0.01}")
    workers: Count | None = Field(default=None, description="processes; null: one per core")
    timeout: Positive | None = Field(default=None, description="time limit of a label, s; null: none")

    @model_validator(mode="after")
    def _named(self) -> LabelSection:
        if not self.calculator:
            raise ValueError("calculator must be given: gfn2-xtb, emt, another of `torchmdx label`, or module:name")
        return self


class TrainSection(Section):
    """The training after each round, on all labels, with the sections and defaults of `torchmdx train`; batch size,
    warm-up and average of weights suit the number of frames unless they are given."""

    start: Literal["anew", "warm"] = Field(
        default="anew",
        description="anew: from random weights, or start.checkpoint; warm: from the potentials of the round before",
    )
    model: ModelSection = ModelSection()
    data: DataSection = DataSection(checks="warn")
    loss: LossSection = LossSection()
    optimizer: OptimizerSection = OptimizerSection()
    schedule: ScheduleSection = ScheduleSection()
    training: TrainingSection = TrainingSection()
    finetune: FinetuneSection = FinetuneSection()
    report: bool = Field(default=False, description="write the report of every training")

    @model_validator(mode="before")
    @classmethod
    def _warnings_only(cls, given: Any) -> Any:
        """data.checks warns unless it is given: distorted frames are what a round is to find."""
        if isinstance(given, dict) and isinstance(given.get("data"), dict):
            return given | {"data": {"checks": "warn"} | given["data"]}
        return given

    @model_validator(mode="after")
    def _not_set_here(self) -> TrainSection:
        for section, keys in SET_HERE.items():
            values = getattr(self, section)
            for key, instead in keys.items():
                default = type(values).model_fields[key].default
                if getattr(values, key) != default:
                    raise ValueError(
                        f"{section}.{key} is set by torchmdx learn, see {instead}; got {getattr(values, key)!r}"
                    )
        return self


class StopSection(Section):
    """When the command ends; what comes first. These settings may be changed in a run that goes on."""

    rounds: Count = Field(default=10, description="rounds of exploration at most")
    uncertainty: Positive | None = Field(
        default=None, description="target: 95 % of the frames of an exploration are below this uncertainty, eV/Å"
    )
    error: Positive | None = Field(
        default=None,
        description="target: root mean square error of forces on fresh labels, before they are trained on, eV/Å",
    )
    patience: Count = Field(default=1, description="rounds in a row that reach every target")
    labels: Count | None = Field(default=None, description="budget of labels; null: none")
    hours: Positive | None = Field(default=None, description="budget of time, over all sessions, h; null: none")


class RunSection(Section):
    """Where everything is written."""

    directory: str = Field(default="run", description="folder of the run, with a folder for each round and stage")
    page: bool = Field(default=True, description="write learn.html after every round")


class LearnConfig(Section):
    """Configuration of `torchmdx learn`."""

    start: StartSection
    explore: ExploreSection = ExploreSection()
    uncertainty: UncertaintySection = UncertaintySection()
    select: SelectSection = SelectSection()
    label: LabelSection
    train: TrainSection = TrainSection()
    stop: StopSection = StopSection()
    output: RunSection = RunSection()

    @model_validator(mode="after")
    def _trainable(self) -> LearnConfig:
        base = self.start.checkpoint is not None
        if self.first_labels == 0 and not self.start.data and not base:
            raise ValueError("start.count must be >= 1 without start.data and start.checkpoint, got 0")
        if self.train.finetune.replay is not None and not base:
            raise ValueError("train.finetune.replay needs start.checkpoint, got none")
        return self

    @property
    def first_labels(self) -> int:
        """Frames to label before the first round; at least one of each structure if there are any."""
        if self.start.count is not None:
            return self.start.count
        return 0 if self.start.data else self.select.count

    @property
    def threshold(self) -> float:
        """Uncertainty over which a replica ends or branches, eV/Å."""
        return 1.0 if self.explore.threshold is None else self.explore.threshold

    @property
    def broken(self) -> float:
        """Uncertainty above which frames are taken for broken ones, eV/Å."""
        return 10 * self.threshold if self.select.most is None else self.select.most

    def plain(self) -> dict[str, Any]:
        """The values as nested dictionaries of JSON types."""
        return self.model_dump(mode="json")

    def training(self, directory: str, files: list[str], checkpoint: str | None, num_frames: int = 0) -> Config:
        """The configuration of a training on labelled files, from a checkpoint or random weights.

        What is not given of batch size, warm-up and average of weights is that for the number of frames, if that is
        known: the defaults of `torchmdx train` are for thousands.
        """
        train = self.train.model_dump(exclude={"start", "report"})
        train["data"] |= {"path": files, "test": 0}
        train["finetune"] = {} if checkpoint is None else train["finetune"] | {"checkpoint": checkpoint}
        train["training"] |= {"ensemble": self.uncertainty.members, "resample": self.uncertainty.resample}
        train["output"] = {"directory": directory, "loggers": ["csv"], "report": self.train.report}
        if num_frames:
            self._suit(train, num_frames)
        return Config.model_validate(train)

    def _suit(self, train: dict[str, Any], num_frames: int) -> None:
        """Settings for a number of frames, unless they were given."""
        training, given = train["training"], self.train
        if "batch_size" not in given.training.model_fields_set:
            training["batch_size"] = max(1, min(training["batch_size"], num_frames // FEWEST_STEPS))
        steps = training["epochs"] * -(-num_frames // training["batch_size"])
        if "warmup_steps" not in given.schedule.model_fields_set:
            train["schedule"]["warmup_steps"] = min(train["schedule"]["warmup_steps"], max(1, steps // 20))
        if "ema_decay" not in given.optimizer.model_fields_set:
            train["optimizer"]["ema_decay"] = min(LONGEST_MEMORY, max(0.0, 1 - AVERAGED / steps))
