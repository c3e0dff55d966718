"""What can be set in a training: typed, checked, with defaults that are good for molecules."""

from __future__ import annotations

import re
from dataclasses import fields
from typing import Annotated, Any, Literal

try:
    from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator
except ImportError as error:
    raise ImportError("training needs pydantic, which is not installed: pip install 'torchmdx[train]'") from error

from torchmdx.models.priors.base import PriorConfig
from torchmdx.models.registry import BUILT_IN, MODELS, ModelConfig, model_from_dict, prior_from_dict
from torchmdx.training.logs import LOGGERS

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Fraction = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Below1 = Annotated[float, Field(ge=0, lt=1, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1)]
Seed = Annotated[int, Field(ge=0, lt=2**63)]
Finite = Annotated[float, Field(allow_inf_nan=False)]
Part = Annotated[int, Field(ge=0)] | Annotated[float, Field(gt=0, lt=1)]
Function = Literal["mse", "mae", "huber"]


class Section(BaseModel):
    """Unknown keys and values of another type are refused."""

    model_config = ConfigDict(extra="forbid", strict=True, validate_default=True)


class ModelSection(Section):
    """The network. Not read when `finetune.checkpoint` is set: the checkpoint's own is used."""

    name: str = Field(
        default="tensornet",
        description="tensornet; tensornet2, which predicts charges of atoms; or the name of a registered model",
    )
    num_channels: Annotated[int, Field(ge=2)] = Field(default=128, description="width of every feature")
    num_layers: Annotated[int, Field(ge=0)] = Field(default=2, description="interaction layers")
    num_radial: Annotated[int, Field(ge=2)] = Field(default=32, description="radial functions")
    radial_basis: Literal["expnorm", "gauss"] = Field(default="expnorm", description="kind of radial functions")
    trainable_basis: bool = Field(
        default=False, description="whether centres and widths of radial functions are learned"
    )
    activation: Literal["silu", "ssp", "tanh", "sigmoid", "mish"] = Field(
        default="silu", description="activation function"
    )
    cutoff: Positive = Field(default=5.0, description="how far an atom sees, Å")
    max_z: Annotated[int, Field(ge=1, le=118)] = Field(default=100, description="largest atomic number the model knows")
    group: Literal["O(3)", "SO(3)"] = Field(default="O(3)", description="O(3): mirror images have equal energies")

    num_head_layers: Annotated[int, Field(ge=0)] = Field(
        default=0, description="more layers in the part that makes energies of features"
    )
    num_charges: Count = Field(default=16, description="tensornet2: sets of charges that each layer predicts")
    settings: dict[str, Any] = Field(
        default={}, description="of a registered model: settings that have no key of their own here"
    )
    priors: list[dict[str, Any]] = Field(
        default=[],
        description="energies added to the network's: [{prior: zbl}, {prior: coulomb}, {prior: d3, functional: pbe}]",
    )

    @model_validator(mode="after")
    def _possible(self) -> ModelSection:
        self.network()
        self.prior_configs()
        return self

    def network(self) -> ModelConfig:
        """The settings as the network takes them: a registered model gets those that its configuration has."""
        values = self.model_dump(exclude={"name", "priors", "settings"})
        doubled = sorted(self.settings.keys() & values.keys())
        if doubled:
            raise ValueError(f"model.settings must not repeat keys of the section: give model.{doubled[0]} instead")
        if self.name not in MODELS:
            return model_from_dict({"model": self.name})  # says what is known
        known = {field.name for field in fields(MODELS[self.name].config)}
        for key in [key for key in values if key not in known]:
            # num_charges of a tensornet has always been passed over.
            if values[key] != type(self).model_fields[key].default and self.name not in BUILT_IN:
                raise ValueError(f"the model {self.name} has no setting {key}, got {values[key]!r}")
            del values[key]
        return model_from_dict({"model": self.name, **values, **self.settings})

    def prior_configs(self) -> list[PriorConfig]:
        """The settings of the priors."""
        return [prior_from_dict(prior) for prior in self.priors]


