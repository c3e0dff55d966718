"""Every pair of options of the configurations in the fused kernels, against the exact model in float64."""

import itertools
from dataclasses import fields

import pytest
import torch
from interpreter import DEVICE, needs_kernels
from test_gpu_tensornet import CUTS, batch_of, run

from torchmdx import TensorNet2Config, TensorNetConfig
from torchmdx.engines.gpu.engine import kernels_for
from torchmdx.engines.plan import Workload, machine_named, plan
from torchmdx.evaluation.derivatives import evaluate
from torchmdx.models.priors.coulomb import CoulombConfig
from torchmdx.models.priors.d3 import D3Config
from torchmdx.models.priors.zbl import ZBLConfig
from torchmdx.neighbors.brute_force import brute_force

COMMON = {
    "num_channels": (16, 24, 33),
    "radial_basis": ("expnorm", "gauss", "bessel"),
    "activation": ("silu", "ssp", "tanh", "sigmoid", "mish"),
    "group": ("O(3)", "SO(3)"),
    "num_head_layers": (0, 1, 3),
}
PLAIN = {
    **COMMON,
    "num_layers": (0, 1, 2, 6),
    "head": ("scalar", "gated"),
    "messages": ("source", "target"),
    "self_message": (True, False),
    "readout_activation": (True, False),
    "charge_factor": (True, False),
    "cut": ("few", "coarse", "lean, in pieces"),
}
CHARGED = {
    **COMMON,
    "num_layers": (0, 1, 6),
    "num_charges": (1, 8, 64),
    "charge_slack": (0.0, 1e-3),
    "cut": ("few", "coarse"),
}


def pairwise(options):
    """Settings among which every two values of two options occur together: each is the one with most new pairs."""
    names = sorted(options)
    left = {((a, x), (b, y)) for a, b in itertools.combinations(names, 2) for x in options[a] for y in options[b]}
    found = []
    while left:
        chosen = dict(min(left, key=str))
        for name in names:
            if name not in chosen:
                others = list(chosen.items())
                new = {
                    value: sum(tuple(sorted([(name, value), other])) in left for other in others)
                    for value in options[name]
                }
                chosen[name] = max(options[name], key=lambda value: new[value])
        found.append(chosen)
        left -= set(itertools.combinations(sorted(chosen.items()), 2))
    return found


def named(settings):
    return ", ".join(f"{name} {value}" for name, value in settings.items())


def test_all_pairs_are_among_the_settings():
    found = pairwise(PLAIN)
    pairs = {pair for settings in found for pair in itertools.combinations(sorted(settings.items()), 2)}
    wanted = sum(len(x) * len(y) for x, y in itertools.combinations(PLAIN.values(), 2))
    assert len(pairs) == wanted
    assert len(found) < 40


# What only scales a table or a matrix, and what makes no difference to an evaluation.
NUMBERS = {"num_radial", "cutoff", "max_z", "trainable_basis"}


def test_every_option_is_among_the_settings():
    """A TensorNet2 has the others of a TensorNet at their defaults."""
    assert {field.name for field in fields(TensorNetConfig)} == PLAIN.keys() - {"cut"} | NUMBERS
    own = {field.name for field in fields(TensorNet2Config)} - {field.name for field in fields(TensorNetConfig)}
    assert own <= CHARGED.keys()
    fixed = {"head": "gated", "messages": "target", "self_message": False, "readout_activation": False}
    for name, value in {**fixed, "charge_factor": False}.items():
        with pytest.raises(ValueError, match=f"{name} of a TensorNet2 must be"):
            TensorNet2Config(**{name: value})
    assert PLAIN.keys() - CHARGED.keys() == fixed.keys() | {"charge_factor"}


PRIORS = {"none": [], "zbl": [ZBLConfig()], "d3 and coulomb": [D3Config(functional="pbe"), CoulombConfig()]}


@pytest.mark.parametrize("priors", PRIORS.values(), ids=PRIORS)
@pytest.mark.parametrize("card", ["H100", "A100", "RTX 4090", "RTX 5090"])
@pytest.mark.parametrize("atoms", [22, 166, 3000])
@pytest.mark.parametrize("kind", [TensorNetConfig, TensorNet2Config])
def test_no_option_leaves_the_fused_kernels(kind, atoms, card, priors):
    """Up to 256 channels, 6 layers and 64 sets of charges, with priors or without."""
    options = PLAIN if kind is TensorNetConfig else CHARGED
    options = {**options, "num_channels": (2, 100, 256), "num_layers": (0, 3, 6), "cut": (None,)}
    for settings in pairwise(options):
        settings = {name: value for name, value in settings.items() if name != "cut"}
        found = plan(kind(**settings), priors, Workload.usual(atoms), "float32", machine_named(card))
        assert (found.engine, found.warning) == ("fused", None), named(settings)


def assert_exact(potential, cut, batch):
    fast = kernels_for(potential)(potential.to(DEVICE))
    tiles = None if cut == "few" else CUTS[cut]
    found = run(potential, batch, tiles=tiles, fast=fast)
    exact = evaluate(potential.double(), batch, brute_force(batch, potential.cutoff), stress=True)
    torch.testing.assert_close(found.energies, exact.energies, atol=2e-6, rtol=1e-6)
    assert (found.forces - exact.forces).norm() < 1e-5 * exact.forces.norm()
    periodic = batch.pbc.all(1)
    assert (found.stress - exact.stress)[periodic].norm() < 3e-5 * exact.stress[periodic].norm()


@needs_kernels
@pytest.mark.nightly
@pytest.mark.parametrize("settings", pairwise(PLAIN), ids=named)
def test_a_tensornet_of_any_options_agrees_with_the_exact_model(make_potential, settings, cation, crystal):
    cut = settings.pop("cut")
    assert_exact(make_potential(cutoff=3.2, num_radial=4, **settings), cut, batch_of(cation, crystal))


@needs_kernels
@pytest.mark.nightly
@pytest.mark.parametrize("settings", pairwise(CHARGED), ids=named)
def test_a_tensornet2_of_any_options_agrees_with_the_exact_model(make_potential, settings, cation, crystal):
    cut = settings.pop("cut")
    made = make_potential(model="tensornet2", cutoff=3.2, num_radial=4, **settings)
    assert_exact(made, cut, batch_of(crystal) if cut == "few" else batch_of(cation, crystal))


WIDE = [
    dict(num_channels=channels, num_layers=1, num_radial=4, cutoff=3.2, **more)
    for channels, more in [
        (100, dict(head="gated")),
        (256, dict(num_head_layers=1)),
        (100, dict(model="tensornet2", num_charges=8)),
        (256, dict(model="tensornet2", num_charges=64, num_head_layers=1)),
    ]
]


@needs_kernels
@pytest.mark.nightly
@pytest.mark.parametrize("cut", ["few", "coarse"])
@pytest.mark.parametrize("settings", WIDE, ids=named)
def test_networks_of_many_channels_agree_with_the_exact_model(make_potential, settings, cut, crystal):
    """Of 256, the most that kernels serve, and of a number that is no power of two."""
    assert_exact(make_potential(**settings), cut, batch_of(crystal))
