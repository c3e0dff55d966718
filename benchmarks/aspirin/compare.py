"""Trains on aspirin, with torchmdx and torchmd-net: the same frames, split, network, batches, epochs and test frames.

    python -m benchmarks.aspirin.compare aspirin.npz [--epochs 100] [--only ours|peer]

aspirin.npz comes from make_geometries.py: 500 K, GFN2-xTB. 950 frames train, 50 validate, 1,000 test, drawn at random.
2 layers, 128 channels, 32 radial functions, 4.5 Å, batches of 8, float32: torchmd-net's settings for rMD17. Each side
learns with the schedule it comes with. Wall clock is of the whole command, from start to the best checkpoint and back.
torchmd-net is given energies without their mean, which it has no other way to learn.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.record import environment, write

TRAIN, VALIDATION, TEST, BATCH, CUTOFF = 950, 50, 1000, 8, 4.5
PEER = """
activation: silu
atom_filter: -1
batch_size: {batch}
coord_files: {folder}/coord.npy
cutoff_lower: 0.0
cutoff_upper: {cutoff}
dataset: Custom
dataset_root: {folder}
derivative: true
early_stopping_patience: 1000
ema_alpha_neg_dy: 1.0
ema_alpha_y: 0.05
embed_files: {folder}/embed.npy
embedding_dimension: 128
energy_files: {folder}/energy.npy
equivariance_invariance_group: O(3)
force_files: {folder}/forces.npy
gradient_clipping: 40
inference_batch_size: 64
log_dir: {folder}/log
lr: 0.001
lr_factor: 0.8
lr_min: 1.0e-07
lr_patience: 15
lr_warmup_steps: 500
max_num_neighbors: 64
max_z: 100
model: tensornet
neg_dy_weight: 0.95
ngpus: {gpus}
num_epochs: {epochs}
num_layers: 2
num_rbf: 32
num_workers: 2
output_model: Scalar
precision: 32
rbf_type: expnorm
save_interval: 5
seed: 1
splits: {folder}/splits.npz
test_interval: -1
train_size: {train}
trainable_rbf: false
val_size: {validation}
weight_decay: 0.0
y_weight: 0.05
"""


def parts(count: int) -> dict[str, np.ndarray]:
    order = np.random.default_rng(0).permutation(count)
    ends = np.cumsum([TRAIN, VALIDATION, TEST])
    train, validation, test = np.split(order, ends)[:3]
    return dict(train=np.sort(train), validation=np.sort(validation), test=np.sort(test))


def errors(energy: np.ndarray, forces: np.ndarray, labels: dict[str, np.ndarray], test: np.ndarray) -> dict[str, float]:
    """Mean absolute errors, meV and meV/Å."""
    return dict(
        energy_mae_mev=round(float(np.abs(energy - labels["E"][test]).mean() * 1e3), 3),
        force_mae_mev_per_angstrom=round(float(np.abs(forces - labels["F"][test]).mean() * 1e3), 3),
    )


def ours(labels: dict[str, np.ndarray], split: dict[str, np.ndarray], epochs: int, folder: Path) -> dict[str, Any]:
    from torchmdx import load
    from torchmdx.datasets.frames import Frames
    from torchmdx.datasets.splits import write_split
    from torchmdx.datasets.store import Store, StoreWriter
    from torchmdx.evaluation.derivatives import evaluate
    from torchmdx.structures.system import Batch, System

    with StoreWriter(folder / "aspirin.store") as writer:
        for k, positions in enumerate(labels["R"]):
            frame = Frames.single(positions, labels["z"], energy=float(labels["E"][k]), forces=labels["F"][k])
            writer.add(frame, "aspirin.npz", k)
    write_split(folder / "split.json", split, Store.open(folder / "aspirin.store"))
    settings = {
        "data.path": folder / "aspirin.store", "data.split": folder / "split.json", "model.cutoff": CUTOFF,
        "training.epochs": epochs, "training.batch_size": BATCH, "training.validation_batch_size": VALIDATION,
        "output.directory": folder / "run", "output.report": "false",
    }  # fmt: skip
    words = [word for key, value in settings.items() for word in (f"--{key}", str(value))]
    (folder / "config.yaml").write_text("{}\n")
    start = time.perf_counter()
    subprocess.run(
        [sys.executable, "-m", "torchmdx.commands.cli", "train", str(folder / "config.yaml"), *words], check=True
    )
    seconds = time.perf_counter() - start
    device = "cuda" if torch.cuda.is_available() else "cpu"
    potential = load(folder / "run" / "best.safetensors", device=device)
    energy, forces = [], []
    for chunk in np.array_split(split["test"], 10):
        systems = [System.create(labels["R"][k], labels["z"], device=device) for k in chunk]
        result = evaluate(potential, Batch.from_systems(systems))
        energy.append(result.energy.cpu().numpy())
        forces.append(result.forces.cpu().numpy().reshape(len(chunk), -1, 3))
    found = errors(np.concatenate(energy), np.concatenate(forces), labels, split["test"])
    return dict(by="torchmdx", epochs=epochs, seconds=round(seconds, 1), **found)


def peer(labels: dict[str, np.ndarray], split: dict[str, np.ndarray], epochs: int, folder: Path) -> dict[str, Any]:
    mean = labels["E"][split["train"]].mean()
    for name, values in dict(
        coord=labels["R"].astype(np.float32),
        forces=labels["F"].astype(np.float32),
        energy=(labels["E"] - mean).astype(np.float32)[:, None],
        embed=labels["z"],
    ).items():
        np.save(folder / f"{name}.npy", values)
    np.savez(folder / "splits.npz", idx_train=split["train"], idx_val=split["validation"], idx_test=split["test"])
    gpus = 1 if torch.cuda.is_available() else -1
    values = dict(
        batch=BATCH, folder=folder, cutoff=CUTOFF, gpus=gpus, epochs=epochs, train=TRAIN, validation=VALIDATION
    )
    (folder / "peer.yaml").write_text(PEER.format(**values))
    start = time.perf_counter()
    command = [sys.executable, "-W", "ignore", "-m", "torchmdnet.scripts.train", "--conf", str(folder / "peer.yaml")]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    seconds = time.perf_counter() - start
    from torchmdnet.models.model import load_model

    best = min(
        (folder / "log").glob("epoch=*.ckpt"), key=lambda path: float(path.stem.split("val_loss=")[1].split("-")[0])
    )
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = load_model(str(best), derivative=True, device=device)
    energy, forces = [], []
    for chunk in np.array_split(split["test"], 10):
        positions = torch.tensor(labels["R"][chunk].reshape(-1, 3), dtype=torch.float32, device=device)
        numbers = torch.tensor(np.tile(labels["z"], len(chunk)), device=device)
        index = torch.arange(len(chunk), device=device).repeat_interleave(len(labels["z"]))
        found, force = model(numbers, positions, index)
        energy.append(found.detach().double().cpu().numpy()[:, 0] + mean)
        forces.append(force.detach().cpu().numpy().reshape(len(chunk), -1, 3))
    result = errors(np.concatenate(energy), np.concatenate(forces), labels, split["test"])
    return dict(by="torchmd-net 3.1.0", epochs=epochs, seconds=round(seconds, 1), best=best.name, **result)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--only", choices=("ours", "peer"))
    options = parser.parse_args()
    with np.load(options.file) as file:
        labels = {name: file[name] for name in ("z", "R", "E", "F")}
    split = parts(len(labels["E"]))
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for name, work in (("ours", ours), ("peer", peer)):
            if options.only in (None, name):
                rows.append(work(labels, split, options.epochs, Path(folder)))
                print(json.dumps(rows[-1]), flush=True)
    print(json.dumps(environment()))
    print(write("aspirin", rows))


if __name__ == "__main__":
    main()
