"""Logs of a training run: CSV files, TensorBoard, Weights & Biases, MLflow."""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from torchmdx.report.history import EPOCHS, STEPS, HistoryFile
from torchmdx.runtime.files import write_whole

LOGGERS = ("csv", "tensorboard", "wandb", "mlflow")
TENSORBOARD = "torch.utils.tensorboard"
NEEDED = {  # the module that a logger imports, and what to do without it
    "tensorboard": (TENSORBOARD, "needs TensorBoard, which is not installed: pip install 'torchmdx[train]'"),
    "wandb": ("wandb", "is not installed: pip install wandb"),
    "mlflow": ("mlflow", "is not installed: pip install mlflow"),
}
RUN_ID, MLFLOW_ID = "wandb.json", "mlflow.json"  # the run of a directory


class Logs:
    """Writes values of steps and epochs to all selected loggers.

    Example::

        logs = Logs(directory, ("csv", "tensorboard"), config)
        logs.step(120, {"loss": 0.3, "lr": 1e-3})
        logs.epoch(1, 500, {"lr": 1e-3, "train_energy": 4.1, "validation_energy": 5.0})
        logs.close()

    `csv` writes steps.csv and epochs.csv. resume_at: the global step from which training continues. Later rows of a
    killed run are removed, so that the files equal those of an uninterrupted run. None starts new logs.

    Epoch values plotted in the report: `lr`, and with the prefix `train_` or `validation_`: `loss`, `energy` (mean
    absolute error, meV/atom), `forces` (meV/Å), `stress` (meV/Å³), `charges` (me), `dipole` (me Å).
    Other values are logged as well.

    Raises:
        ValueError: For an unknown logger.
        ImportError: For one that is not installed.
    """

    def __init__(
        self, directory: Path, loggers: tuple[str, ...], config: dict[str, Any], resume_at: int | None = None
    ) -> None:
        require_loggers(loggers)  # before any file is changed
        makers = _makers()
        directory = Path(directory)
        directory.mkdir(parents=True, exist_ok=True)
        self._loggers: list[_Logger] = []
        try:
            for name in dict.fromkeys(loggers):
                self._loggers.append(makers[name](directory, config, resume_at))
        except BaseException:
            self.close()
            raise

    def step(self, step: int, values: Mapping[str, float]) -> None:
        """Logs a global step, counted from 1."""
        for logger in self._loggers:
            logger.step(step, values)

    def epoch(self, epoch: int, step: int, values: Mapping[str, float]) -> None:
        """Logs an epoch, counted from 1, that ended with this global step."""
        for logger in self._loggers:
            logger.epoch(epoch, step, values)

    def close(self) -> None:
        """Closes all loggers; further calls do nothing."""
        while self._loggers:
            self._loggers.pop().close()


def require_loggers(loggers: Sequence[str]) -> None:
    """Raises ValueError for an unknown logger, ImportError for one that is not installed."""
    unknown = [name for name in loggers if name not in LOGGERS]
    if unknown:
        raise ValueError(f"loggers must be any of {', '.join(LOGGERS)}, got {unknown[0]!r}")
    for name in loggers:
        if name not in NEEDED:
            continue
        module, remedy = NEEDED[name]
        try:
            importlib.import_module(module)
        except ImportError as error:
            raise ImportError(f"the logger {name!r} {remedy}") from error


def _makers() -> dict[str, type[_Logger]]:
    return {"csv": _Csv, "tensorboard": _TensorBoard, "wandb": _WeightsAndBiases, "mlflow": _Mlflow}


class _Logger(Protocol):
    def __init__(self, directory: Path, config: dict[str, Any], resume_at: int | None) -> None: ...

    def step(self, step: int, values: Mapping[str, float]) -> None: ...

    def epoch(self, epoch: int, step: int, values: Mapping[str, float]) -> None: ...

    def close(self) -> None: ...


