"""One training of a program for the comparison of trainings: torchmdx, torchmd-net or MACE, with its predictions.

Each function trains in this process for a number of epochs, and notes the processor time at the end of each epoch.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ase
import ase.io
import numpy as np
import torch

Predict = Callable[[list[ase.Atoms]], tuple[np.ndarray, list[np.ndarray]]]
CUTOFF, BATCH, CHANNELS = 4.0, 10, 32
# Of torchmdx and torchmd-net; MACE has two interactions, whose range is the same, 8 Å.
NETWORK = {"num_channels": CHANNELS, "num_layers": 1, "num_radial": 16, "cutoff": CUTOFF}


def by_calculator(calculator: Any) -> Predict:
    def predict(frames: list[ase.Atoms]) -> tuple[np.ndarray, list[np.ndarray]]:
        energies, forces = [], []
        for frame in frames:
            atoms = ase.Atoms(frame.numbers, frame.positions, calculator=calculator)
            energies.append(float(atoms.get_potential_energy()))
            forces.append(atoms.get_forces())
        return np.array(energies), forces

    return predict


def torchmdx(
    data: Path, work: Path, seed: int, rate: float, epochs: int | None, device: str, marks: list[float]
) -> Predict:
    """With epochs None: the default network and settings but for the rate, as long as the default."""
    from torchmdx import Calculator
    from torchmdx.training import make_config, open_trainer

    values: dict[str, Any] = {
        "data": {part: [str(data / f"{part}.xyz")] for part in ("train", "validation")}
        | {"energy_key": "REF_energy", "forces_key": "REF_forces", "checks": "warn"},
        "optimizer": {"learning_rate": rate},
        "training": {"seed": seed, "device": device},
        "output": {"directory": str(work), "report": False, "loggers": ["csv"], "save_every": 10**6},
    }
    if epochs is not None:
        values["training"] |= {"epochs": epochs, "batch_size": BATCH}
        values["model"] = dict(NETWORK)
    with open_trainer(make_config(values, [])) as trainer:
        for _ in trainer.epochs():
            marks.append(time.process_time())
    return by_calculator(Calculator(work / "best.safetensors", device="cpu", dtype=torch.float32))


def mace(
    data: Path, work: Path, seed: int, rate: float, epochs: int | None, device: str, marks: list[float]
) -> Predict:
    """With the network of MACE's tutorial, averaged weights, and energies last for the last quarter."""
    from mace import tools
    from mace.calculators import MACECalculator
    from mace.cli.run_train import run

    train = importlib.import_module("mace.tools.train")  # mace.tools.train is a function of it
    assert epochs is not None
    values: dict[str, Any] = {
        "name": "m", "model": "MACE", "num_interactions": 2, "num_channels": CHANNELS, "max_L": 0, "correlation": 2,
        "max_ell": 2, "r_max": CUTOFF, "E0s": "average", "energy_key": "REF_energy", "forces_key": "REF_forces",
        "batch_size": BATCH, "valid_batch_size": 20, "max_num_epochs": epochs, "start_swa": round(0.75 * epochs),
        "ema_decay": 0.99, "lr": rate, "scheduler_patience": max(3, epochs // 25), "patience": 10**6, "seed": seed,
        "device": device, "default_dtype": "float32", "num_workers": 0, "work_dir": work, "error_table": "PerAtomMAE",
        "train_file": data / "train.xyz", "valid_file": data / "validation.xyz",
    }  # fmt: skip
    original = train.train_one_epoch

    def noting(*args: Any, **kwargs: Any) -> None:
        marks.append(time.process_time())  # where the epoch before has ended with its validation
        original(*args, **kwargs)

    train.train_one_epoch = noting
    try:
        words = [f"--{key}={value}" for key, value in values.items()]
        run(tools.build_default_arg_parser().parse_args([*words, "--swa", "--ema", "--amsgrad"]))
    finally:
        train.train_one_epoch = original
    marks.append(marks[-1] + float(np.median(np.diff(marks[1:]))))  # the last epoch, whose end is not seen
    del marks[0]
    found = [path for name in ("m_stagetwo.model", "m.model") for path in sorted(work.rglob(name))]
    return by_calculator(MACECalculator(model_paths=str(found[0]), device=device, default_dtype="float32"))


def references(frames: list[ase.Atoms]) -> dict[int, float]:
    """Energies of the elements by least squares."""
    numbers = sorted({int(z) for a in frames for z in a.numbers})
    counts = np.array([[np.count_nonzero(a.numbers == z) for z in numbers] for a in frames])
    fitted = np.linalg.lstsq(counts, [a.info["REF_energy"] for a in frames], rcond=None)[0]
    return dict(zip(numbers, fitted.tolist(), strict=True))


def torchmdnet(
    data: Path, work: Path, seed: int, rate: float, epochs: int | None, device: str, marks: list[float]
) -> Predict:
    """With the network of torchmdx, by its own Lightning module; losses as in its example TensorNet-rMD17."""
    import lightning.pytorch as pl
    from lightning.pytorch.callbacks import Callback, ModelCheckpoint
    from torch_geometric.data import Data
    from torch_geometric.loader import DataLoader
    from torchmdnet.module import LNNP
    from torchmdnet.scripts.train import get_argparse

    assert epochs is not None
    pl.seed_everything(seed, verbose=False)
    sets = {part: ase.io.read(data / f"{part}.xyz", ":") for part in ("train", "validation")}
    fitted = references(sets["train"])

    def reference(atoms: ase.Atoms) -> float:
        return sum(fitted[int(z)] for z in atoms.numbers)

    def record(atoms: ase.Atoms) -> Data:
        return Data(
            z=torch.tensor(atoms.numbers),
            pos=torch.tensor(atoms.positions, dtype=torch.float32),
            y=torch.tensor([[atoms.info["REF_energy"] - reference(atoms)]], dtype=torch.float32),
            neg_dy=torch.tensor(atoms.arrays["REF_forces"], dtype=torch.float32),
        )

    records = {part: [record(a) for a in frames] for part, frames in sets.items()}
    settings = vars(get_argparse().parse_args([])) | dict(
        model="tensornet", embedding_dimension=CHANNELS, num_layers=1, num_rbf=16, cutoff_upper=CUTOFF, max_z=20,
        max_num_neighbors=64, derivative=True, y_weight=0.5, neg_dy_weight=0.5, ema_alpha_y=0.01,
        gradient_clipping=40.0, lr=rate, lr_patience=max(3, epochs // 25), lr_factor=0.5, lr_min=1e-8,
        lr_warmup_steps=100, seed=seed, precision=32, standardize=True, num_epochs=epochs, box_vecs=None,
    )  # fmt: skip
    energies = torch.cat([one.y for one in records["train"]])
    module = LNNP(settings, mean=energies.mean(), std=energies.std())

    class Noting(Callback):
        def on_train_epoch_end(self, *_: Any) -> None:
            marks.append(time.process_time())

    best = ModelCheckpoint(dirpath=work, monitor="val_total_mse_loss", save_top_k=1)
    trainer = pl.Trainer(
        max_epochs=epochs, accelerator=device, devices=1, callbacks=[Noting(), best], logger=False,
        inference_mode=False, gradient_clip_val=settings["gradient_clipping"], enable_progress_bar=False,
        enable_model_summary=False, num_sanity_val_steps=0,
    )  # fmt: skip
    loaders = [DataLoader(records[part], BATCH, shuffle=part == "train") for part in ("train", "validation")]
    trainer.fit(module, *loaders)
    state = torch.load(best.best_model_path, weights_only=False)["state_dict"]
    module.load_state_dict(state)
    model = module.model.eval()

    def predict(frames: list[ase.Atoms]) -> tuple[np.ndarray, list[np.ndarray]]:
        found, forces = [], []
        for atoms in frames:
            numbers, positions = torch.tensor(atoms.numbers), torch.tensor(atoms.positions, dtype=torch.float32)
            energy, force = model(numbers, positions)
            found.append(float(energy.detach()) + reference(atoms))
            forces.append(force.detach().numpy())
        return np.array(found), forces

    return predict


PROGRAMS = {"torchmdx": torchmdx, "torchmd-net": torchmdnet, "MACE": mace}
