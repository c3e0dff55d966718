"""Settings of a training run: typed and validated, with defaults suited to molecules."""

from __future__ import annotations

import re
from dataclasses import fields
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from torchmdx.models.heads import require_head_name
from torchmdx.models.priors.base import PriorConfig
from torchmdx.models.registry import BUILT_IN, MODELS, ModelConfig, model_from_dict, prior_from_dict
from torchmdx.training.data_section import DataSection
from torchmdx.training.logs import LOGGERS
from torchmdx.training.loss_section import LossSection
from torchmdx.training.section import Below1, Count, Files, Fraction, NotNegative, Positive, Section, Seed


class ModelSection(Section):
    """The network. Ignored if `finetune.checkpoint` is set, which brings its own."""

    name: str = Field(
        default="tensornet",
        description="tensornet; tensornet2, which predicts atomic charges; or the name of a registered model",
    )
    num_channels: Annotated[int, Field(ge=2)] = Field(default=128, description="channels of every feature")
    num_layers: Annotated[int, Field(ge=0)] = Field(default=2, description="number of interaction layers")
    num_radial: Annotated[int, Field(ge=2)] = Field(default=32, description="number of radial basis functions")
    radial_basis: Literal["expnorm", "gauss", "bessel"] = Field(
        default="expnorm", description="type of radial basis functions"
    )
    trainable_basis: bool = Field(default=False, description="train centres and widths of the radial basis functions")
    activation: Literal["silu", "ssp", "tanh", "sigmoid", "mish"] = Field(
        default="silu", description="activation function"
    )
    cutoff: Positive = Field(default=5.0, description="cutoff radius of the network, Å")
    max_z: Annotated[int, Field(ge=1, le=118)] = Field(default=100, description="largest atomic number supported")
    group: Literal["O(3)", "SO(3)"] = Field(
        default="O(3)", description="O(3): mirror images have the same energy; SO(3): they may differ"
    )

    num_head_layers: Annotated[int, Field(ge=0)] = Field(default=0, description="additional layers in the energy head")
    head: Literal["scalar", "gated"] = Field(
        default="scalar", description="gated: a wider energy head, times the sigmoid of a second network"
    )
    messages: Literal["source", "target"] = Field(
        default="source",
        description="messages carry the tensors of the neighbour (source) or of the atom itself (target)",
    )
    self_message: bool = Field(default=True, description="atoms are their own neighbours at distance 0")
    readout_activation: bool = Field(default=True, description="apply the activation to the features")
    charge_factor: bool = Field(default=True, description="the total charge q scales tensor products, by 1 + q/10")
    num_charges: Count = Field(default=16, description="tensornet2: number of charge sets predicted per layer")
    settings: dict[str, Any] = Field(default={}, description="settings of a registered model without a key here")
    priors: list[dict[str, Any]] = Field(
        default=[],
        description="energy terms added to the network: [{prior: zbl}, {prior: coulomb}, {prior: d3, functional: pbe}]",
    )

    @model_validator(mode="after")
    def _possible(self) -> ModelSection:
        self.network()
        self.prior_configs()
        return self

    def network(self) -> ModelConfig:
        """The settings as a model configuration; a registered model gets those that its configuration has."""
        values = self.model_dump(exclude={"name", "priors", "settings"})
        doubled = sorted(self.settings.keys() & values.keys())
        if doubled:
            raise ValueError(f"model.settings must not repeat keys of the section: set model.{doubled[0]} instead")
        if self.name not in MODELS:
            return model_from_dict({"model": self.name})  # raises an error that lists the known models
        known = {field.name for field in fields(MODELS[self.name].config)}
        for key in [key for key in values if key not in known]:
            # A tensornet ignores num_charges.
            if values[key] != type(self).model_fields[key].default and self.name not in BUILT_IN:
                raise ValueError(f"the model {self.name} has no setting {key}, got {values[key]!r}")
            del values[key]
        return model_from_dict({"model": self.name, **values, **self.settings})

    def prior_configs(self) -> list[PriorConfig]:
        """The settings of the priors."""
        return [prior_from_dict(prior) for prior in self.priors]


