"""Fine-tunes a potential on 50 frames of a new element: all weights, adapters, replay of old data, or two heads."""

import shutil
from pathlib import Path

import ase.io
import numpy as np
from ase import Atoms

import torchmdx
from torchmdx.training import make_config, train

DATA = Path(__file__).parent / "data"
OUT = Path("out") / "15_fine_tune_without_forgetting"
PER_MOLECULE, TRAINED, VALIDATED = 23, 10, 13  # of each of five silanes; those after 13 are unseen


PARTS = {"train": str(OUT / "train.xyz"), "validation": str(OUT / "validation.xyz")}


def tuned(name: str, batch_size: int, data: dict[str, object] = PARTS, **finetune: object) -> Path:
    """The potential after 3 epochs, with 8 silanes in each batch."""
    config = {
        "data": data,
        "finetune": {"checkpoint": "organic-1", **finetune},
        "optimizer": {"learning_rate": 1e-3, "ema_decay": 0.99},
        "schedule": {"warmup_steps": 10},
        "training": {"epochs": 3, "batch_size": batch_size},
        "output": {"directory": str(OUT / name), "report": False, "loggers": ["csv"]},
    }
    if status := train(make_config(config)):
        raise SystemExit(status)
    return OUT / name / "best.safetensors"


def force_error(potential: Path | str, frames: list[Atoms]) -> float:
    """Mean absolute error of the forces, meV/Å."""
    calculator = torchmdx.Calculator(potential)
    found = [Atoms(a.numbers, a.positions, calculator=calculator).get_forces() - a.get_forces() for a in frames]
    return 1000 * float(np.abs(np.concatenate(found)).mean())


def main() -> None:
    shutil.rmtree(OUT, ignore_errors=True)
    OUT.mkdir(parents=True)
    frames = ase.io.read(DATA / "silanes.xyz", ":")
    ase.io.write(OUT / "train.xyz", [a for k, a in enumerate(frames) if k % PER_MOLECULE < TRAINED])
    ase.io.write(OUT / "validation.xyz", [a for k, a in enumerate(frames) if TRAINED <= k % PER_MOLECULE < VALIDATED])
    new = [a for k, a in enumerate(frames) if k % PER_MOLECULE >= VALIDATED]
    old = ase.io.read(DATA / "organic.xyz", ":")  # molecules that are neither trained nor replayed
    potentials = {"all weights": tuned("alone", 8), "adapters of rank 8": tuned("adapters", 8, lora=8)}
    replay = str(DATA / "organic_replay.xyz")
    potentials["all weights, with replay"] = tuned("replay", 16, replay=replay, replay_share=0.5)
    # A head for the silanes, and one for what is replayed; each is a potential.
    heads = {"heads": {"silanes": list(PARTS.values())}, "validation": 15}
    two = tuned("heads", 16, heads, replay=replay, replay_share=0.5, replay_head="organic")
    print(f"{'force errors on unseen frames, meV/Å':<38}{'silanes':>10}{'organic':>10}")
    print(f"{'  organic-1':<38}{'no Si':>10}{force_error('organic-1', old):>10.0f}")
    for name, potential in potentials.items():
        print(f"  {name:<36}{force_error(potential, new):>10.0f}{force_error(potential, old):>10.0f}")
    errors = force_error(f"{two}:silanes", new), force_error(f"{two}:organic", old)
    print(f"  {'two heads, with replay':<36}{errors[0]:>10.0f}{errors[1]:>10.0f}")


if __name__ == "__main__":
    main()
