"""How many labels of density functional theory turn organic-1 into a potential of that level of theory.

    python -m benchmarks.learning_dft label --folder FOLDER [--workers 16] [--seconds 400]
    python -m benchmarks.learning_dft fit --folder FOLDER [--seconds 150] [--device cuda]
    python -m benchmarks.learning_dft record --folder FOLDER

label: frames of dynamics with organic-1 at 300 and 600 K, labelled with wB97M-D3BJ/def2-TZVPP by PySCF, in the order in
which all subsets grow, until the time is over; the same command goes on. fit: trainings on the first 1, 2, 4, ...
frames of every molecule in TRAINED, of organic-1 and from random weights. Rows have the errors on later frames of these
molecules (known), and on frames of the molecules in UNSEEN; within: root mean square error of the energies of one
molecule about their mean. Results go to learning_dft.json.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import ase
import numpy as np
from ase import units
from ase.build import molecule
from ase.io import iread, read, write
from ase.md.langevin import Langevin
from ase.md.velocitydistribution import MaxwellBoltzmannDistribution

import torchmdx
from benchmarks import record
from benchmarks.learning_cases import organic

TRAINED = (
    "CH3CHO", "CH3CH2OH", "CH3COOH", "CH3CONH2", "CH3CN", "CH3CH2NH2", "CH3OCH3", "HCOOCH3", "CH3COCH3", "H2CCHCN",
)  # fmt: skip
UNSEEN = ("C2H6CHOH", "OCHCHO", "C2H6NH", "C4H4O", "CH2OCH2", "CH3CH2OCH3")
TESTED = 4  # frames of each molecule, after those that are trained on, where there are any
SIZES = (1, 2, 4, 8, 16)  # frames of each molecule in TRAINED
LEVEL = {"xc": "wb97m-d3bj", "basis": "def2-tzvpp", "auxbasis": "def2-universal-jkfit", "device": "cpu"}
KEYS = ("start", "frames", "set")
KEYS_OF_LABELS = {"energy_key": "REF_energy", "forces_key": "REF_forces"}
EVERY = 200  # steps of 0.5 fs between frames


def frames_of(name: str, count: int) -> list[ase.Atoms]:
    """Frames of dynamics with organic-1, at 300 and 600 K in turn."""
    found: dict[float, list[ase.Atoms]] = {300.0: [], 600.0: []}
    for temperature, own in found.items():
        rng, atoms = np.random.RandomState(int(temperature)), molecule(name)
        atoms.set_initial_magnetic_moments(np.zeros(len(atoms)))
        atoms.calc = organic()
        MaxwellBoltzmannDistribution(atoms, temperature_K=temperature, rng=rng)
        motion = Langevin(atoms, 0.5 * units.fs, temperature_K=temperature, friction=0.01 / units.fs, rng=rng)
        for _ in range(-(-count // 2)):
            motion.run(EVERY)
            own.append(ase.Atoms(atoms.numbers, atoms.positions, info={"molecule": name}))
    return [own[k] for k in range(len(found[300.0])) for own in found.values()][:count]


def plan() -> list[tuple[str, int]]:
    """Molecules and frames in the order of labelling: for tests, then those that are trained on, size by size."""
    found = [(name, k) for k in range(TESTED) for name in (*TRAINED, *UNSEEN)]
    return found + [(name, TESTED + k) for k in range(SIZES[-1]) for name in TRAINED]


def label_share(folder: Path, worker: int, workers: int, seconds: float) -> None:
    """Labels every frame whose turn it is, one after another, each appended to a file."""
    from torchmdx.datasets.labelling.calculators import Choice
    from torchmdx.datasets.labelling.geometry import UnlabelledStructure
    from torchmdx.datasets.labelling.labeller import Labeller

    began, path, labeller = time.monotonic(), folder / f"labelled-{worker}.extxyz", Labeller(Choice("pyscf", LEVEL))
    done = {atoms.info["place"] for atoms in iread(path)} if path.exists() else set()
    pool = json.loads((folder / "frames.json").read_text())
    for place in range(worker, len(pool), workers):
        if place in done or time.monotonic() - began > seconds:
            continue
        name, numbers, positions = pool[place]
        atoms, started = ase.Atoms(numbers, positions), time.monotonic()
        labels = labeller.labels(UnlabelledStructure.from_ase(atoms))
        atoms.info |= {"molecule": name, "place": place, "seconds": time.monotonic() - started}
        atoms.info["REF_energy"], atoms.arrays["REF_forces"] = labels.energy, labels.forces
        write(path, atoms, append=True, format="extxyz")


def label(folder: Path, workers: int, seconds: float) -> None:
    """All frames, by `workers` processes of one thread."""
    folder.mkdir(parents=True, exist_ok=True)
    began, path = time.monotonic(), folder / "frames.json"
    if not path.exists():
        most = TESTED + SIZES[-1]
        pools = {name: frames_of(name, most if name in TRAINED else TESTED) for name in (*TRAINED, *UNSEEN)}
        chosen = [(name, pools[name][k]) for name, k in plan()]
        path.write_text(json.dumps([(name, one.numbers.tolist(), one.positions.tolist()) for name, one in chosen]))
    left = seconds - (time.monotonic() - began)
    environment = os.environ | dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    command = [sys.executable, "-m", "benchmarks.learning_dft", "share", "--folder", str(folder)]
    command += ["--workers", str(workers), "--seconds", str(left), "--worker"]
    processes = [subprocess.Popen([*command, str(k)], env=environment) for k in range(workers)]
    for process in processes:
        try:
            process.wait(max(0.1, seconds - (time.monotonic() - began)))
        except subprocess.TimeoutExpired:
            process.kill()  # a frame that is half done is done again
    times = [atoms.info["seconds"] for atoms in labelled(folder)]
    print(f"{len(times)} of {len(plan())} frames are labelled, {np.mean(times or [0]):.1f} s each")


def labelled(folder: Path) -> list[ase.Atoms]:
    """All labelled frames, in the order of the plan."""
    found = [atoms for path in folder.glob("labelled-*.extxyz") for atoms in read(path, index=":")]
    return sorted(found, key=lambda atoms: int(atoms.info["place"]))


def subsets(frames: list[ase.Atoms]) -> tuple[dict[str, list[ase.Atoms]], dict[int, list[ase.Atoms]]]:
    """Test frames by name of the set, and training frames by number of each molecule, as far as all are there."""
    of, tests, training = plan(), {"known": [], "unseen": []}, []  # type: ignore[var-annotated]
    for atoms in frames:
        name, k = of[int(atoms.info["place"])]
        if k < TESTED:
            tests["known" if name in TRAINED else "unseen"].append(atoms)
        else:
            training.append((k - TESTED, atoms))
    found = {}
    for size in SIZES:
        own = [atoms for k, atoms in training if k < size]
        if len(own) == size * len(TRAINED):
            found[size] = own
    return tests, found


def fit_one(folder: Path, start: str, size: int, device: str) -> Path:
    """A training; its folder has best.safetensors."""
    from torchmdx.commands.cli import main as command

    run = folder / f"{start}-{size}"
    if not (run / "done").exists():
        data = folder / f"train-{size}.extxyz"
        write(data, subsets(labelled(folder))[1][size], format="extxyz")
        tuned = start == "organic-1"
        settings: dict[str, Any] = {
            "data": {"path": str(data), "validation": 0.1, "test": 0, "checks": "warn", **KEYS_OF_LABELS},
            "training": {"epochs": 60, "batch_size": max(2, size * len(TRAINED) // 10), "device": device},
            "optimizer": {"learning_rate": 4e-4 if tuned else 1e-3},
            "output": {"directory": str(run), "report": False, "loggers": ["csv"], "uncertainty": False},
        }
        if tuned:
            settings["finetune"] = {"checkpoint": "organic-1", "references": "shift"}
        else:
            settings["model"] = {"num_channels": 64, "num_layers": 2, "cutoff": 5.0}
            settings["training"]["epochs"] = 150
        file = folder / f"{start}-{size}.json"  # which is YAML too
        file.write_text(json.dumps(settings))
        assert command(["train", str(file), *(["--resume"] if run.exists() else [])]) == 0
        (run / "done").touch()
    return run / "best.safetensors"


def errors(potential: str | Path, frames: list[ase.Atoms]) -> dict[str, Any]:
    """Of forces, and of energies within a molecule."""
    calculator = torchmdx.Calculator(potential, device="cpu")
    forces, energies = [], {}  # type: ignore[var-annotated]
    for frame in frames:
        atoms = ase.Atoms(frame.numbers, frame.positions, calculator=calculator)
        forces.append((atoms.get_forces() - frame.arrays["REF_forces"]).ravel())
        energies.setdefault(frame.info["molecule"], []).append(atoms.get_potential_energy() - frame.info["REF_energy"])
    every = np.concatenate(forces)
    within = np.concatenate([np.array(one) - np.mean(one) for one in energies.values() if len(one) > 1])
    return {
        "tests": len(frames),
        "force_rmse_meV": 1e3 * float(np.sqrt((every**2).mean())),
        "force_mae_meV": 1e3 * float(np.abs(every).mean()),
        "within_meV": 1e3 * float(np.sqrt((within**2).mean())),
    }


def rows(folder: Path) -> list[dict[str, Any]]:
    """Errors of organic-1 as it is, and of every training that is complete."""
    frames = labelled(folder)
    tests, _ = subsets(frames)
    seconds = float(np.mean([atoms.info["seconds"] for atoms in frames]))
    fitted = {("organic-1", 0): "organic-1"}
    for size in SIZES:
        for start in ("organic-1", "anew"):
            if (folder / f"{start}-{size}" / "done").exists():
                fitted[start, size * len(TRAINED)] = str(folder / f"{start}-{size}" / "best.safetensors")
    return [
        {"start": start, "frames": count, "set": name, "seconds_a_label": seconds} | errors(potential, own)
        for (start, count), potential in fitted.items()
        for name, own in tests.items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("label", "share", "fit", "record"))
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--workers", type=int, default=16)
    parser.add_argument("--worker", type=int, default=0, help="of share, which label starts")
    parser.add_argument("--seconds", type=float, default=400.0)
    parser.add_argument("--device", default="auto")
    options = parser.parse_args()
    if options.what == "label":
        label(options.folder, options.workers, options.seconds)
    elif options.what == "share":
        label_share(options.folder, options.worker, options.workers, options.seconds)
    elif options.what == "record":
        print(record.update("learning_dft", rows(options.folder), KEYS))
    else:
        began = time.monotonic()
        for size in subsets(labelled(options.folder))[1]:
            for start in ("organic-1", "anew"):
                if time.monotonic() - began < options.seconds:
                    fit_one(options.folder, start, size, options.device)


if __name__ == "__main__":
    main()
