"""Times ML/MM systems by embedding, link atoms and barostat, compared with the same system without them.

    python -m benchmarks.openmm_embeddings [--platform CUDA] [--rows plain,links,charged,electrostatic,barostat]

Rows that are not measured stay in the record.

On the CUDA platform the system of openmm_mixed.py: DHFR, alanine dipeptide and water, about 40,000 atoms. On others
alanine dipeptide in a box of 2 nm of water, on one thread. Potentials are untrained and weak. Rows:

- plain: a TensorNet for the 22 atoms of the ligand, mechanical embedding, by every transport
- links: the same without the last methyl group, which a link atom replaces: 18 atoms and a hydrogen
- charged: a TensorNet2 for the 22 atoms, mechanical embedding
- electrostatic: the same with electrostatic embedding
- barostat: plain with a move of a MonteCarloBarostat every 5 steps

replay_ms: of the native transport's graph alone, without forces energy_ms. Where it is more than the difference to the
force field alone ("none"), the GPU works for both at once; where it is less, it waits for the host.
"""

from __future__ import annotations

import argparse
import copy
import tempfile
import time
from pathlib import Path
from typing import Any

import openmm
import torch
from openmm import app, unit

from benchmarks.openmm_mixed import STRUCTURES, force_field_system, solvated
from benchmarks.record import update
from torchmdx import Potential, TensorNet2Config, TensorNetConfig, save
from torchmdx.openmm import create_mixed_system, find

WARM_UP, REPEATS = 20, 5
MOST_SECONDS = 3.0  # of a repeat
ROWS = ("plain", "links", "charged", "electrostatic", "barostat")
LINK = 18  # atoms of the region with a link atom: up to the N-CH3 bond of the last residue


def in_water() -> tuple[openmm.System, app.Modeller, list[int]]:
    """Alanine dipeptide in a box of 2 nm of water: the force field's system, the structure and the ligand."""
    field = app.ForceField("amber14-all.xml", "amber14/tip3p.xml")
    ligand = app.PDBFile(str(STRUCTURES / "alanine_dipeptide.pdb"))
    modeller = app.Modeller(ligand.topology, ligand.positions)
    modeller.addSolvent(field, boxSize=openmm.Vec3(2, 2, 2) * unit.nanometer)
    size = dict(nonbondedMethod=app.PME, nonbondedCutoff=0.75 * unit.nanometer, constraints=app.HBonds)
    return field.createSystem(modeller.topology, **size), modeller, list(range(22))


def beside_protein() -> tuple[openmm.System, app.Modeller, list[int]]:
    """As `in_water`, of the system of openmm_mixed.py."""
    field, modeller, ligand = solvated()
    return force_field_system(field, modeller.topology), modeller, ligand


def potentials(folder: Path) -> dict[str, Path]:
    """Files of untrained potentials whose forces are too weak to tear the structure apart."""
    torch.manual_seed(0)
    files = {}
    for name, config in (("plain", TensorNetConfig()), ("charged", TensorNet2Config())):
        potential = Potential(config)
        potential.scale.fill_(0.01)
        files[name] = folder / f"{name}.safetensors"
        save(potential, files[name])
    return files


def mixed(row: str, transport: str, files: dict[str, Path], parts: Any, device: str) -> openmm.System:
    system, modeller, ligand = parts
    if row == "barostat":
        system = copy.deepcopy(system)
        system.addForce(openmm.MonteCarloBarostat(1, 300, 5))
    if transport == "none":
        return system
    charged = row in ("charged", "electrostatic")
    options: dict[str, Any] = {"transport": transport, "device": device}
    if row == "links":
        ligand, options = ligand[:LINK], options | {"link_atoms": True, "charge": 0}
    if row == "electrostatic":
        options |= {"embedding": "electrostatic"}
    return create_mixed_system(system, modeller.topology, ligand, files["charged" if charged else "plain"], **options)


def replays(system: openmm.System) -> dict[str, float]:
    """Milliseconds of the graphs of the native transport; empty where there are none."""
    found: dict[str, float] = {}
    for force in find(system):
        for reference in list(force.evaluator.sessions.values()):
            step = reference()
            for kind, name in (("device", "replay_ms"), ("energy", "energy_ms")):
                graph = None if step is None else step.policy.graphs.get(kind)
                if graph is not None:
                    found[name] = round(milliseconds(graph.replay), 4)
    return found


def milliseconds(replay: Any, count: int = 200) -> float:
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(count):
        replay()
    torch.cuda.synchronize()
    return (time.perf_counter() - start) * 1e3 / count


def measure(row: str, transport: str, files: dict[str, Path], name: str, steps: int, parts: Any) -> dict[str, Any]:
    device = "cuda" if name == "CUDA" else "cpu"
    system = mixed(row, transport, files, parts, device)
    properties = {"Precision": "mixed"} if name == "CUDA" else {"Threads": "1"} if name == "CPU" else {}
    platform = openmm.Platform.getPlatformByName(name)
    integrator = openmm.LangevinMiddleIntegrator(300, 1.0, 0.001)
    context = openmm.Context(system, integrator, platform, properties)
    context.setPositions(parts[1].positions)
    openmm.LocalEnergyMinimizer.minimize(context, maxIterations=20)
    integrator.step(WARM_UP)
    context.getState(energy=True)
    start = time.perf_counter()
    integrator.step(WARM_UP)
    context.getState(energy=True)
    steps = min(steps, max(WARM_UP, round(MOST_SECONDS * WARM_UP / (time.perf_counter() - start))))
    times = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        integrator.step(steps)
        context.getState(energy=True)
        times.append((time.perf_counter() - start) / steps)
    best = min(times)
    found = dict(row=row, transport=transport, platform=name, atoms=system.getNumParticles())
    found |= dict(step_ms=round(best * 1e3, 4), ns_day=round(86400e-6 / best, 2))
    return found | replays(system)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--platform", default="CUDA", choices=["CUDA", "CPU", "Reference"])
    parser.add_argument("--rows", default=",".join(ROWS))
    options = parser.parse_args()
    on_gpu = options.platform == "CUDA"
    if not on_gpu:
        torch.set_num_threads(1)
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        files = potentials(Path(folder))
        parts = beside_protein() if on_gpu else in_water()
        for row in options.rows.split(","):
            for transport in (*["none"] * (row in ("plain", "barostat")), "native", "python"):
                try:
                    rows.append(measure(row, transport, files, options.platform, 500 if on_gpu else 40, parts))
                except Exception as error:
                    message = f"{type(error).__name__}: {error}"[:300]
                    rows.append(dict(row=row, transport=transport, error=message))
                print(rows[-1], flush=True)
                update("openmm_embeddings" if on_gpu else "openmm_embeddings_cpu", rows, ("row", "transport"))


if __name__ == "__main__":
    main()
