"""Cutoff, size and priors of a fast model."""

import numpy as np
import pytest
import torch
from ase.build import bulk, molecule
from model_kinds import coulomb, zbl

from torchmdx import Potential, System, TensorNet2Config, TensorNetConfig
from torchmdx.models.ensemble import Ensemble
from torchmdx.training.distillation import network
from torchmdx.training.distillation.network import Cost
from torchmdx.training.distillation.settings import DistillSettings

WATER = System.from_ase(molecule("H2O"))
SMALL = TensorNetConfig(num_channels=8, num_layers=1, cutoff=6.0)


@pytest.mark.parametrize(
    ("structure", "expected"),
    [
        (molecule("CH3CH2OH"), 3.5),
        (bulk("Si"), 4.0),  # 1.7 times 2.35 Å: beyond the second shell, at 3.84
        (bulk("NaCl", "rocksalt", 5.64), 4.8),
        (bulk("Ar", "fcc", 5.26), 6.0),  # at most that of the potential
    ],
)
def test_the_cutoff_holds_bonds_angles_and_the_second_shell(structure, expected):
    assert network.cutoff_of(Potential(SMALL), [System.from_ase(structure)]) == pytest.approx(expected)


def test_nearest_neighbours_are_those_of_all_pairs():
    atoms = molecule("CH3CH2OH")
    distances = atoms.get_all_distances() + 99 * np.eye(len(atoms))
    assert network.nearest_neighbours(System.from_ase(atoms), 5.0) == pytest.approx(distances.min(0))
    assert len(network.nearest_neighbours(System.create([[0.0, 0.0, 0.0]], [1]), 5.0)) == 0


@pytest.mark.parametrize(
    ("ratios", "best"), [([0.24], 0), ([0.3, 0.2], 1), ([0.9, 0.5, 0.4], 2), ([0.5, 0.4, 0.45], 1)]
)
def test_the_first_cheap_network_is_taken_else_the_cheapest(ratios, best):
    costs = [Cost(1, 64 - k, 1.0, ratio) for k, ratio in enumerate(ratios)]
    assert network.best_of(costs) is costs[best]


def test_given_sizes_are_kept_and_others_measured(organic, monkeypatch):
    measured = []

    def seconds_of(potential, systems):
        measured.append((potential.config.num_layers, potential.config.num_channels))
        return 1.0 if potential is organic else 0.01 * potential.config.num_channels

    monkeypatch.setattr(network, "seconds_of", seconds_of)
    model, costs = network.choose(organic, [WATER], [WATER], DistillSettings(layers=0, channels=7, cutoff=3.1))
    assert (model.num_layers, model.num_channels, model.cutoff, costs, measured) == (0, 7, 3.1, [], [])
    model, costs = network.choose(organic, [WATER], [WATER], DistillSettings(channels=16))
    assert measured[1:] == [(1, 16)]
    assert (model.num_layers, costs[0].ratio) == (1, 0.16)
    measured.clear()
    model, costs = network.choose(organic, [WATER], [WATER], DistillSettings())
    assert measured[1:] == [(1, 64), (1, 32), (0, 32)]
    assert (model.num_layers, model.num_channels) == (1, 32)


def test_the_repulsion_of_nuclei_is_kept_and_coulomb_energy_is_left_to_the_difference(organic):
    config = TensorNet2Config(num_channels=8, num_layers=1, num_charges=3)
    potential = Potential(config, [zbl(), coulomb(weights=None)])
    assert network.kept_priors(potential) == [zbl()]
    model = network.section(potential, [System.create([[0.0, 0.0, 0.0]], [92])], 1, 8, 3.5)
    fast = network.untrained(model, potential.to(torch.float32))
    assert fast.prior_configs == (zbl(),)
    assert fast.max_z == 92
    assert fast.dtype == torch.float32
    assert network.kept_priors(organic) == []
    members = [Potential(SMALL, [zbl()]), Potential(SMALL, [zbl()])]
    assert network.kept_priors(Ensemble(members, ["a", "b"])) == [zbl()]


def test_the_time_of_a_step_is_of_structures_at_rest(organic):
    assert 0 < network.seconds_of(organic, [WATER]) < 1
