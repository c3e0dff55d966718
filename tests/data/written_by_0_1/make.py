"""Made the files of this folder, with the code of commit 32e996f, before version 0.2.

    git archive 32e996f | tar -x -C /tmp/old
    cd tests/data/written_by_0_1 && PYTHONPATH=/tmp/old python make.py

Not to be run with a later version: the files show what users of that version have. `expected.json` holds the energies
and positions that it computed from them.
"""

import json
import shutil
from pathlib import Path

import ase.io
import numpy as np
import openmm
import torch
import yaml
from ase import Atoms
from ase.build import molecule
from openmm import app, unit
from torchmdx.cli import main
from torchmdx.openmm_force import add_potential
from torchmdx.torchmdnet.report import Report

import torchmdx
from torchmdx import System
from torchmdx.checkpoints.save_load import save
from torchmdx.datasets.frames import Frames
from torchmdx.datasets.store import StoreWriter
from torchmdx.dynamics.dynamics import Dynamics
from torchmdx.dynamics.run.recording import Recording
from torchmdx.dynamics.trajectory_formats import TrajectoryFormat
from torchmdx.models.model_card import Card
from torchmdx.models.priors.coulomb import CoulombConfig
from torchmdx.models.priors.d2 import D2Config
from torchmdx.models.priors.zbl import ZBLConfig
from torchmdx.models.tensornet import TensorNetConfig
from torchmdx.models.tensornet2 import TensorNet2Config

HERE = Path(__file__).parent
SIZES = dict(num_channels=4, num_layers=1, num_radial=4, cutoff=3.5, max_z=8)
ZBL = ZBLConfig(cutoff=1.2)
D2 = D2Config(cutoff=5.0, c6=tuple(3.0 + k for k in range(9)), radii=tuple(1.2 + 0.01 * k for k in range(9)))
COULOMB = CoulombConfig(cutoff=5.0, weights=(1.0, 0.5))
CRYSTAL = Atoms(
    "OCH",
    [[0.1, 0.3, 0.1], [1.6, 1.3, 0.9], [0.6, 1.9, 2.0]],
    cell=[[3.9, 0, 0], [0.7, 3.7, 0], [-0.5, 0.9, 4.1]],
    pbc=True,
)
MOLECULE = molecule("CH3OH")
CATION = molecule("H2O")
CATION.info["charge"] = 1
RECORDED = dict(save_every=2, log_every=5)


def potential(config, *priors, seed=0):
    torch.manual_seed(seed)
    made = torchmdx.Potential(config, priors).double()
    with torch.no_grad():
        made.scale.fill_(0.4)
        made.shift.fill_(-0.3)
        made.reference_energies.uniform_(-2, 2)
    return made.eval().requires_grad_(False)


def checkpoints():
    """Files by name, with potentials as they were written."""
    tensornet = potential(TensorNetConfig(**SIZES), ZBL, D2)
    tensornet.card = Card(name="small", licence="MIT", elements=(1, 6, 8), charges=(0.0, 1.0), periodic=True)
    tensornet2 = potential(TensorNet2Config(**SIZES, num_charges=2), ZBL, COULOMB, seed=1)
    gated = dict(head="gated", self_message=False, readout_activation=False, charge_factor=False)
    bessel = potential(TensorNetConfig(**SIZES | dict(radial_basis="bessel"), **gated), seed=2)
    save(tensornet, HERE / "tensornet.safetensors")
    save(tensornet2, HERE / "tensornet2.safetensors", report=Report("elsewhere.ckpt", "0" * 64))
    save(bessel, HERE / "gated.safetensors")
    save(torchmdx.Ensemble([tensornet, tensornet2]), HERE / "ensemble.safetensors")
    return {
        name: torchmdx.load(HERE / f"{name}.safetensors") for name in ("tensornet", "tensornet2", "gated", "ensemble")
    }


def energies(loaded):
    """Energies and forces in float64 of a molecule, a cation and a crystal."""
    found = {}
    for name, atoms in (("molecule", MOLECULE), ("cation", CATION), ("crystal", CRYSTAL)):
        atoms = atoms.copy()
        atoms.calc = torchmdx.Calculator(loaded, device="cpu", dtype="float64")
        found[name] = dict(energy=atoms.get_potential_energy(), forces=atoms.get_forces().tolist())
    return found


def frames(loaded):
    generator = np.random.default_rng(0)
    for number in range(12):
        atoms = (MOLECULE, CRYSTAL)[number % 4 == 3].copy()
        atoms.positions += generator.uniform(-0.05, 0.05, atoms.positions.shape)
        result = torchmdx.evaluate(loaded, System.from_ase(atoms))
        yield atoms, float(result.energy), result.forces.numpy()