class OptimizerSection(Section):
    """AdamW; no weight decay for biases, embeddings and normalization layers."""

    learning_rate: Positive = Field(default=1e-3, description="maximum learning rate")
    weight_decay: NotNegative = Field(default=1e-4, description="weight decay per step, relative to the learning rate")
    beta1: Below1 = Field(default=0.9, description="decay rate of the first moment")
    beta2: Below1 = Field(default=0.999, description="decay rate of the second moment")
    epsilon: Positive = Field(default=1e-8, description="added to the square root of the second moment")
    clip_norm: Positive | None = Field(default=10.0, description="maximum norm of the gradient; null: no clipping")
    ema_decay: Below1 = Field(default=0.999, description="decay rate of the saved, averaged weights; 0: no averaging")


class ScheduleSection(Section):
    """Learning-rate schedule."""

    name: Literal["cosine", "plateau", "constant"] = Field(default="cosine", description="cosine, plateau or constant")
    warmup_steps: Annotated[int, Field(ge=0)] = Field(default=100, description="steps of linear warm-up from 0")
    final_factor: Fraction = Field(default=0.001, description="minimum rate, as a fraction of optimizer.learning_rate")
    plateau_factor: Annotated[float, Field(gt=0, lt=1)] = Field(
        default=0.5, description="plateau: factor by which the rate is reduced"
    )
    plateau_patience: Count = Field(default=20, description="plateau: validations without improvement before that")


class TrainingSection(Section):
    """Length, batches, devices and precision of the training."""

    epochs: Count = Field(default=300, description="passes over the training frames")
    batch_size: Count = Field(default=32, description="frames per step, over all devices")
    seed: Seed = Field(default=0, description="random seed of the initial weights and the order of frames")
    device: str = Field(default="auto", description="auto, cpu, cuda, or one GPU by its index, as cuda:1")
    devices: Count = Field(default=1, description="devices per node, with one process each")
    nodes: Count = Field(default=1, description="number of nodes")
    rendezvous: str | None = Field(default=None, description="host:port of the first node; required if nodes > 1")
    precision: Literal["float32", "tf32", "bf16", "float64"] = Field(
        default="float32",
        description="float32, float64; tf32 or bf16: matrix products in this precision, the rest in float32",
    )
    deterministic: bool = Field(default=False, description="use deterministic operations only (slower on a GPU)")
    record: bool = Field(
        default=True, description="on a GPU, capture steps as CUDA graphs and replay them: much faster, same losses"
    )
    validate_every: Count = Field(default=1, description="epochs between validations")
    validation_batch_size: Count | None = Field(
        default=None, description="frames of a validation step; null: batch_size"
    )
    stop_after: Count | None = Field(
        default=None, description="stop after this number of validations without improvement; null: never"
    )
    ensemble: Count = Field(default=1, description="number of potentials to train, with seeds seed, seed+1, ...")
    resample: bool = Field(
        default=False,
        description="ensemble: draw other training and validation frames for each potential; the test set is the same",
    )
    prefetch: Count = Field(default=4, description="number of batches read ahead")

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
                f"device must be cuda if devices x nodes > 1, because each process uses its own GPU; got device "
                f"{self.device!r} with devices x nodes = {ranks}"
            )
        if self.precision == "tf32" and self.device == "cpu":
            raise ValueError("precision tf32 needs a GPU, got device cpu")
        return self


class OutputSection(Section):
    """Files that a training run writes."""

    directory: str = Field(default="run", description="directory of all output files")
    loggers: list[str] = Field(default=["csv", "tensorboard"], description=f"any of {', '.join(LOGGERS)}")
    log_every: Count = Field(default=50, description="steps between rows of steps.csv")
    save_every: Count = Field(default=1, description="epochs between checkpoints to resume from")
    report: bool = Field(default=True, description="write figures and errors to report/index.html at the end")
    uncertainty: bool = Field(
        default=True, description="gather the uncertainty of energies at the end, and store it in best.safetensors"
    )
    kcal: bool = Field(default=False, description="report errors in kcal/mol as well")

    @field_validator("loggers")
    @classmethod
    def _known_loggers(cls, value: list[str]) -> list[str]:
        for name in value:
            if name not in LOGGERS:
                raise ValueError(f"loggers must be any of {', '.join(LOGGERS)}, got {name!r}")
        return value


