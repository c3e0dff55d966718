"""Facts about the training, from a checkpoint and the folders of its training."""

from __future__ import annotations

import csv
import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from dynamics_molecules import weights_hash

import torchmdx
from torchmdx.checkpoints.save_load import located
from torchmdx.models.model_card import symbols


def training(checkpoint: str | Path | None, stages: list[Path], data: Path) -> dict[str, Any]:
    """Facts for the card. stages: folders of `torchmdx train`, in order. data: of `archive.py unpack`, for counts."""
    file = located(checkpoint)
    potential = torchmdx.load(file)
    config, card = potential.config, potential.card
    weights = sum(p.numel() for p in potential.parameters())
    priors = ", ".join(type(prior).__name__ for prior in potential.priors) or "none"
    return {
        "sha256": hashlib.sha256(file.read_bytes()).hexdigest(),
        "weights": weights_hash(file),
        "megabytes": file.stat().st_size / 1e6,
        "network": f"{type(config).__name__.removesuffix('Config')}, {config.num_layers} layers, {config.num_channels} "
        f"channels, {config.num_radial} radial functions, {config.cutoff:g} Å; {weights:,} weights; priors: {priors}",
        "elements": symbols(card.elements or ()),
        "charges": ", ".join(f"{q:+g}" if q else "0" for q in card.charges or ()),
        "frames": frames_in(sorted(data.glob("train-*.npz"))),
        "stages": [_stage(folder) for folder in stages],
    }


def frames_in(files: list[Path]) -> int:
    """How many frames .npz files of `archive.py unpack` have."""
    total = 0
    for path in files:
        with np.load(path, allow_pickle=False) as arrays:
            total += len(arrays["E"])
    return total


def _stage(folder: Path) -> dict[str, Any]:
    config = yaml.safe_load((folder / "config.yaml").read_text())
    environment = json.loads((folder / "environment.json").read_text())
    with (folder / "epochs.csv").open() as file:
        epochs = list(csv.DictReader(file))
    best = min(epochs, key=lambda row: float(row["validation_loss"] or "inf"))
    forces = min(epochs, key=lambda row: float(row["validation_forces"] or "inf"))
    return {
        "epochs": len(epochs),
        "planned": config["training"]["epochs"],
        "batch_size": config["training"]["batch_size"],
        "precision": config["training"]["precision"],
        "learning_rate": config["optimizer"]["learning_rate"],
        "device": environment["device"],
        "validation_forces": float(best["validation_forces"]),
        "validation_energy": float(best["validation_energy"]),
        "best_epoch": int(best["epoch"]),
        "training_forces": float(best["train_forces"]),
        "training_energy": float(best["train_energy"]),
        "lowest_forces": float(forces["validation_forces"]),
        "lowest_forces_epoch": int(forces["epoch"]),
    }