class DataSection(Section):
    """Where labels come from, and which frames serve what."""

    path: str | list[str] = Field(
        default="",
        description="a packed store, or files of any format, which are converted in the run's directory",
    )
    energy_unit: str | None = Field(default=None, description="of energies in files; null: eV, or the format's own")
    length_unit: str | None = Field(default=None, description="of lengths in files; null: Å, or the format's own")
    force_unit: str | None = Field(default=None, description="of forces in files; null: energy over length")
    broken: Literal["refuse", "skip"] = Field(default="refuse", description="frames of files that cannot be used")
    split: str | None = Field(default=None, description="a recorded split; null makes one from the values below")
    train: Part | None = Field(
        default=None, description="training frames: a number, a share below 1; null: all that are left"
    )
    validation: Part = Field(default=0.1, description="validation frames: a number, or a share below 1; 0: none")
    test: Part = Field(default=0.1, description="test frames: a number, or a share below 1; 0: none")
    split_by: Literal["frame", "formula", "file"] = Field(default="frame", description="what stays together in a split")
    seed: Seed = Field(default=0, description="seed of the split; that of the training is training.seed")
    references: Literal["fit", "zero"] | dict[int, Finite] = Field(
        default="fit",
        description="energies of lone atoms: fit (least squares), zero, or eV by atomic number {1: -13.6}",
    )
    scale: Literal["forces"] | Positive = Field(
        default="forces", description="eV per unit of the network's output: forces (their root mean square) or a number"
    )


class TermSection(Section):
    """One term of the loss."""

    function: Function = Field(default="mse", description="mse, mae or huber")
    delta: Positive = Field(default=0.01, description="where huber turns linear, in the unit of the term")
    weight: NotNegative = Field(default=1.0, description="weight in the loss; 0 leaves the term out")
    final_weight: NotNegative | None = Field(
        default=None, description="weight at loss.change_to; null: it does not change"
    )


class EnergySection(TermSection):
    """Errors of energies per atom: a number for each system, where forces have one for each atom and direction."""

    weight: NotNegative = Field(default=10.0, description="weight in the loss; 0 leaves the term out")


class ForcesSection(TermSection):
    """Errors of force components."""


class StressSection(TermSection):
    """Errors of stress components."""

    weight: NotNegative = Field(default=0.0, description="weight in the loss; 0 leaves the term out")


class LossSection(Section):
    """Σ weight · mean of function(error); errors in eV/atom, eV/Å, eV/Å³."""

    energy: EnergySection = Field(default=EnergySection(), description="energy per atom, eV")
    forces: ForcesSection = Field(default=ForcesSection(), description="force components, eV/Å")
    stress: StressSection = Field(default=StressSection(), description="stress components, eV/Å³")
    change_from: Fraction = Field(default=0.0, description="weights change linearly from this share of the epochs")
    change_to: Fraction = Field(default=1.0, description="to this one")

    @model_validator(mode="after")
    def _some_term(self) -> LossSection:
        terms = (self.energy, self.forces, self.stress)
        if not any(term.weight or term.final_weight for term in terms):
            raise ValueError("at least one of energy, forces and stress must have a weight > 0, got 0 for all")
        if self.change_from > self.change_to:
            raise ValueError(f"change_from must be <= change_to, got {self.change_from} and {self.change_to}")
        return self


class OptimizerSection(Section):
    """AdamW; biases, embeddings and norms do not decay."""

    learning_rate: Positive = Field(default=1e-3, description="largest learning rate")
    weight_decay: NotNegative = Field(default=1e-4, description="decay of weights, in learning rates a step")
    beta1: Below1 = Field(default=0.9, description="memory of the gradient")
    beta2: Below1 = Field(default=0.999, description="memory of its square")
    epsilon: Positive = Field(default=1e-8, description="added to the root of the squares")
    clip_norm: Positive | None = Field(default=10.0, description="gradients longer than this are cut; null: never")
    ema_decay: Below1 = Field(default=0.999, description="memory of the averaged weights, which are saved; 0: none")


class ScheduleSection(Section):
    """Learning rate over time."""

    name: Literal["cosine", "plateau", "constant"] = Field(default="cosine", description="cosine, plateau or constant")
    warmup_steps: Annotated[int, Field(ge=0)] = Field(default=100, description="steps in which the rate rises from 0")
    final_factor: Fraction = Field(default=0.001, description="smallest rate, in optimizer.learning_rate")
    plateau_factor: Annotated[float, Field(gt=0, lt=1)] = Field(default=0.5, description="plateau: factor of the rate")
    plateau_patience: Count = Field(default=20, description="plateau: validations without improvement before that")


