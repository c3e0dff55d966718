"""Times a machine-learned ligand and a protein in water, with mechanical embedding: each transport, and openmm-ml.

    python -m benchmarks.openmm_mixed [--transports none,native,python,torch] [--peer]

Alanine dipeptide next to DHFR in TIP3P water with amber14 and PME, about 40,000 atoms, 22 of them in the network.
CUDA platform, mixed precision, LangevinMiddle at 1 fs; hydrogens outside the ligand are constrained. "none" is the
force field alone; the other rows add the network and its transport.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import openmm
import torch
from openmm import app, unit

from benchmarks.openmm_steps import peer_checkpoint, seconds_a_step
from benchmarks.record import write
from torchmdx import Potential, TensorNetConfig, save
from torchmdx.openmm import create_mixed_system

STRUCTURES = Path(__file__).with_name("structures")
STEPS = 1000
# nm between the surfaces of protein and ligand, and from them to the walls of the box.
GAP, PADDING = 0.5, 0.8


def solvated() -> tuple[app.ForceField, app.Modeller, list[int]]:
    """The force field, protein, ligand and water in a box, and the indices of the ligand's atoms."""
    field = app.ForceField("amber14-all.xml", "amber14/tip3p.xml")
    protein, ligand = (app.PDBFile(str(STRUCTURES / f"{name}.pdb")) for name in ("dhfr", "alanine_dipeptide"))
    of_protein, of_ligand = (np.array(file.positions.value_in_unit(unit.nanometer)) for file in (protein, ligand))
    of_ligand += of_protein.mean(0) - of_ligand.mean(0)
    of_ligand[:, 0] += of_protein[:, 0].max() + GAP - of_ligand[:, 0].min()
    modeller = app.Modeller(protein.topology, protein.positions)
    modeller.add(ligand.topology, of_ligand * unit.nanometer)
    first = protein.topology.getNumAtoms()
    modeller.addSolvent(field, padding=PADDING * unit.nanometer)
    return field, modeller, list(range(first, first + ligand.topology.getNumAtoms()))


def context_of(system: openmm.System, positions: Any) -> openmm.Context:
    integrator = openmm.LangevinMiddleIntegrator(300, 1.0, 0.001)
    platform = openmm.Platform.getPlatformByName("CUDA")
    context = openmm.Context(system, integrator, platform, {"Precision": "mixed"})
    context.setPositions(positions)
    return context


def force_field_system(field: app.ForceField, topology: app.Topology) -> openmm.System:
    return field.createSystem(
        topology, nonbondedMethod=app.PME, nonbondedCutoff=0.9 * unit.nanometer, constraints=app.HBonds
    )


def measure(transport: str, path: Path, folder: Path) -> dict[str, Any]:
    field, modeller, ligand = solvated()
    system = force_field_system(field, modeller.topology)
    # The water of Modeller is relaxed with the force field alone, so that every row starts from the same structure.
    relaxed = context_of(system, modeller.positions)
    openmm.LocalEnergyMinimizer.minimize(relaxed, maxIterations=200)
    positions = relaxed.getState(positions=True).getPositions()
    del relaxed
    start = time.perf_counter()
    if transport == "peer":
        from openmmml import MLPotential

        peer = MLPotential("torchmdnet", modelPath=str(peer_checkpoint(folder / "peer.ckpt")))
        system = peer.createMixedSystem(modeller.topology, system, ligand, mlLongRange=False)
    elif transport != "none":
        system = create_mixed_system(system, modeller.topology, ligand, path, transport=transport)
    context = context_of(system, positions)
    context.getIntegrator().step(1)
    context.getState(energy=True)
    ready = time.perf_counter() - start
    step, _, _ = seconds_a_step(context, STEPS)
    found = dict(atoms=system.getNumParticles(), ml_atoms=len(ligand), transport=transport, setup_s=round(ready, 2))
    return found | dict(step_ms=round(step * 1e3, 4), ns_day=round(86400e-6 / step, 1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--transports", default="none,native,python")
    parser.add_argument("--peer", action="store_true", help="also openmm-ml with torchmd-net, which must be installed")
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        torch.manual_seed(0)
        potential = Potential(TensorNetConfig())
        potential.scale.fill_(0.01)  # an untrained potential: weak forces keep the structure together
        path = Path(folder) / "model.safetensors"
        save(potential, path)
        for transport in options.transports.split(",") + (["peer"] if options.peer else []):
            try:
                rows.append(measure(transport, path, Path(folder)))
            except Exception as error:
                rows.append(dict(transport=transport, error=f"{type(error).__name__}: {error}"[:300]))
            print(rows[-1], flush=True)
    print(write("openmm_mixed", rows))


if __name__ == "__main__":
    main()
