"""How many labels of density functional theory turn organic-1 into a potential of that level of theory.

    python -m benchmarks.learning_dft label --folder FOLDER [--workers 16] [--seconds 400]
    python -m benchmarks.learning_dft tests --folder FOLDER
    python -m benchmarks.learning_dft fit --folder FOLDER [--seconds 150] [--device cuda]
    python -m benchmarks.learning_dft record --folder FOLDER

label: frames of dynamics with organic-1 at 300 and 600 K, labelled with wB97M-D3BJ/def2-TZVPP by PySCF, in the order in
which all subsets grow, until the time is over; the same command continues. tests: GFN2-xTB labels of the test frames.
fit: trainings on the first frames of every molecule in TRAINED, and on all, with two heads (DFT, and organic-1 on
frames of REPLAYED and TRAINED, which it labels itself), with one head and no replay, and from random weights. Rows have
the errors against DFT on later frames of these molecules (known) and on frames of the molecules in UNSEEN, and against
GFN2-xTB on the same frames, of the head that keeps organic-1; within: root mean square error of the energies of one
molecule about their mean. Results go to learning_dft.json.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import ase
import numpy as np
from ase import units
from ase.build import molecule
from ase.io import read, write
from ase.md.langevin import Langevin
from ase.md.velocitydistribution import MaxwellBoltzmannDistribution

import torchmdx
from benchmarks import record
from benchmarks.learning_cases import organic

TRAINED = ("CH3OH", "H3CNH2", "HCOOH", "H2CO", "CH3CN", "CH3CHO", "C2H6", "HCN", "H2CCO", "CH2NHCH2")
UNSEEN = ("CH3CH2OH", "CH2OCH2", "CH3OCH3", "CH3CH2NH2", "C3H6_Cs")
REPLAYED = (
    "C3H8", "isobutane", "C2H4", "butadiene", "isobutene", "C6H6", "C5H5N", "C4H4NH", "H2O", "NH3", "CH3COOH",
    "CH3CONH2", "N2H4", "CH3NO2", "2-butyne", "cyclobutane", "CH3COCH3", "OCHCHO", "C2H6NH", "H2CCHCN",
)  # fmt: skip
OF_EACH_REPLAYED = 8  # frames
TESTED = 2  # frames of each molecule, after those that are trained on, where there are any
SIZES = (2, 4, 8)  # frames of each molecule in TRAINED
LEVEL = {"xc": "wb97m-d3bj", "basis": "def2-tzvpp", "auxbasis": "def2-universal-jkfit", "device": "cpu"}
KEYS = ("start", "frames", "reference", "set")
HEADS, ALONE, ANEW = STARTS = ("heads", "alone", "anew")  # of a training
DFT, KEPT = "dft", "base"  # heads
KEYS_OF_LABELS = {"energy_key": "REF_energy", "forces_key": "REF_forces"}
KELVIN = (300.0, 600.0)
EVERY = 100  # steps of 0.5 fs between frames
REPLAY, CHEAP, FRAMES, WAITING = "replay.extxyz", "gfn2.extxyz", "frames.json", "waiting.json"


def trajectory(name: str, temperature: float, count: int) -> list[ase.Atoms]:
    """Frames of dynamics with organic-1."""
    import torch

    torch.set_num_threads(1)
    rng, atoms, found = np.random.RandomState(int(temperature)), molecule(name), []
    atoms.set_initial_magnetic_moments(np.zeros(len(atoms)))
    atoms.calc = organic()
    MaxwellBoltzmannDistribution(atoms, temperature_K=temperature, rng=rng)
    motion = Langevin(atoms, 0.5 * units.fs, temperature_K=temperature, friction=0.01 / units.fs, rng=rng)
    for _ in range(count):
        motion.run(EVERY)
        found.append(ase.Atoms(atoms.numbers, atoms.positions, info={"molecule": name}))
    return found


def frames_of(names: tuple[str, ...], counts: list[int], workers: int) -> dict[str, list[ase.Atoms]]:
    """`counts` frames of each of `names`, at 300 and 600 K in turn."""
    jobs = [(name, kelvin, -(-count // 2)) for name, count in zip(names, counts, strict=True) for kelvin in KELVIN]
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        made = list(pool.map(trajectory, *zip(*jobs, strict=True)))
    found = {}
    for k, (name, count) in enumerate(zip(names, counts, strict=True)):
        found[name] = [one for pair in zip(*made[2 * k : 2 * k + 2], strict=True) for one in pair][:count]
    return found


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
    pool, waiting = (json.loads((folder / name).read_text()) for name in (FRAMES, WAITING))
    for place in waiting[worker::workers]:
        if time.monotonic() - began > seconds:
            break
        name, numbers, positions = pool[place]
        atoms, started = ase.Atoms(numbers, positions), time.monotonic()
        labels = labeller.labels(UnlabelledStructure.from_ase(atoms))
        atoms.info |= {"molecule": name, "place": place, "seconds": time.monotonic() - started}
        atoms.info["REF_energy"], atoms.arrays["REF_forces"] = labels.energy, labels.forces
        write(path, atoms, append=True, format="extxyz")


def label(folder: Path, workers: int, seconds: float) -> None:
    """All frames, by `workers` processes of one thread."""
    folder.mkdir(parents=True, exist_ok=True)
    began, path = time.monotonic(), folder / FRAMES
    if not path.exists():
        most, names = TESTED + SIZES[-1], (*TRAINED, *UNSEEN, *REPLAYED)
        counts = [most] * len(TRAINED) + [TESTED] * len(UNSEEN) + [OF_EACH_REPLAYED] * len(REPLAYED)
        pools = frames_of(names, counts, workers)
        # Those that are to be labelled by DFT, too: the head that keeps organic-1 has to keep it for them.
        known = [one for name in TRAINED for one in pools[name][TESTED:]]
        write(folder / REPLAY, [one for name in REPLAYED for one in pools[name]] + known, format="extxyz")
        chosen = [(name, pools[name][k]) for name, k in plan()]
        path.write_text(json.dumps([(name, one.numbers.tolist(), one.positions.tolist()) for name, one in chosen]))
    done = {atoms.info["place"] for atoms in labelled(folder)}
    (folder / WAITING).write_text(json.dumps([place for place in range(len(plan())) if place not in done]))
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
    """Test frames by name of the set, and training frames by their number.

    These are the first of each molecule in TRAINED, as many as SIZES says and as far as all are there, and all.
    """
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
            found[len(own)] = own
    return tests, found | ({len(training): [atoms for _, atoms in training]} if training else {})


def fit_one(folder: Path, start: str, count: int, device: str) -> None:
    """A training on this number of frames, of which the last epoch is kept; its folder has best.safetensors."""
    from torchmdx.commands.cli import main as command

    run, data = folder / f"{start}-{count}", folder / f"train-{count}.extxyz"
    if (run / "done").exists():
        return
    write(data, subsets(labelled(folder))[1][count], format="extxyz")
    settings: dict[str, Any] = {
        "data": {"path": str(data), "validation": 0, "test": 0, "checks": "warn", **KEYS_OF_LABELS},
        "training": {"epochs": 60, "batch_size": max(4, count // 10), "device": device},
        "optimizer": {"learning_rate": 4e-4},
        "output": {"directory": str(run), "report": False, "loggers": ["csv"], "uncertainty": False},
    }
    if start == ANEW:
        settings["model"] = {"num_channels": 64, "num_layers": 2, "cutoff": 5.0}
        settings["optimizer"]["learning_rate"] = 4e-3
        settings["training"]["epochs"] = 150
    else:
        settings["finetune"] = {"checkpoint": "organic-1", "references": "shift"}
    if start == HEADS:
        del settings["data"]["path"]
        settings["data"]["heads"] = {DFT: [str(data)]}
        settings["finetune"] = {"checkpoint": "organic-1", "replay": str(folder / REPLAY), "replay_head": KEPT}
    file = folder / f"{start}-{count}.json"  # which is YAML too
    file.write_text(json.dumps(settings))
    assert command(["train", str(file), *(["--resume"] if run.exists() else [])]) == 0
    (run / "done").touch()


def cheap_labels(folder: Path) -> None:
    """Labels the test frames with GFN2-xTB."""
    from torchmdx.datasets.labelling.calculators import Choice
    from torchmdx.datasets.labelling.geometry import UnlabelledStructure
    from torchmdx.datasets.labelling.labeller import Labeller

    labeller, found = Labeller(Choice("gfn2-xtb")), []
    for own in subsets(labelled(folder))[0].values():
        for frame in own:
            atoms = ase.Atoms(frame.numbers, frame.positions, info=dict(frame.info))
            labels = labeller.labels(UnlabelledStructure.from_ase(atoms))
            atoms.info["REF_energy"], atoms.arrays["REF_forces"] = labels.energy, labels.forces
            found.append(atoms)
    write(folder / CHEAP, found, format="extxyz")


def errors(potential: str | Path, frames: list[ase.Atoms], head: str | None = None) -> dict[str, Any]:
    """Of forces, and of energies within a molecule."""
    calculator = torchmdx.Calculator(potential, device="cpu", head=head)
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
    references = {("DFT", name): own for name, own in tests.items()}
    if (folder / CHEAP).exists():
        cheap = read(folder / CHEAP, index=":")
        for name, chosen in (("known", TRAINED), ("unseen", UNSEEN)):
            references["GFN2-xTB", name] = [one for one in cheap if one.info["molecule"] in chosen]
    fitted: dict[tuple[str, int], str] = {("organic-1", 0): "organic-1"}
    for count in subsets(frames)[1]:
        for start in STARTS:
            if (folder / f"{start}-{count}" / "done").exists():
                fitted[start, count] = str(folder / f"{start}-{count}" / "best.safetensors")
    found = []
    for (start, count), potential in fitted.items():
        for (reference, name), own in references.items():
            head = {"DFT": DFT, "GFN2-xTB": KEPT}[reference] if start == HEADS else None
            key = {"start": start, "frames": count, "reference": reference, "set": name, "seconds_a_label": seconds}
            found.append(key | errors(potential, own, head))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("label", "share", "tests", "fit", "record"))
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
    elif options.what == "tests":
        cheap_labels(options.folder)
    elif options.what == "record":
        print(record.update("learning_dft", rows(options.folder), KEYS))
    else:
        began = time.monotonic()
        for count in reversed(subsets(labelled(options.folder))[1]):
            for start in STARTS:
                if time.monotonic() - began < options.seconds:
                    fit_one(options.folder, start, count, options.device)


if __name__ == "__main__":
    main()