class _Csv(_Logger):
    def __init__(self, directory: Path, config: dict[str, Any], resume_at: int | None) -> None:
        self._steps = HistoryFile(directory / STEPS, ("step",), resume_at)
        self._epochs = HistoryFile(directory / EPOCHS, ("epoch", "step"), resume_at)

    def step(self, step: int, values: Mapping[str, float]) -> None:
        self._steps.write((step,), values)

    def epoch(self, epoch: int, step: int, values: Mapping[str, float]) -> None:
        self._epochs.write((epoch, step), values)

    def close(self) -> None:
        self._steps.close()
        self._epochs.close()


class _TensorBoard(_Logger):
    def __init__(self, directory: Path, config: dict[str, Any], resume_at: int | None) -> None:
        from torch.utils.tensorboard import SummaryWriter

        folder = directory / "tensorboard"
        if resume_at is None:
            for old in folder.glob("events.out.tfevents.*"):  # of a run that is replaced
                old.unlink()
        # purge_step hides later values of a killed run.
        purge = None if resume_at is None else resume_at + 1
        self._writer: Any = SummaryWriter(str(folder), purge_step=purge, flush_secs=10)
        if resume_at is None:
            self._writer.add_text("config", "```json\n" + json.dumps(config, indent=1, default=str) + "\n```", 0)

    def step(self, step: int, values: Mapping[str, float]) -> None:
        self._add("step", step, values)

    def epoch(self, epoch: int, step: int, values: Mapping[str, float]) -> None:
        self._add("epoch", step, {**values, "epoch": epoch})
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()

    def _add(self, kind: str, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._writer.add_scalar(f"{kind}/{name}", value, step)


class _WeightsAndBiases(_Logger):
    def __init__(self, directory: Path, config: dict[str, Any], resume_at: int | None) -> None:
        import wandb

        file = directory / RUN_ID
        known: dict[str, Any] = {}
        if resume_at is not None and file.exists():
            known = {"id": json.loads(file.read_text())["id"], "resume": "allow"}
        self._run: Any = wandb.init(
            project="torchmdx", name=directory.resolve().name, dir=str(directory), config=config, **known
        )
        write_whole(file, (json.dumps({"id": self._run.id}) + "\n").encode())

    def step(self, step: int, values: Mapping[str, float]) -> None:
        # A resumed run repeats steps that a killed run has logged; W&B keeps the first value.
        self._run.log({f"step/{name}": value for name, value in values.items()}, step=step)

    def epoch(self, epoch: int, step: int, values: Mapping[str, float]) -> None:
        self._run.log({**{f"epoch/{name}": value for name, value in values.items()}, "epoch/epoch": epoch}, step=step)

    def close(self) -> None:
        self._run.finish()


class _Mlflow(_Logger):
    def __init__(self, directory: Path, config: dict[str, Any], resume_at: int | None) -> None:
        import mlflow

        file = directory / MLFLOW_ID
        known: dict[str, Any] = {"run_name": directory.resolve().name}
        if resume_at is not None and file.exists():
            known = {"run_id": json.loads(file.read_text())["id"]}
        else:
            mlflow.set_experiment("torchmdx")
        self._mlflow: Any = mlflow
        self._run: Any = mlflow.start_run(**known)
        if "run_id" not in known:
            mlflow.log_dict(config, "config.json")
        write_whole(file, (json.dumps({"id": self._run.info.run_id}) + "\n").encode())

    def step(self, step: int, values: Mapping[str, float]) -> None:
        self._mlflow.log_metrics({f"step/{name}": float(value) for name, value in values.items()}, step=step)

    def epoch(self, epoch: int, step: int, values: Mapping[str, float]) -> None:
        named = {f"epoch/{name}": float(value) for name, value in values.items()}
        self._mlflow.log_metrics(named | {"epoch/epoch": float(epoch)}, step=step)

    def close(self) -> None:
        self._mlflow.end_run()
