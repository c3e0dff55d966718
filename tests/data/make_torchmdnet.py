"""Writes checkpoints of torchmd-net with priors and variants beside this file, and what it computes with them.

Needs torchmd-net 3.1.0 (`pip install torchmd-net==3.1.0`), which the tests do not.
"""

import json
from pathlib import Path

import numpy as np
import torch
from ase import Atoms
from ase.build import molecule
from torchmdnet.models.model import create_model, create_prior_models, load_model

HERE = Path(__file__).parent
EV = 1.602176634e-19
UNITS = dict(distance_scale=1e-10, energy_scale=EV)
BASE = dict(
    model="tensornet",
    precision=64,
    embedding_dimension=8,
    num_layers=1,
    num_rbf=6,
    rbf_type="expnorm",
    trainable_rbf=False,
    activation="silu",
    cutoff_lower=0.0,
    cutoff_upper=4.0,
    max_z=20,
    max_num_neighbors=64,
    equivariance_invariance_group="O(3)",
    static_shapes=False,
    derivative=True,
    atom_filter=-1,
    prior_model=None,
    prior_args=None,
    output_model="Scalar",
    reduce_op="add",
    output_mlp_num_layers=0,
    box_vecs=None,
    charge=True,
    spin=False,
    remove_ref_energy=False,
)
SECOND = dict(model="tensornet2", q_dim=3)
COULOMB = dict(SECOND, output_model="ScalarPlusWeightedCoulomb", q_weights=[0.5, 1.5])
KINDS = {
    "tensornet-zbl": dict(
        prior_model=["Atomref", "ZBL"],
        prior_args=[
            dict(max_z=20),
            dict(cutoff_distance=3.0, max_num_neighbors=64, atomic_number=list(range(20)), **UNITS),
        ],
    ),
    "tensornet-d2": dict(
        prior_model=[{"D2": dict(cutoff_distance=7.0, max_num_neighbors=64, atomic_number=list(range(20)), **UNITS)}],
    ),
    "tensornet-coulomb": dict(
        prior_model="Coulomb",
        prior_args=dict(lower_switch_distance=0.125, upper_switch_distance=0.375, max_num_neighbors=64, **UNITS),
    ),
    "tensornet2-cut": dict(COULOMB, coulomb_cutoff=5.5, coulomb_max_num_neighbors=128, output_mlp_num_layers=1),
    "tensornet2-repulsion": dict(SECOND, repulsion=True),
}


def structures(periodic: bool) -> list[tuple[str, Atoms, float]]:
    """(name, structure, charge); molecules closer than they like, so that short-range terms matter."""
    chosen = [("ethanol", molecule("CH3CH2OH"), 0), ("acid", molecule("HCOOH"), -1)]
    chosen += [("salt", Atoms("NaCl", [[0, 0, 0], [0, 0.4, 1.8]]), 1)]
    if periodic:
        box = molecule("CH3CH2OH")
        box.set_cell([[12.0, 0, 0], [1.5, 12.5, 0], [-0.5, 1.0, 13.0]])
        box.pbc = True
        box.positions += [11.0, 3.0, 12.4]
        chosen.append(("box", box, 1))
    for seed, (_, atoms, _) in enumerate(chosen):
        atoms.rattle(0.1, seed=seed)
    return chosen


def make(name: str, changes: dict) -> None:
    torch.manual_seed(len(name))
    options = {**BASE, **changes}
    model = create_model(dict(options), create_prior_models(dict(options)) or None)
    with torch.no_grad():
        for layer in model.representation_model.layers:
            layer.linears_scalar[2].weight.mul_(4)
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(0.1 * torch.randn_like(parameter))
        model.std.fill_(1.3)
        model.mean.fill_(-0.2)
        if "atomref" in str(options["prior_model"]).lower():
            model.prior_model[0].atomref.weight.copy_(torch.linspace(-9, 3, 20)[:, None])
    path = HERE / f"{name}.ckpt"
    weights = {f"model.{key}": value for key, value in model.state_dict().items()}
    torch.save({"hyper_parameters": options, "state_dict": weights}, path)
    # The peer cannot read back its own Coulomb prior after training: it is evaluated as it was made.
    again = model if name == "tensornet-coulomb" else load_model(str(path), derivative=True)
    periodic = name not in ("tensornet-d2", "tensornet-coulomb")  # neither prior knows of cells
    records = [record(again, *structure, name) for structure in structures(periodic)]
    path.with_suffix(".json").write_text(json.dumps(records, indent=1))


def record(model: torch.nn.Module, title: str, atoms: Atoms, charge: float, name: str) -> dict:
    given = {"partial_charges": np.linspace(-0.5, 0.7, len(atoms)).tolist()} if name == "tensornet-coulomb" else {}
    energy, forces = model(
        torch.tensor(atoms.numbers),
        torch.tensor(atoms.positions),
        box=torch.tensor(atoms.cell.array) if atoms.pbc.any() else None,
        q=torch.tensor([float(charge)], dtype=torch.float64),
        extra_args={key: torch.tensor(value, dtype=torch.float64) for key, value in given.items()},
    )
    return dict(
        name=title,
        numbers=atoms.numbers.tolist(),
        positions=atoms.positions.tolist(),
        cell=atoms.cell.array.tolist() if atoms.pbc.any() else None,
        charge=charge,
        energy=energy.item(),
        forces=forces.detach().tolist(),
        **given,
    )


if __name__ == "__main__":
    for kind, changes in KINDS.items():
        make(kind, changes)
