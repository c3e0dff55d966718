"""Estimated tails of dispersion against sums to much larger cutoffs."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from ase.build import bulk
from ase.io import write
from model_kinds import d2, d3, needs_dispersion

from torchmdx import Ensemble, Potential, System, TensorNetConfig, evaluate, save
from torchmdx.commands import cli
from torchmdx.evaluation.properties.dispersion_tail import dispersion_tails


def only(config) -> Potential:
    network = TensorNetConfig(num_channels=2, num_layers=0, num_radial=2, cutoff=2.0, max_z=35)
    potential = Potential(network, [config]).double().eval().requires_grad_(False)
    potential.scale.zero_()
    return potential


@pytest.fixture
def liquid():
    """Argon, displaced."""
    atoms = bulk("Ar", "fcc", a=5.4, cubic=True) * (2, 1, 1)
    atoms.rattle(0.3, seed=2)
    return atoms


@pytest.mark.parametrize("kind", ["d2", pytest.param("d3", marks=needs_dispersion)])
def test_energy_and_pressure_beyond_the_cutoff(liquid, kind):
    config = {"d2": d2, "d3": d3}[kind](cutoff=12.0)
    system = System.from_ase(liquid)
    (tail,) = dispersion_tails(only(config), system)
    near, far = (
        evaluate(only(replace(config, cutoff=cutoff)), system, stress=True) for cutoff in (config.cutoff, 36.0)
    )
    # Beyond 36 Å there is another 1 / 27 of it.
    missing = float(far.energy[0] - near.energy[0]) / (1 - 1 / 27)
    assert tail.energy == pytest.approx(missing, rel=0.1)
    assert tail.energy < -1e-3
    pressures = [-float(result.stress[0].trace()) / 3 for result in (near, far)]
    assert tail.pressure == pytest.approx((pressures[1] - pressures[0]) / (1 - 1 / 27), rel=0.15)
    assert (tail.prior, tail.cutoff) == (kind, 12.0)


def test_none_without_dispersion_or_a_bulk(liquid, make_potential):
    assert dispersion_tails(make_potential(), System.from_ase(liquid)) == []
    liquid.pbc = (True, True, False)
    assert dispersion_tails(only(d2()), System.from_ase(liquid)) == []
    both = Ensemble([only(d2()), only(d2())])
    liquid.pbc = True
    assert len(dispersion_tails(both, System.from_ase(liquid))) == 1


def test_the_command_prints_it(liquid, tmp_path, capsys):
    save(only(d2(cutoff=8.0)).float(), tmp_path / "d2.safetensors")
    write(tmp_path / "argon.extxyz", liquid)
    words = ["energy", tmp_path / "argon.extxyz", "--model", tmp_path / "d2.safetensors", "--device", "cpu"]
    assert cli.main(list(map(str, words))) == 0
    out = capsys.readouterr().out
    (tail,) = dispersion_tails(only(d2(cutoff=8.0)), System.from_ase(liquid))
    assert f"d2 beyond 8 Å: about {tail.energy:.4f} eV and" in out
    assert np.isfinite(tail.pressure)
    assert torch.get_default_dtype() == torch.float32
