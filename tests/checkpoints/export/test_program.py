"""The function that is exported, before it is compiled, against `evaluate`; and what cannot be exported."""

import pytest
import torch
from model_kinds import KINDS, d2, zbl
from structures import STRUCTURES

from torchmdx import Ensemble, System, evaluate
from torchmdx.checkpoints.export.package import inputs_of
from torchmdx.checkpoints.export.program import INPUTS, Program, require_exportable
from torchmdx.models.priors.coulomb import CoulombConfig


def require_equal(potential, atoms, order=None) -> None:
    system = System.from_ase(atoms)
    inputs = inputs_of(system, potential)
    assert tuple(inputs) == INPUTS
    if order is not None:
        chosen = order(len(inputs["source"]))
        inputs |= {name: inputs[name][chosen] for name in ("source", "target", "shifts")}
    energies, forces, virial = Program(potential)(**inputs)
    wanted = evaluate(potential, system, stress=atoms.cell.rank == 3)
    torch.testing.assert_close(energies, wanted.energies, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(forces, wanted.forces, rtol=0, atol=1e-11)
    if wanted.stress is not None:
        torch.testing.assert_close(virial, -wanted.stress[0] * atoms.cell.volume, rtol=0, atol=1e-10)


@pytest.mark.parametrize("name", STRUCTURES)
def test_it_is_the_exact_model(name, potential, request):
    """Molecules, charges, slabs, wires, and a cell smaller than the cutoff with an atom outside of it."""
    require_equal(potential, request.getfixturevalue(name))


@pytest.mark.parametrize(
    "settings",
    [
        dict(group="SO(3)"),
        dict(head="gated", num_layers=1),
        dict(radial_basis="bessel", self_message=False, charge_factor=False, readout_activation=False),
        dict(messages="target"),
        dict(priors=[zbl]),
        dict(priors=[lambda: zbl(cutoff=6.0, radii="covalent"), d2]),
    ],
    ids=["SO(3)", "gated", "other options", "messages of own tensors", "zbl", "zbl and d2"],
)
def test_every_kind_of_tensornet_and_priors_over_edges(make_potential, settings, crystal, cation):
    potential = make_potential(**settings)
    for atoms in (crystal, cation):
        require_equal(potential, atoms)


def test_edges_in_any_order_and_beyond_the_cutoff(potential, crystal):
    require_equal(potential, crystal, order=torch.randperm)
    system = System.from_ase(crystal)
    near, far = inputs_of(system, potential), torch.tensor([5, 5, 5])
    wider = Program(potential)
    longer = {**near}
    longer["source"] = torch.cat([near["source"], torch.tensor([1])])
    longer["target"] = torch.cat([near["target"], torch.tensor([0])])
    longer["shifts"] = torch.cat([near["shifts"], far[None]])
    for found, wanted in zip(wider(**longer), wider(**near), strict=True):
        torch.testing.assert_close(found, wanted, rtol=0, atol=1e-12)


def test_what_cannot_be_exported_is_named(make_potential, make_kind):
    potential = make_potential()
    assert require_exportable(potential) is potential
    with pytest.raises(ValueError, match="only a single potential can be exported, got an ensemble of 2"):
        require_exportable(Ensemble([potential, make_potential(seed=2)]))
    charged = next(name for name in KINDS if name.startswith("tensornet2"))
    with pytest.raises(ValueError, match="only a TensorNet can be exported, got a TensorNet2"):
        require_exportable(make_kind(charged))
    with pytest.raises(ValueError, match="only the priors zbl and d2 can be exported, got the prior coulomb"):
        require_exportable(make_potential(priors=[zbl, lambda: CoulombConfig(charges="given")]))
