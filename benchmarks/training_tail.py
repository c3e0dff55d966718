"""Errors of potentials trained on few frames with a heavy tail of forces, for several settings, and those of MACE.

    python -m benchmarks.training_tail FOLDER [--only default,...] [--seeds 0,1,2] [--mace PYTHON]

FOLDER has train.xyz, validation.xyz and test.xyz, with energy_xtb and forces_xtb: clusters of carbonate molecules, of
the tutorials of MACE (solvent_xtb_train_200.xyz: the first 180 and the last 20; solvent_xtb_test.xyz: the last 120).
PYTHON: of an environment with mace-torch 0.3.16. All run in one thread; cpu_s is the time of the training, without
imports of MACE, which count a few seconds. Results go to training_tail.json, in meV/atom and meV/Å.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import ase.io
import numpy as np

from benchmarks.record import update

BASE = {
    "model.num_channels": 32,
    "model.num_layers": 1,
    "model.num_radial": 16,
    "model.cutoff": 4.0,
    "training.batch_size": 10,
    "training.device": "cpu",
    "training.epochs": 30,
    "output.report": "false",
    "output.loggers": "[csv]",
    "data.energy_key": "energy_xtb",
    "data.forces_key": "forces_xtb",
}
DEFAULT_NETWORK = {"model.num_channels": 128, "model.num_layers": 2, "model.num_radial": 32, "model.cutoff": 5.0}
VARIANTS: dict[str, dict[str, Any]] = {
    "default": {},
    "huber": {"loss.forces.function": "huber", "loss.forces.delta": 0.1},
    "no clipping": {"optimizer.clip_norm": "null"},
    "clip 100": {"optimizer.clip_norm": 100},
    "ema 0.99": {"optimizer.ema_decay": 0.99},
    "no ema": {"optimizer.ema_decay": 0},
    "rate 2e-3": {"optimizer.learning_rate": 2e-3},
    "rate 4e-3": {"optimizer.learning_rate": 4e-3},
    "rate 1e-2": {"optimizer.learning_rate": 1e-2},
    "rate 4e-3 and energies last": {
        "optimizer.learning_rate": 4e-3,
        "loss.energy.weight": 0.1,
        "loss.energy.final_weight": 10.0,
        "loss.change_from": 0.75,
        "loss.change_to": 0.75,
    },
    "rate 4e-3 and huber": {
        "optimizer.learning_rate": 4e-3,
        "loss.forces.function": "huber",
        "loss.forces.delta": 0.1,
    },
    "no warm-up": {"schedule.warmup_steps": 20},
    "energy 1": {"loss.energy.weight": 1.0},
    "energies last": {
        "loss.energy.weight": 0.1,
        "loss.energy.final_weight": 10.0,
        "loss.change_from": 0.75,
        "loss.change_to": 0.75,
    },
    "batch 5": {"training.batch_size": 5},
}
MACE = {
    "model": "MACE", "hidden_irreps": "32x0e", "r_max": 4.0, "batch_size": 10, "max_num_epochs": 60, "ema": None,
    "ema_decay": 0.99, "energy_key": "energy_xtb", "forces_key": "forces_xtb", "E0s": "isolated", "device": "cpu",
    "default_dtype": "float32", "valid_batch_size": 20, "scheduler_patience": 5, "patience": 200,
}  # fmt: skip


def errors(energies: list[float], forces: list[np.ndarray], test: list[ase.Atoms]) -> dict[str, float]:
    """Mean absolute and root mean square errors, and those of the largest hundredth of forces on atoms."""
    energy = np.array([1e3 * (e - a.info["energy_xtb"]) / len(a) for e, a in zip(energies, test, strict=True)])
    labels = np.concatenate([a.arrays["forces_xtb"] for a in test])
    force = 1e3 * (np.concatenate(forces) - labels)
    norms = np.linalg.norm(labels, axis=1)
    tail = force[norms > np.quantile(norms, 0.99)]
    found = {"energy": energy, "force": force, "tail_force": tail}
    return {
        f"{name}_{kind}": round(float(value), 1)
        for name, one in found.items()
        for kind, value in (("mae", np.abs(one).mean()), ("rmse", np.sqrt((one**2).mean())))
    }


def timed(command: list[str], cwd: Path) -> float:
    """CPU time of a command, s."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    with (cwd / "log").open("w") as log:
        subprocess.run(command, cwd=cwd, check=True, stdout=log, stderr=log, env=os.environ | {"OMP_NUM_THREADS": "1"})
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before


