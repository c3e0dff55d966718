"""Times training steps of released potentials: torchmdx, its own network, and the programs they were released with.

    python -m benchmarks.fine_tuning [FOLDER] [--peer] [--only aceff-2.0]

FOLDER (or $RELEASED_POTENTIALS) as for benchmarks.released. float32. ms: of a step, as in training.py. Labels are
noise, which does not change the work.

Crystals, in fine_tuning.json: a potential of matgl and rattled cells of SrTiO3, 40 atoms each; energies, forces and
stresses are in the loss. own: a network that torchmdx makes by default, with layers, channels and cutoff of the
released one. Molecules, in fine_tuning_molecules.json: AceFF and rattled alanine dipeptide, energies and forces.

--peer: also matgl and torchmd-net, without their loaders.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import ase
import numpy as np
import torch
from ase.spacegroup import crystal

from benchmarks import matgl_steps, record, released, released_systems, training
from torchmdx import Potential, TensorNetConfig, load
from torchmdx.datasets.frames import Frames
from torchmdx.training.config import OptimizerSection
from torchmdx.training.labelled import LabelledBatch, label
from torchmdx.training.loss_section import LossSection
from torchmdx.training.step import TrainStep

Row = dict[str, Any]
BATCHES = (4, 16, 64)
MOLECULES = (8, 32, 128)
MATPES, ACEFF = "TensorNet-MatPES-PBE-v2025.1-PES", ("aceff-1.1", "aceff-2.0")
DEVICE = released.DEVICE
SITES = [(0.5, 0.5, 0.5), (0, 0, 0), (0.5, 0, 0)]


def crystal_cell() -> ase.Atoms:
    return crystal(["Sr", "Ti", "O"], SITES, spacegroup=221, cellpar=[3.905] * 3 + [90] * 3) * (2, 2, 2)


def frame(rng: np.random.Generator) -> Frames:
    cell = crystal_cell()
    return Frames.single(
        cell.positions + 0.05 * rng.normal(size=cell.positions.shape),
        cell.numbers,
        cell=cell.cell.array,
        pbc=[True] * 3,
        energy=rng.normal(),
        forces=rng.normal(size=cell.positions.shape),
        stress=0.01 * np.eye(3),
    )


def batch(size: int, seed: int, cutoff: float) -> LabelledBatch:
    rng = np.random.default_rng(seed)
    made = Frames.concatenate([frame(rng) for _ in range(size)])
    labelled = label(
        made, np.arange(size), num_atoms=made.num_atoms, num_systems=size, cutoff=cutoff, dtype=torch.float32
    )
    return labelled.to(torch.device(DEVICE))


def timed(name: str, step: Callable[[], Any], size: int, atoms: int, count: int) -> Row:
    """A row of the record: a step with this number of systems and atoms."""
    if released.GPU:
        torch.cuda.reset_peak_memory_stats()
    ms = training.milliseconds(step, count if released.GPU else 1)
    return dict(by=name, batch=size, atoms=atoms, ms=round(ms, 3), gb=round(released.peak_memory() or 0.0, 2))


def ours(potential: Potential, batches: list[LabelledBatch], stress: float, recorded: bool) -> Callable[[], Any]:
    step = TrainStep(potential, LossSection(), OptimizerSection(), record=recorded)
    step.set_rates(1e-5, (1.0, 1.0, stress))
    turn = iter(range(10**9))
    return lambda: step(batches[next(turn) % len(batches)])


def of_crystals(path: Path, size: int) -> Iterator[Row]:
    """Rows of torchmdx."""
    for name, recorded in (("released", True), ("released, not recorded", False), ("own", True)):
        potential = load(path)
        assert isinstance(potential, Potential)
        if name == "own":
            config = potential.config
            sizes = dict(num_layers=config.num_layers, num_channels=config.num_channels, cutoff=config.cutoff)
            potential = Potential(TensorNetConfig(**sizes))
        batches = [batch(size, seed, potential.cutoff) for seed in range(4)]
        step = ours(potential.to(DEVICE).requires_grad_(True), batches, 1.0, recorded)
        yield timed(name, step, size, 40 * size, 20 if recorded else 5)


def by_matgl(path: Path, size: int) -> Callable[[], Any]:
    """A step with the losses of its trainer: energies by atom, forces and stresses."""
    import matgl
    from matgl.ext.ase import Atoms2Graph
    from torch_geometric.data import Batch as Graphs

    loaded = matgl.load_model(path)
    matgl_steps.read_as_released(loaded, path)
    potential = type(loaded)(loaded.model, calc_stresses=True).to(DEVICE).train()
    convert = Atoms2Graph(loaded.model.element_types, loaded.model.cutoff).get_graph
    found = []
    for seed in range(size):
        atoms = crystal_cell()
        atoms.rattle(0.05, seed=seed)
        found.append(convert(atoms))
    graph = Graphs.from_data_list([one[0] for one in found]).to(DEVICE)
    cells = torch.cat([torch.as_tensor(one[1]).float().reshape(1, 3, 3) for one in found]).to(DEVICE)
    state = torch.zeros(size, 2, device=DEVICE)
    optimizer = torch.optim.AdamW(potential.parameters(), 1e-5)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        energy, forces, stress, _ = potential(graph, cells, state)
        loss = ((energy / 40) ** 2).mean() + (forces**2).mean() + (stress**2).mean()
        loss.backward()
        optimizer.step()

    return step


def of_molecules(path: Path, name: str, size: int) -> Row:
    potential = load(path, dtype=torch.float32, device=DEVICE)
    assert isinstance(potential, Potential)
    batches = [training.batch(size, seed, DEVICE) for seed in range(4)]
    return timed(name, ours(potential.requires_grad_(True), batches, 0.0, True), size, 22 * size, 20)


def by_torchmd_net(path: Path, size: int) -> Callable[[], Any]:
    from torchmdnet.models.model import load_model

    model = load_model(str(path), derivative=True, static_shapes=False, max_num_neighbors=released.MOST_NEIGHBORS)
    return training.peer_step(model.to(DEVICE).requires_grad_(True), size, DEVICE)


def of_peer(name: str, make: Callable[[Path, int], Callable[[], Any]], path: Path, size: int, atoms: int) -> Row:
    try:
        return timed(name, make(path, size), size, atoms, 6)
    except Exception as error:
        return dict(by=name, batch=size, atoms=atoms, error=f"{type(error).__name__}: {error}"[:200])


def rows_of(folder: Path, only: str, peer: bool) -> Iterator[tuple[str, Row]]:
    """Records and their rows."""
    path = released_systems.find(folder, MATPES)
    for size in BATCHES if isinstance(path, Path) and only in ("", "crystals") else ():
        assert isinstance(path, Path)
        yield from (("fine_tuning", row) for row in of_crystals(path, size))
        if peer:
            yield "fine_tuning", of_peer("matgl", by_matgl, path, size, 40 * size)
    for name in ACEFF:
        path = released_systems.find(folder, name)
        for size in MOLECULES if isinstance(path, Path) and only in ("", "molecules", name) else ():
            assert isinstance(path, Path)
            yield "fine_tuning_molecules", of_molecules(path, name, size)
            if peer:
                row = of_peer(f"{name}, torchmd-net", by_torchmd_net, path, size, 22 * size)
                yield "fine_tuning_molecules", row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, default=os.environ.get("RELEASED_POTENTIALS"))
    parser.add_argument("--peer", action="store_true", help="also time matgl and torchmd-net")
    parser.add_argument("--only", default="", choices=["crystals", "molecules", *ACEFF], help="only these")
    options = parser.parse_args()
    for name, row in rows_of(Path(options.folder), options.only, options.peer):
        print(row, flush=True)
        record.update(name, [row], ("by", "batch"))
        if released.GPU:
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
