"""Heads on one network: outputs and constants of each system's head, and the potential of one head."""

import importlib
import importlib.util
import inspect

import pytest
import torch

import torchmdx
from torchmdx import Batch, System
from torchmdx.evaluation.derivatives import evaluate
from torchmdx.ipi.beads import load_beads
from torchmdx.models.heads import HeadNames, MultiHead, one_head, select_heads
from torchmdx.models.potential import Potential
from torchmdx.models.tensornet import TensorNetConfig


def system(seed, count):
    positions = 1.4 * torch.randn(count, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    numbers = torch.tensor([6, 1, 8, 1, 1][:count])
    return System(positions, numbers, cell=torch.zeros(3, 3, dtype=torch.float64), pbc=torch.zeros(3, dtype=torch.bool))


def potential(seed, **more):
    torch.manual_seed(seed)
    made = Potential(TensorNetConfig(num_channels=8, num_layers=1, num_radial=8, cutoff=4.0, max_z=8, **more)).double()
    made.scale.fill_(1.0 + seed)
    made.shift.fill_(0.1 * seed)
    made.reference_energies.copy_(torch.randn(9, dtype=torch.float64))
    return made


@pytest.mark.parametrize("head", ["scalar", "gated"])
def test_every_system_of_a_batch_has_the_energies_and_forces_of_its_head(head):
    parts = {name: potential(seed, head=head) for seed, name in enumerate(("low", "high"))}
    for part in parts.values():
        part.network = parts["low"].network  # what heads share
    several = MultiHead(parts, "low")
    systems = [system(1, 3), system(2, 5), system(3, 4)]
    batch, chosen = Batch.of(systems), ("high", "low", "high")
    select_heads(several, torch.tensor([several.heads.index(name, "") for name in chosen]), batch)
    found = evaluate(several, batch)
    for number, name in enumerate(chosen):
        alone = evaluate(parts[name], systems[number])
        torch.testing.assert_close(found.energy[number], alone.energy[0], rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(found.forces[batch.system_index == number], alone.forces, rtol=1e-10, atol=1e-12)
    one = several.one("high")
    assert torch.equal(evaluate(one, systems[0]).energy, evaluate(parts["high"], systems[0]).energy)
    assert one_head(one) is one
    assert torch.equal(evaluate(one_head(several), systems[0]).energy, evaluate(parts["low"], systems[0]).energy)


def test_names_and_potentials_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="file has the heads low, high, got 'scan'"):
        HeadNames(("low", "high"), "low").index("scan", "file")
    with pytest.raises(ValueError, match="the name of a head must consist of letters, digits.* got 'a:b'"):
        MultiHead({"a:b": potential(0)}, "a:b")
    with pytest.raises(ValueError, match="heads must have the same configuration and priors, 'high' differs"):
        MultiHead({"low": potential(0), "high": potential(1, num_head_layers=1)}, "low")


def test_functions_that_take_a_coulomb_accuracy_take_a_head():
    functions = [torchmdx.load, torchmdx.Calculator, torchmdx.relax, torchmdx.neb, load_beads]
    if importlib.util.find_spec("openmm"):
        of_openmm = importlib.import_module("torchmdx.openmm")
        names = ("add_potential", "add_difference", "create_mixed_system", "MixedRegion")
        functions += [getattr(of_openmm, name) for name in names]
    for function in functions:
        assert {"coulomb_accuracy", "head"} <= inspect.signature(function).parameters.keys(), function