def trained(data: Path, settings: dict[str, Any], seed: int) -> tuple[float, dict[str, float]]:
    """CPU time and errors of one training of torchmdx."""
    from torchmdx import Calculator

    values = {**BASE, **settings, "training.seed": seed, "output.directory": "run"}
    values |= {f"data.{part}": f"[{data / part}.xyz]" for part in ("train", "validation")}
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "empty.yaml").write_text("{}\n")
        words = [word for key, value in values.items() for word in (f"--{key}", str(value))]
        command = [sys.executable, "-m", "torchmdx.commands.cli", "train", "empty.yaml", *words]
        seconds = timed(command, Path(folder))
        calculator = Calculator(Path(folder) / "run" / "best.safetensors", device="cpu")
        test = ase.io.read(data / "test.xyz", ":")
        energies, forces = [], []
        for frame in test:
            atoms = ase.Atoms(frame.numbers, frame.positions, calculator=calculator)
            energies.append(atoms.get_potential_energy())
            forces.append(atoms.get_forces())
    return seconds, errors(energies, forces, test)


def of_mace(data: Path, python: str, seed: int, epochs: int) -> tuple[float, dict[str, float]]:
    """The same of MACE, with the settings of its tutorial."""
    scripts = Path(python).parent
    with tempfile.TemporaryDirectory() as folder:
        values: dict[str, Any] = {**MACE, "name": "m", "seed": seed, "max_num_epochs": epochs}
        values |= {"train_file": data / "train.xyz", "valid_file": data / "validation.xyz"}
        values |= {"swa": None, "start_swa": round(0.75 * epochs), "E0s": "isolated"}
        words = [f"--{key}" if value is None else f"--{key}={value}" for key, value in values.items()]
        words = [word for word in words if not word.startswith("--E0s")]
        seconds = timed([python, str(scripts / "mace_run_train"), *words], Path(folder))
        found = []
        for name in ("m_stagetwo.model", "m.model"):
            if (Path(folder) / name).exists():
                configs, model = f"--configs={data / 'test.xyz'}", f"--model={Path(folder) / name}"
                command = [python, str(scripts / "mace_eval_configs"), configs, model, "--output=out.xyz"]
                timed([*command, "--device=cpu", "--default_dtype=float32", "--batch_size=20"], Path(folder))
                found.append(ase.io.read(Path(folder) / "out.xyz", ":"))
                break
        out, test = found[0], ase.io.read(data / "test.xyz", ":")
        return seconds, errors([a.info["MACE_energy"] for a in out], [a.arrays["MACE_forces"] for a in out], test)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", default=",".join(VARIANTS))
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--mace")
    parser.add_argument("--channels", type=int, default=32, help="128: the default network, of 2 layers and 5 Å")
    parser.add_argument("--epochs", type=int, default=30)
    options = parser.parse_args()
    data = options.folder.resolve()
    names = ["MACE"] if options.mace else options.only.split(",")
    for seed in map(int, options.seeds.split(",")):
        for name in names:
            if options.mace:
                made = of_mace(data, options.mace, seed, options.epochs)
            else:
                network = DEFAULT_NETWORK if options.channels == 128 else {"model.num_channels": options.channels}
                made = trained(data, VARIANTS[name] | network | {"training.epochs": options.epochs}, seed)
            row = {
                "settings": name,
                "channels": options.channels,
                "seed": seed,
                "epochs": options.epochs,
                "cpu_s": round(made[0]),
                **made[1],
            }
            print(json.dumps(row), flush=True)
            update("training_tail", [row], ("settings", "channels", "seed", "epochs"))


if __name__ == "__main__":
    main()