class FinetuneSection(Section):
    """Fine-tuning of an existing potential."""

    checkpoint: str | None = Field(default=None, description="potential to start from; null: train from scratch")
    head: str | None = Field(
        default=None, description="head of the checkpoint that heads new to it begin with; null: its default"
    )
    freeze: list[str] = Field(default=[], description="modules to freeze: [network.embedding, network.layers.0]")
    lora: Count | None = Field(
        default=None,
        description="rank of low-rank adapters (LoRA) of the linear maps, which are trained alone; null: all weights",
    )
    references: Literal["keep", "shift"] = Field(
        default="keep",
        description="reference energies: keep, or shift (least-squares fit to the errors of the checkpoint)",
    )
    replay: Files | None = Field(
        default=None,
        description="a store or files of structures that the checkpoint knows, trained along with the data",
    )
    replay_head: str | None = Field(
        default=None, description="head of the replayed frames; required with data.heads, which may have others"
    )
    replay_labels: Literal["base", "file"] = Field(
        default="base", description="labels of replayed frames: base (computed with the checkpoint), or file"
    )
    replay_share: Annotated[float, Field(gt=0, lt=1)] = Field(
        default=0.5, description="replayed frames as a fraction of each batch"
    )
    replay_weight: Positive = Field(default=1.0, description="factor of the weights of replayed frames in the loss")

    @model_validator(mode="after")
    def _adapters(self) -> FinetuneSection:
        if self.lora is not None and self.checkpoint is None:
            raise ValueError(f"lora needs a checkpoint to fine-tune, got lora {self.lora} without one")
        return self

    @model_validator(mode="after")
    def _replay(self) -> FinetuneSection:
        if self.replay is not None and (not self.replay or self.checkpoint is None):
            raise ValueError(
                "replay needs at least one file, and a checkpoint to fine-tune, got "
                f"replay {self.replay!r} and checkpoint {self.checkpoint!r}"
            )
        return self


class Config(Section):
    """Configuration of a training run."""

    model: ModelSection = ModelSection()
    data: DataSection = DataSection()
    loss: LossSection = LossSection()
    optimizer: OptimizerSection = OptimizerSection()
    schedule: ScheduleSection = ScheduleSection()
    training: TrainingSection = TrainingSection()
    output: OutputSection = OutputSection()
    finetune: FinetuneSection = FinetuneSection()

    @model_validator(mode="after")
    def _room_for_replay(self) -> Config:
        if self.finetune.replay is not None and self.training.batch_size < 2:
            raise ValueError(
                "training.batch_size must be >= 2 with finetune.replay, for a new and a replayed frame, "
                f"got {self.training.batch_size}"
            )
        return self

    @model_validator(mode="after")
    def _heads(self) -> Config:
        heads, finetune = self.data.heads, self.finetune
        if finetune.replay_head is not None:
            require_head_name(finetune.replay_head)
        if bool(heads and finetune.replay) != (finetune.replay_head is not None):
            raise ValueError(
                "finetune.replay_head must be given with finetune.replay and data.heads, which name the heads of "
                f"replayed and new frames, got replay_head {finetune.replay_head!r} and the heads "
                f"{', '.join(heads) or 'none'}"
            )
        unknown = [name for name in self.loss.head_weights if name not in (*heads, finetune.replay_head)]
        if unknown:
            raise ValueError(
                f"loss.head_weights must name heads of data.heads, {', '.join(heads) or 'none'}, got {unknown[0]!r}"
            )
        return self

    def plain(self) -> dict[str, Any]:
        """The values as nested dictionaries of JSON types."""
        return self.model_dump(mode="json")
