"""A step keeps the weights that its potential had when it was made, in every engine; a new step takes the new ones."""

import copy

import numpy as np
import pytest
import torch

from torchmdx import Calculator, CapturedStep, Ensemble, StepPool, System, evaluate
from torchmdx.training.optimizer import FlatParameters

KINDS = {
    "tables": (dict(dtype=torch.float32), None),
    "exact": (dict(dtype=torch.float64), None),
    "pairs": (dict(dtype=torch.float32, model="tensornet2"), None),
    "ensemble": (dict(dtype=torch.float32), Ensemble),
}


@pytest.fixture(params=KINDS)
def potential(request, make_potential, device):
    settings, several = KINDS[request.param]
    made = make_potential(**settings).to(device)
    return made if several is None else Ensemble([made, make_potential(seed=1, **settings).to(device)])


def by_data(potential):
    for parameter in potential.parameters():
        parameter.data.copy_(parameter.data * 1.01)


def in_place(potential):
    with torch.no_grad():
        for parameter in potential.parameters():
            parameter.mul_(1.01)


def by_flat_vector(potential):
    FlatParameters(list(potential.named_parameters())).values.mul_(1.01)


def exact_energy(potential, atoms):
    system = System.from_ase(atoms, device=potential.device, dtype=potential.dtype)
    return float(evaluate(potential, system).energy)


@pytest.mark.nightly_for("in_place")
@pytest.mark.parametrize("change", [by_data, in_place, by_flat_vector])
def test_a_live_step_keeps_its_weights_and_a_new_one_takes_the_new(potential, ethanol, change):
    step = CapturedStep(potential, System.from_ase(ethanol), audit_every=4)
    before = [step(ethanol.positions) for _ in range(3)][-1]
    old = exact_energy(potential, ethanol)
    change(potential)
    # On a GPU, sums over edges in the exact model are not in a fixed order.
    rounding = 1e-10 if potential.device.type == "cuda" else 0.0
    for _ in range(3):  # the fourth is audited, against the weights of the step
        after = step(ethanol.positions)
        np.testing.assert_allclose(after.energy[0], before.energy[0], rtol=0, atol=rounding)
        np.testing.assert_allclose(after.forces, before.forces, rtol=0, atol=rounding)
    assert before.energy[0] == pytest.approx(old, abs=1e-4)
    new = exact_energy(potential, ethanol)
    assert abs(new - old) > 1e-2
    found = CapturedStep(potential, System.from_ase(ethanol))(ethanol.positions)
    assert found.energy[0] == pytest.approx(new, abs=1e-4)
    assert exact_energy(step.potential, ethanol) == pytest.approx(old, abs=1e-5)


def test_front_doors_keep_theirs_too(make_potential, ethanol):
    potential = make_potential()
    calculator = Calculator(potential, dtype="float64", device="cpu")
    pool = StepPool(potential)
    before = calculator.get_potential_energy(ethanol), pool(System.from_ase(ethanol)).energy[0]
    by_data(potential)
    calculator.results.clear()
    assert calculator.get_potential_energy(ethanol) == before[0]
    assert pool(System.from_ase(ethanol)).energy[0] == before[1]


def test_a_pool_keeps_one_set_of_weights_for_all_its_steps(make_potential, ethanol, chiral):
    potential = make_potential()
    twin = copy.deepcopy(potential)
    pool = StepPool(potential)
    pool(System.from_ase(ethanol))
    by_data(potential)
    found = pool(System.from_ase(chiral)).energy[0]
    assert found == pytest.approx(exact_energy(twin, chiral), abs=1e-9)
