"""Every engine gives the exact model's numbers, and the fastest one that can serve is chosen."""

import dataclasses

import numpy as np
import pytest
import torch
from conformance import d2, kinds, zbl

from torchmdx import Batch, Potential, System, evaluate
from torchmdx.engines import ModelEngine, choose_engine
from torchmdx.models.fast import MOST_CHANNELS, FastTensorNet
from torchmdx.neighbors.brute_force import brute_force


def batch_of(potential, *structures):
    return Batch.from_systems([System.from_ase(a, dtype=potential.dtype) for a in structures]).to(potential.device)


def run(engine, batch, cutoff, spare=0):
    edges = brute_force(batch, cutoff)
    edges = brute_force(batch, cutoff, edges.capacity + spare)
    engine.reserve(edges.capacity)
    return engine.run(batch.positions, batch.cell, edges)


def assert_as_exact(outputs, wanted, tolerance):
    forces = wanted.forces.abs().max()
    assert float((outputs.forces - wanted.forces).abs().max() / forces) < tolerance
    assert float((outputs.energies - wanted.energies).abs().max()) < tolerance
    assert float((outputs.energy - wanted.energy).abs().max()) < tolerance * len(wanted.energies)
    if outputs.stress is not None:
        known = ~torch.isnan(wanted.stress)
        assert torch.equal(torch.isnan(outputs.stress), ~known)
        difference = (outputs.stress - wanted.stress)[known]
        assert float(difference.abs().max() / wanted.stress[known].abs().max()) < 10 * tolerance


@pytest.mark.parametrize("stress", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_the_chosen_engine_is_right(trained, ethanol, cation, crystal, slab, device, dtype, stress):
    potential, structures = trained(device, dtype), (ethanol, crystal, cation, slab)
    batch = batch_of(potential, *structures)
    precision = str(dtype).removeprefix("torch.")
    engine, why = choose_engine(potential, batch, stress=stress, precision=precision)
    exact = trained(device, torch.float64)
    wanted = evaluate(exact, batch_of(exact, *structures), stress=True)
    for spare in (0, 77):
        outputs = run(engine, batch, potential.cutoff, spare)
        assert (outputs.stress is not None) == stress
        assert outputs.energy.dtype == outputs.energies.dtype == torch.float64
        assert_as_exact(outputs, wanted, 1e-5 if dtype == torch.float32 else 1e-11)
    names = {
        ("cpu", torch.float32): ("table", "filters from tables on the CPU"),
        ("cuda", torch.float32): ("kernels, float32", "fused kernels"),
    }
    assert (engine.name, why) == names.get((device, dtype), ("exact", "float64 takes the exact model"))
    assert 0 <= engine.table_error <= 1e-6
    assert (engine.table_error > 0) == (dtype == torch.float32)


@pytest.mark.gpu
def test_tf32_is_another_engine(trained, ethanol, crystal):
    potential = trained("cuda")
    batch = batch_of(potential, ethanol, crystal)
    engine, _ = choose_engine(potential, batch, stress=False, precision="tf32")
    exact = trained("cuda", torch.float64)
    assert engine.name == "kernels, tf32"
    assert_as_exact(
        run(engine, batch, potential.cutoff), evaluate(exact, batch_of(exact, ethanol, crystal), stress=True), 2e-2
    )


@pytest.mark.gpu
def test_what_the_kernels_cannot_do_the_exact_model_does(trained, ethanol):
    config = dataclasses.replace(trained("cuda").config, num_channels=MOST_CHANNELS + 8, num_layers=1)
    potential = Potential(config).to("cuda").eval().requires_grad_(False)
    batch = batch_of(potential, ethanol)
    engine, why = choose_engine(potential, batch, stress=False, precision="float32")
    assert engine.name == "exact"
    assert why == f"exact model: num_channels must be at most {MOST_CHANNELS}, got {MOST_CHANNELS + 8}"
    assert_as_exact(run(engine, batch, potential.cutoff), evaluate(potential, batch), 1e-5)


@pytest.mark.parametrize("stress", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("kind", kinds())
def test_every_model_and_prior_has_an_engine(make_kind, kind, ethanol, cation, crystal, slab, dtype, stress):
    potential, structures = make_kind(kind, dtype), (ethanol, crystal, cation, slab)
    batch = batch_of(potential, *structures)
    engine, why = choose_engine(potential, batch, stress=stress, precision=str(dtype).removeprefix("torch."))
    exact = make_kind(kind)
    wanted = evaluate(exact, batch_of(exact, *structures), stress=True)
    assert_as_exact(
        run(engine, batch, potential.search_cutoff(batch), 31), wanted, 1e-4 if dtype == torch.float32 else 1e-11
    )
    if dtype == torch.float64:
        assert (engine.name, why) == ("exact", "float64 takes the exact model")
    elif potential.predicts_charges:
        assert (engine.name, why) == ("exact", "exact model: there are tables for a TensorNet alone, got a TensorNet2")
    else:
        assert (engine.name, why) == ("table", "filters from tables on the CPU")


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        (dict(priors=[zbl, d2]), "it must have no priors, got zbl, d2"),
        (dict(model="tensornet2"), "its network must be a TensorNet, got TensorNet2"),
        (dict(num_head_layers=1), "num_head_layers must be 0, got 1"),
        (dict(), None),
    ],
    ids=["priors", "tensornet2", "longer head", "plain"],
)
def test_the_kernels_are_for_a_plain_tensornet_alone(make_potential, settings, reason):
    pytest.importorskip("triton")
    potential = make_potential(torch.float32, **settings)
    assert FastTensorNet.why_not(potential) == reason
    if reason is not None:
        with pytest.raises(ValueError, match=f"this potential has no fast path: {reason}"):
            FastTensorNet(potential)


def test_positions_of_the_batch_are_not_those_of_the_evaluation(trained, ethanol):
    """An engine takes atoms from its batch, positions and cell from its arguments."""
    potential = trained("cpu", torch.float64)
    batch = batch_of(potential, ethanol)
    engine = ModelEngine(potential, batch, stress=False, tabulated=True)
    ethanol.rattle(0.1, seed=4)
    moved = batch_of(potential, ethanol)
    edges = brute_force(moved, potential.cutoff)
    outputs = engine.run(moved.positions, moved.cell, edges)
    np.testing.assert_allclose(outputs.forces, evaluate(potential, moved).forces, rtol=0, atol=1e-5)


def test_an_unknown_precision_is_refused(trained, ethanol):
    potential = trained("cpu")
    with pytest.raises(ValueError, match="precision must be one of float64, float32, tf32, bfloat16, got 'float16'"):
        choose_engine(potential, batch_of(potential, ethanol), stress=False, precision="float16")
    for precision in ("tf32", "bfloat16"):
        with pytest.raises(ValueError, match=f"precision '{precision}' needs a GPU, got a potential on the CPU"):
            choose_engine(potential, batch_of(potential, ethanol), stress=False, precision=precision)