def store(loaded):
    with StoreWriter(HERE / "store", overwrite=True) as writer:
        for number, (atoms, energy, forces) in enumerate(frames(loaded)):
            more = dict(cell=atoms.cell.array, pbc=atoms.pbc) if atoms.pbc.any() else {}
            writer.add(
                Frames.single(atoms.positions, atoms.numbers, energy=energy, forces=forces, **more), "made.xyz", number
            )


def recordings(loaded):
    """Positions after steps 10 and 20, of which the files hold the first ten."""
    found = {}
    for kind, structure, integrator in (("dcd", MOLECULE, "langevin"), ("hdf5", CRYSTAL, "bussi")):
        dynamics = Dynamics(
            loaded, System.from_ase(structure), integrator=integrator, timestep=0.5, temperature=300, seed=3
        )
        prefix, trajectory = str(HERE / f"recorded_{kind}"), TrajectoryFormat(kind)
        with Recording.begin(dynamics, prefix, overwrite=True, trajectory=trajectory, **RECORDED) as recording:
            recording.run(10)
        at_10 = dynamics.snapshot().positions
        found[kind] = dict(at_10=at_10.tolist(), at_20=dynamics.run(10).positions.tolist())
    return found


def training():
    """A run of two epochs, and energies of the potential after a third."""
    folder = HERE / "training"
    shutil.rmtree(folder, ignore_errors=True)
    config = {
        "model": {**SIZES},
        "data": {"path": "store", "train": 8, "validation": 2, "test": 2},
        "training": {"epochs": 2, "batch_size": 4, "device": "cpu", "precision": "float64"},
        "output": {"directory": "training", "loggers": ["csv"], "report": False, "log_every": 1},
    }
    (HERE / "training.yaml").write_text(yaml.safe_dump(config))
    assert main(["train", "training.yaml"]) == 0
    shutil.copytree(folder, "/tmp/whole_training", dirs_exist_ok=True)
    whole = ["train", "training.yaml", "--resume", "--output.directory", "/tmp/whole_training"]
    assert main([*whole, "--training.epochs", "3"]) == 0
    return energies(torchmdx.load("/tmp/whole_training/last.safetensors"))


def openmm_systems():
    """Systems whose potential is the one that comes with the package, which its name names on any machine."""
    topology = app.Topology()
    residue = topology.addResidue("MOL", topology.addChain())
    for symbol in MOLECULE.symbols:
        topology.addAtom(symbol, app.Element.getBySymbol(symbol), residue)
    found = {}
    for name, options in (("plain", {}), ("scaled", dict(scale_parameter="lambda"))):
        system = openmm.System()
        for mass in MOLECULE.get_masses():
            system.addParticle(mass)
        add_potential(system, topology, transport="python", precision="float64", device="cpu", **options)
        (HERE / f"openmm_{name}.xml").write_text(openmm.XmlSerializer.serialize(system))
        context = openmm.Context(system, openmm.VerletIntegrator(0.001), openmm.Platform.getPlatformByName("Reference"))
        context.setPositions(MOLECULE.positions / 10)
        energy = context.getState(getEnergy=True).getPotentialEnergy()
        found[name] = energy.value_in_unit(unit.kilojoule_per_mole)
    return found


def md_run():
    """Six steps of `torchmdx md` in OpenMM, with its files to continue from, and positions after twelve."""
    ase.io.write(HERE / "methanol.xyz", MOLECULE)
    options = ["--model", "tensornet.safetensors", "--engine", "openmm", "--platform", "Reference", "--device", "cpu"]
    options += ["--transport", "python", "--precision", "float64", "--save-every", "3", "--log-every", "3"]
    options += ["--seed", "5", "--no-page", "--ensemble", "nve", "--timestep", "0.5"]
    start = ["--steps", "6", "--overwrite", "--velocities", "new"]
    assert main(["md", "methanol.xyz", "-o", "md", *start, *options]) == 0
    (HERE / "md.png").unlink()
    for file in HERE.glob("md.*"):
        shutil.copy(file, "/tmp")
    assert main(["md", "methanol.xyz", "-o", "/tmp/md", "--steps", "12", "--restart", *options]) == 0
    return ase.io.read("/tmp/md.final.xyz").positions.tolist()


if __name__ == "__main__":
    loaded = checkpoints()
    expected = {"energies": {name: energies(one) for name, one in loaded.items()}}
    expected["store"] = [energy for _, energy, _ in frames(loaded["tensornet"])]
    store(loaded["tensornet"])
    expected["recordings"] = recordings(loaded["tensornet"])
    expected["training"] = training()
    expected["openmm"] = openmm_systems()
    expected["md"] = md_run()
    (HERE / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")