class TrainingSection(Section):
    """How long, how, and on what."""

    epochs: Count = Field(default=300, description="passes over the training frames")
    batch_size: Count = Field(default=32, description="frames in a step, over all devices")
    seed: Seed = Field(default=0, description="seed of weights and order")
    device: str = Field(default="auto", description="auto, cpu, cuda, or one GPU by its number, as cuda:1")
    devices: Count = Field(default=1, description="devices of each node; as many processes")
    nodes: Count = Field(default=1, description="computers that take part")
    rendezvous: str | None = Field(default=None, description="host:port of the first node, where nodes is more than 1")
    precision: Literal["float32", "tf32", "bf16", "float64"] = Field(
        default="float32", description="float32, float64; tf32 or bf16: matrix products in it, all else in float32"
    )
    deterministic: bool = Field(
        default=False, description="refuse operations whose result depends on timing (slower on a GPU)"
    )
    record: bool = Field(
        default=True, description="on a GPU, record steps as CUDA graphs and replay them: much faster, the same losses"
    )
    validate_every: Count = Field(default=1, description="epochs between validations")
    validation_batch_size: Count | None = Field(
        default=None, description="frames in a validation step; null: batch_size"
    )
    stop_after: Count | None = Field(
        default=None, description="validations without improvement that end it; null: never"
    )
    ensemble: Count = Field(default=1, description="potentials, of seeds seed, seed+1, ...")
    prefetch: Count = Field(default=4, description="batches read ahead")

    @field_validator("device")
    @classmethod
    def _known_device(cls, value: str) -> str:
        if not re.fullmatch(r"auto|cpu|cuda(:\d+)?", value):
            raise ValueError(f"device must be auto, cpu, cuda or cuda:1, got {value!r}")
        return value

    @model_validator(mode="after")
    def _processes(self) -> TrainingSection:
        ranks = self.devices * self.nodes
        for name, size in (("batch_size", self.batch_size), ("validation_batch_size", self.validation_batch_size)):
            if size is not None and size % ranks:
                raise ValueError(f"{name} must be a multiple of devices x nodes = {ranks}, got {size}")
        if ":" in self.device and ranks > 1:
            raise ValueError(
                f"device must be cuda where devices x nodes is {ranks}: each process takes a GPU, got {self.device!r}"
            )
        if self.precision == "tf32" and self.device == "cpu":
            raise ValueError("precision tf32 needs a GPU, got device cpu")
        return self


class OutputSection(Section):
    """What a training writes, and where."""

    directory: str = Field(default="run", description="of everything that is written")
    loggers: list[str] = Field(default=["csv", "tensorboard"], description=f"of {', '.join(LOGGERS)}")
    log_every: Count = Field(default=50, description="steps between rows of steps.csv")
    save_every: Count = Field(default=1, description="epochs between checkpoints to resume from")
    report: bool = Field(default=True, description="pictures and errors at the end, in report/index.html")
    kcal: bool = Field(default=False, description="errors of the report also in kcal/mol")

    @field_validator("loggers")
    @classmethod
    def _known_loggers(cls, value: list[str]) -> list[str]:
        for name in value:
            if name not in LOGGERS:
                raise ValueError(f"loggers must be of {', '.join(LOGGERS)}, got {name!r}")
        return value


class FinetuneSection(Section):
    """To go on from a potential that exists."""

    checkpoint: str | None = Field(default=None, description="potential to start from; null: new weights")
    freeze: list[str] = Field(default=[], description="parts that stay, by name: [network.embedding, network.layers.0]")
    references: Literal["keep", "shift"] = Field(
        default="keep",
        description="energies of lone atoms: keep, or shift (least squares of what the checkpoint leaves)",
    )


class Config(Section):
    """All of a training."""

    model: ModelSection = ModelSection()
    data: DataSection = DataSection()
    loss: LossSection = LossSection()
    optimizer: OptimizerSection = OptimizerSection()
    schedule: ScheduleSection = ScheduleSection()
    training: TrainingSection = TrainingSection()
    output: OutputSection = OutputSection()
    finetune: FinetuneSection = FinetuneSection()

    def plain(self) -> dict[str, Any]:
        """As dictionaries, numbers and text."""
        return self.model_dump(mode="json")
