"""Settings of `torchmdx learn`: typed and validated; those of the training are the training's own."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, model_validator

from torchmdx.learning.sections import ExploreSection, SelectSection, StartSection, UncertaintySection
from torchmdx.training.config import (
    Config,
    FinetuneSection,
    ModelSection,
    OptimizerSection,
    ScheduleSection,
    TrainingSection,
)
from torchmdx.training.data_section import DataSection
from torchmdx.training.distillation.fit import AVERAGED, LONGEST_MEMORY
from torchmdx.training.loss_section import LossSection
from torchmdx.training.section import Count, Positive, Section

FEW = 10  # frames
HELD_OUT = 10  # frames, by which the uncertainty of a last layer is calibrated
CHOOSING = 50  # frames for validation, from which the best epoch is chosen by them
FEWEST_STEPS = 8  # of an epoch, if there are as many frames
# What `torchmdx learn` itself sets in a section of the training, and where it is set instead.
SET_HERE = {
    "data": {
        "path": "start.data",
        "heads": "start.data",
        "train": "start.data",
        "split": "start.data",
        "test": "select.random, which are labelled before they are trained on",
    },
    "training": {"ensemble": "uncertainty.members"},
}


class LabelSection(Section):
    """The reference: any calculator of `torchmdx label`."""

    calculator: str = Field(default="", description="gfn2-xtb, emt, another of `torchmdx label`, or module:name")
    options: dict[str, Any] = Field(default={}, description="arguments of the calculator: {accuracy: 0.01}")
    workers: Count | None = Field(default=None, description="processes; null: one per core")
    timeout: Positive | None = Field(default=None, description="time limit of a label, s; null: none")
    dask: str | None = Field(
        default=None, description="scheduler of dask.distributed whose workers label, by address or file; null: none"
    )

    @model_validator(mode="after")
    def _named(self) -> LabelSection:
        if not self.calculator:
            raise ValueError("calculator must be given: gfn2-xtb, emt, another of `torchmdx label`, or module:name")
        return self


class TrainSection(Section):
    """The training after each round, on all labels; settings are those of `torchmdx train`, and suit few frames."""

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

    @property
    def keeps_last(self) -> bool:
        """Whether the potential may be that of the last epoch: nothing that was given asks for validations."""
        asked = "validate_every" in self.training.model_fields_set or self.training.stop_after is not None
        return not asked and self.schedule.name == "cosine"

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
    """When the command ends; what comes first. These settings may be changed in a run that continues."""

    rounds: Count = Field(default=10, description="rounds of exploration at most")
    uncertainty: Positive | None = Field(
        default=None, description="target: 95 % of the frames of an exploration are below this uncertainty"
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

    @model_validator(mode="before")
    @classmethod
    def _with_base(cls, given: Any) -> Any:
        """Fine-tuning is that of the base potential: low rank and replay are refused without one."""
        if not isinstance(given, dict):
            return given
        start, train = given.get("start"), given.get("train")
        if not isinstance(start, dict) or not isinstance(train, dict) or not isinstance(train.get("finetune"), dict):
            return given
        tuned = {"checkpoint": start.get("checkpoint")} | train["finetune"]
        return given | {"train": train | {"finetune": tuned}}

    @model_validator(mode="after")
    def _trainable(self) -> LearnConfig:
        base, tuned = self.start.checkpoint is not None, self.train.finetune.checkpoint
        if tuned is not None and tuned != self.start.checkpoint:
            raise ValueError(
                f"train.finetune.checkpoint is set by torchmdx learn, see start.checkpoint; got {tuned!r} with "
                f"start.checkpoint {self.start.checkpoint!r}"
            )
        calibrated = self.uncertainty.kind == "ensemble" or self.start.data is not None or base
        if not calibrated and self.first_labels <= HELD_OUT:
            raise ValueError(
                f"start.count must be above {HELD_OUT} with uncertainty.kind last_layer, which as many frames "
                f"calibrate, got {self.first_labels}"
            )
        if self.first_labels == 0 and not self.start.data and not base:
            raise ValueError("start.count must be >= 1 without start.data and start.checkpoint, got 0")
        if self.stop.labels is not None and self.stop.labels < self.first_labels:
            raise ValueError(
                f"stop.labels must be at least the frames labelled first (start.count), {self.first_labels}, got "
                f"{self.stop.labels}"
            )
        return self

    @property
    def first_labels(self) -> int:
        """Frames to label before the first round; at least one of each structure if there are any."""
        if self.start.count is not None:
            return self.start.count
        least = 2 * HELD_OUT if self.uncertainty.kind == "last_layer" else 1
        return 0 if self.start.data else max(self.select.count, least)

    @property
    def threshold(self) -> float:
        """Uncertainty over which a replica ends or branches, in its unit."""
        if self.explore.threshold is not None:
            return self.explore.threshold
        return 1.0 if self.uncertainty.kind == "ensemble" else 0.2

    @property
    def broken(self) -> float:
        """Uncertainty above which frames are taken for broken ones, in its unit."""
        return 10 * self.threshold if self.select.most is None else self.select.most

    def plain(self) -> dict[str, Any]:
        """The values as nested dictionaries of JSON types."""
        return self.model_dump(mode="json")

    def training(self, directory: str, files: list[str], checkpoint: str | None, num_frames: int = 0) -> Config:
        """The configuration of a training on labelled files, from a checkpoint or random weights.

        What is not given of batch size, validation, warm-up and average of weights suits the number of frames, if that
        is known: the defaults of `torchmdx train` are for thousands. With few frames the last epoch is kept.
        """
        train = self.train.model_dump(exclude={"start", "report"})
        train["data"] |= {"path": files, "test": 0}
        train["finetune"] = {} if checkpoint is None else train["finetune"] | {"checkpoint": checkpoint}
        own = checkpoint not in (None, self.start.checkpoint)
        if own and "references" not in self.train.finetune.model_fields_set:
            train["finetune"]["references"] = "shift"  # those of the first few labels were a guess
        several = self.uncertainty.kind == "ensemble"
        train["training"] |= {"ensemble": self.uncertainty.num_potentials}
        train["training"] |= {"resample": several and self.uncertainty.resample}
        train["output"] = {"directory": directory, "loggers": ["csv"], "report": self.train.report}
        train["output"] |= {"uncertainty": not several}
        if num_frames:
            self._suit(train, num_frames)
        return Config.model_validate(train)

    def _suit(self, train: dict[str, Any], num_frames: int) -> None:
        """Settings for a number of frames, unless they were given."""
        training, given = train["training"], self.train
        if "validation" not in given.data.model_fields_set and num_frames < 10 * HELD_OUT:
            if self.uncertainty.kind == "last_layer":
                train["data"]["validation"] = HELD_OUT
            elif not self.uncertainty.resample:
                train["data"]["validation"] = 0  # a tenth of so few calibrates no spread
            elif num_frames < FEW:
                train["data"]["validation"] = min(1, num_frames - 1)
        # The best epoch of so few validation frames is chance, and often an early one: the last one is kept.
        if num_frames < 10 * CHOOSING and given.keeps_last:
            training["validate_every"] = training["epochs"]
        if "batch_size" not in given.training.model_fields_set:
            training["batch_size"] = max(1, min(training["batch_size"], num_frames // FEWEST_STEPS))
        steps = training["epochs"] * -(-num_frames // training["batch_size"])
        if "warmup_steps" not in given.schedule.model_fields_set:
            train["schedule"]["warmup_steps"] = min(train["schedule"]["warmup_steps"], max(1, steps // 20))
        if "ema_decay" not in given.optimizer.model_fields_set:
            train["optimizer"]["ema_decay"] = min(LONGEST_MEMORY, max(0.0, 1 - AVERAGED / steps))
