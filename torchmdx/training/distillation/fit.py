"""The training of a fast model: its length by the measured time of a step."""

from __future__ import annotations

import shutil
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from torchmdx.checkpoints.save_load import load_one
from torchmdx.datasets.splits import Split
from torchmdx.datasets.store import Store
from torchmdx.models.potential import Potential
from torchmdx.runtime.interrupt import Interrupts
from torchmdx.training.config import Config, ModelSection
from torchmdx.training.distillation.frames import SPLIT, STORE
from torchmdx.training.distillation.settings import TRAINING, DistillSettings
from torchmdx.training.loop import BEST, STATE
from torchmdx.training.progress import TrainingProgress
from torchmdx.training.run import open_trainer

FOLDER, TRIAL = "training", "trial"
ATOMS_A_STEP = {"cpu": 350, "cuda": 2_000}  # small batches: many steps count more than smooth ones
MOST_BATCH, FEWEST_STEPS = 64, 50  # frames of a step, steps of an epoch, if there are enough frames
RATE, RATE_OF_STARTED = 2e-3, 1e-3  # largest learning rates: of random weights, and of those of a fast model
WARM_UP, MEASURED = 3, 12  # steps of a trial
MOST_SECONDS = 20.0  # of a trial, which has fewer steps if they are slow
VALIDATIONS = 25
AVERAGED, LONGEST_MEMORY = 50, 0.999  # the saved weights are averages over one in AVERAGED of all steps


def batch_size_of(store: Store, train: np.ndarray, request: DistillSettings, device: torch.device) -> int:
    """Frames of a step."""
    if request.batch_size is not None:
        return request.batch_size
    by_atoms = ATOMS_A_STEP[device.type] / float(store.counts[train].mean())
    return max(1, min(MOST_BATCH, round(by_atoms), len(train) // FEWEST_STEPS or 1))


def config_of(
    model: ModelSection,
    folder: Path,
    request: DistillSettings,
    device: torch.device,
    batch_size: int,
    epochs: int,
    steps: int,
) -> Config:
    """The configuration of the training. steps: of an epoch.

    Forces count most: an integrator of multiple time steps uses no energy of the fast model.
    """
    return Config.model_validate(
        {
            "model": model.model_dump(),
            "finetune": {} if request.start is None else {"checkpoint": request.start, "references": "shift"},
            "data": {"path": str(folder / STORE), "split": str(folder / SPLIT), "checks": "off", "references": "fit"},
            "loss": {
                "energy": {"function": "huber", "delta": 0.01, "weight": 1.0},
                "forces": {"function": "huber", "delta": 0.2, "weight": 1.0},
            },
            "optimizer": {
                "learning_rate": request.learning_rate or (RATE if request.start is None else RATE_OF_STARTED),
                "ema_decay": min(LONGEST_MEMORY, max(0.0, 1 - AVERAGED / (epochs * steps))),
            },
            "schedule": {"warmup_steps": min(100, max(1, epochs * steps // 20))},
            "training": {
                "epochs": epochs,
                "batch_size": batch_size,
                "seed": request.seed,
                "device": str(device),
                "validate_every": max(1, epochs // VALIDATIONS),
            },
            "output": {
                "directory": str(folder / FOLDER),
                "loggers": ["csv"],
                "save_every": max(1, epochs // VALIDATIONS),
                "report": False,
            },
        }
    )


def seconds_of_a_step(config: Config, folder: Path) -> float:
    """Of a training step, by a few steps in a folder that is removed.

    Each batch is taken twice, and the second time counts: a GPU captures a step for every new size of a batch, which
    takes many times as long, but happens once in a training.
    """
    trial = config.model_copy(update={"output": config.output.model_copy(update={"directory": str(folder / TRIAL)})})
    shutil.rmtree(folder / TRIAL, ignore_errors=True)
    try:
        with open_trainer(trial) as trainer:
            taken: list[float] = []
            start = time.perf_counter()
            for epoch in range(WARM_UP + MEASURED):
                for labelled in trainer.train.epoch(epoch, 0):
                    trainer.step(labelled)
                    _wait(trainer.potential.device)
                    began = time.perf_counter()
                    trainer.step(labelled)
                    _wait(trainer.potential.device)
                    taken.append(time.perf_counter() - began)
                    measured = taken[WARM_UP:]
                    if len(measured) >= MEASURED or (measured and time.perf_counter() - start > MOST_SECONDS):
                        return float(np.mean(measured))
            return float(np.mean(taken[WARM_UP:] or taken))
    finally:
        shutil.rmtree(folder / TRIAL, ignore_errors=True)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def choose(
    model: ModelSection, folder: Path, request: DistillSettings, device: torch.device, store: Store, parts: Split
) -> dict[str, Any]:
    """Batch size, epochs and the measured time of a step: the share of the time that training has."""
    batch_size = batch_size_of(store, parts["train"], request, device)
    steps = max(1, len(parts["train"]) // batch_size)
    if request.epochs is not None:
        return {"batch_size": batch_size, "epochs": request.epochs, "steps": steps, "seconds_of_a_step": None}
    seconds = seconds_of_a_step(config_of(model, folder, request, device, batch_size, 1, steps), folder)
    epochs = max(1, int(request.seconds(TRAINING) / (seconds * steps)))
    return {"batch_size": batch_size, "epochs": epochs, "steps": steps, "seconds_of_a_step": seconds}


def train(config: Config, interrupts: Interrupts) -> bool:
    """Trains, or continues; False if a signal stopped it."""
    resume = (Path(config.output.directory) / STATE).exists()
    with open_trainer(config, resume) as trainer:
        progress = TrainingProgress(sys.stderr, config.training.epochs, trainer.epoch + 1)
        try:
            with progress.taking_messages():
                return trainer.run(progress, interrupts)
        finally:
            progress.finish()


def trained(folder: Path, device: torch.device, dtype: torch.dtype) -> Potential:
    """The best weights of the training."""
    return load_one(folder / FOLDER / BEST, device=device, dtype=dtype)
