"""Predictions in batches are those of structures one by one, and what goes wrong is named."""

import copy
import logging

import numpy as np
import pytest
import torch
from frame_sets import frames_of, molecules, write_store

from torchmdx import System, evaluate
from torchmdx.report import predictor as predict_module
from torchmdx.report.evaluation import evaluate_sets
from torchmdx.report.predictor import Predictor, predict
from torchmdx.step.results import OutOfDeviceMemory

DTYPES = {torch.float64: 1e-10, torch.float32: 1e-5}


def one_by_one(potential, structures):
    """Energies, forces and stress of the exact model in float64, each structure by itself."""
    found = [evaluate(potential, System.from_ase(atoms), stress=True) for atoms in structures]
    return (
        np.array([float(result.energy[0]) for result in found]),
        np.concatenate([result.forces.numpy() for result in found]),
        np.concatenate([result.stress.numpy() for result in found]),
    )


@pytest.mark.parametrize("atoms", [1, 12, 10_000])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_batches_give_what_single_structures_give(tmp_path, trained, mixed, dtype, atoms):
    exact = trained("cpu", torch.float64)
    store = write_store(tmp_path / "s", frames_of(mixed))
    order = np.array([5, 0, 6, 2, 2, 4, 1, 3])
    wanted = one_by_one(exact, [mixed[i] for i in order])
    predictor = Predictor(exact, device="cpu", dtype=dtype, atoms=atoms)
    parts = list(predictor.parts(store, order, stress=True))
    assert len(parts) == {1: 8, 12: 4, 10_000: 1}[atoms]
    np.testing.assert_array_equal(np.concatenate([part.indices for part in parts]), order)
    for part in parts:
        np.testing.assert_array_equal(part.frames.energy, store.gather(part.indices).energy)
    for name, values in zip(("energy", "forces", "stress"), wanted, strict=True):
        found = np.concatenate([getattr(part, name) for part in parts])
        assert found.dtype == np.float64
        np.testing.assert_array_equal(np.isnan(found), np.isnan(values))
        scale = max(1.0, np.nanmax(np.abs(values)))
        np.testing.assert_allclose(found, values, rtol=0, atol=DTYPES[dtype] * scale)
    assert np.isnan(wanted[2]).any()
    assert np.isfinite(wanted[2]).any()


def test_all_at_once(potential, store):
    indices = np.arange(20)[::-1].copy()
    seen = []
    found = predict(
        potential, store, indices, device="cpu", dtype=torch.float64, progress=lambda *done: seen.append(done)
    )
    np.testing.assert_allclose(found.energy, store.gather(indices).energy, rtol=0, atol=1e-10)
    np.testing.assert_allclose(found.forces, store.gather(indices).forces, rtol=0, atol=1e-5)
    assert found.stress is None
    assert seen[-1] == (20, 20)
    with pytest.raises(ValueError, match="predict needs at least one frame, got none"):
        predict(potential, store, indices[:0], device="cpu", dtype=torch.float64)


def test_the_potential_stays_as_it_is(make_potential, store):
    potential = make_potential(torch.float32).train()
    weights = {name: value.clone() for name, value in potential.state_dict().items()}
    for parameter in potential.parameters():
        parameter.requires_grad_(True)
    predict(potential, store, np.arange(4), device="cpu", dtype=torch.float64)
    assert potential.training
    assert all(parameter.requires_grad for parameter in potential.parameters())
    assert potential.dtype == torch.float32
    assert all(torch.equal(value, weights[name]) for name, value in potential.state_dict().items())


def test_stress_is_predicted_where_there_are_labels(tmp_path, potential, crystal, cation):
    store = write_store(tmp_path / "s", frames_of([crystal, cation], potential))
    found = predict(potential, store, np.arange(2), device="cpu", dtype=torch.float64)
    np.testing.assert_allclose(found.stress[0], store.gather(0).stress[0], atol=1e-6)
    assert np.isnan(found.stress[1]).all()
    assert predict(potential, store, np.arange(2), device="cpu", dtype=torch.float64, stress=False).stress is None


def test_a_neighbour_list_that_overflows_is_grown(tmp_path, trained, caplog):
    """The first batch is a molecule pulled apart, the second, of the same shape, a compact one."""
    potential = trained("cpu", torch.float64)
    compact = molecules(1)[0]
    apart = compact.copy()
    apart.positions *= 20
    store = write_store(tmp_path / "s", frames_of([apart, compact]))
    predictor = Predictor(potential, device="cpu", dtype=torch.float64, atoms=9)
    parts = predictor.parts(store, np.arange(2))
    next(parts)
    (step,) = predictor._steps.values()
    step.search.allocate(step.ordered, capacity=5)
    step.engine.reserve(5)
    with caplog.at_level(logging.INFO, "torchmdx.step.captured_step"):
        found = next(parts)
    assert step.num_recoveries == 1
    assert "grown" in caplog.text
    np.testing.assert_allclose(found.forces, one_by_one(potential, [compact])[1], rtol=0, atol=1e-10)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_what_is_not_finite_is_named(tmp_path, make_potential, dtype):
    """A potential that is NaN for nitrogen."""
    potential = make_potential()
    potential.reference_energies[7] = torch.nan
    store = write_store(tmp_path / "s", frames_of(molecules(6)), split_at=2)
    with pytest.raises(ValueError, match=r"frame 101 of 'data/second.xyz' can't be evaluated: .* not finite"):
        predict(potential, store, np.arange(6), device="cpu", dtype=dtype)
    found = predict(potential, store, np.arange(3), device="cpu", dtype=dtype)
    assert np.isfinite(found.energy).all()


def test_atoms_at_one_place_are_named(tmp_path, potential):
    structures = molecules(3)
    structures[1].positions[2] = structures[1].positions[0]
    store = write_store(tmp_path / "s", frames_of(structures))
    message = "frame 1 of 'data/first.xyz' can't be evaluated: atoms must not coincide, got atoms 0 and 2 at the same"
    with pytest.raises(ValueError, match=message):
        predict(potential, store, np.arange(3), device="cpu", dtype=torch.float64)


def test_elements_beyond_the_potential_are_named(tmp_path, potential):
    structures = molecules(3)
    structures[2].numbers[1] = 53
    store = write_store(tmp_path / "s", frames_of(structures))
    message = "this potential knows atomic numbers up to 35, got 53 in frame 2 of 'data/first.xyz'"
    with pytest.raises(ValueError, match=message):
        predict(potential, store, np.arange(3), device="cpu", dtype=torch.float64)


def test_too_little_memory_means_smaller_batches(potential, store, monkeypatch):
    sizes = []

    class Small(predict_module.CapturedStep):
        def __init__(self, potential, batch, **settings):
            sizes.append(batch.num_atoms)
            if batch.num_atoms > 20:
                raise OutOfDeviceMemory("a step needs more memory than the GPU has")
            super().__init__(potential, batch, **settings)

    monkeypatch.setattr(predict_module, "CapturedStep", Small)
    found = predict(potential, store, np.arange(24), device="cpu", dtype=torch.float64)
    np.testing.assert_allclose(found.energy, store.gather(np.arange(24)).energy, rtol=0, atol=1e-10)
    assert sizes[0] > 20
    assert max(sizes[3:]) <= 20


def test_a_structure_too_large_by_itself_is_an_error(potential, store, monkeypatch):
    def full(*_, **__):
        raise OutOfDeviceMemory("a step needs more memory than the GPU has")

    monkeypatch.setattr(predict_module, "CapturedStep", full)
    with pytest.raises(OutOfDeviceMemory):
        predict(potential, store, np.arange(24), device="cpu", dtype=torch.float64)


@pytest.mark.nightly
def test_steps_of_shapes_that_come_often_may_capture(tmp_path, potential, monkeypatch):
    structures = [*molecules(1) * 40, *[atoms[:3] for atoms in molecules(1) * 5]]
    store = write_store(tmp_path / "s", frames_of(structures))
    modes, captured = [], predict_module.CapturedStep

    def make(potential, batch, *, mode, **settings):
        modes.append((batch.num_atoms, batch.num_systems, mode))
        return captured(potential, batch, mode=mode, **settings)

    monkeypatch.setattr(predict_module, "CapturedStep", make)
    monkeypatch.setattr(predict_module, "WORTH_A_GRAPH", 40)
    plain = Predictor(potential, device="cpu", dtype=torch.float64, atoms=9)
    padded = Predictor(potential, device="cpu", dtype=torch.float64, atoms=9)
    padded._on_gpu = True  # batches have the shapes that a GPU gets
    found = [list(predictor.parts(store, np.arange(45))) for predictor in (plain, padded)]
    as_they_are, in_shapes = [(9, 1), (9, 3), (6, 2)], [(16, 2), (16, 4), (8, 4)]
    assert modes[:3] == [(*shape, "eager") for shape in as_they_are]
    assert modes[3:] == [(*shape, mode) for shape, mode in zip(in_shapes, ("auto", "eager", "eager"), strict=True)]
    assert not +padded._coming
    for name in ("energy", "forces"):
        one, other = (np.concatenate([getattr(part, name) for part in parts]) for parts in found)
        np.testing.assert_allclose(other, one, rtol=0, atol=1e-10)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_graphs_of_a_gpu_give_the_same(tmp_path, trained, dtype, monkeypatch):
    structures = molecules(120)
    store = write_store(tmp_path / "s", frames_of(structures))
    predictor = Predictor(trained("cuda", torch.float64), device="cuda", dtype=dtype, atoms=36)
    predictor._fast = False
    monkeypatch.setattr(predict_module, "WORTH_A_GRAPH", 8)
    exact = copy.deepcopy(trained("cuda", torch.float64)).to("cpu")
    wanted = one_by_one(exact, structures)
    parts = list(predictor.parts(store, np.arange(len(structures)), stress=True))
    steps = list(predictor._steps.values())
    assert any(step.policy.replay_seconds > 0 for step in steps)  # it was captured and measured
    assert "graph" in {step.mode for step in steps} or all("takes" in step.why for step in steps)
    for name, values in zip(("energy", "forces", "stress"), wanted, strict=True):
        found = np.concatenate([getattr(part, name) for part in parts])
        scale = np.nanmax(np.abs(values), initial=1.0)
        np.testing.assert_allclose(found, values, rtol=0, atol=DTYPES[dtype] * scale)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_gpu_gives_the_same(tmp_path, trained, mixed, dtype):
    exact = trained("cpu", torch.float64)
    structures = mixed + molecules(40)
    store = write_store(tmp_path / "s", frames_of(structures))
    predictor = Predictor(trained("cuda", torch.float64), device="cuda", dtype=dtype, atoms=64)
    exact = copy.deepcopy(trained("cuda", torch.float64)).to("cpu")
    wanted = one_by_one(exact, structures)
    parts = list(predictor.parts(store, np.arange(len(structures)), stress=True))
    for name, values in zip(("energy", "forces", "stress"), wanted, strict=True):
        found = np.concatenate([getattr(part, name) for part in parts])
        scale = max(1.0, np.nanmax(np.abs(values)))
        np.testing.assert_allclose(found, values, rtol=0, atol=DTYPES[dtype] * scale)
    assert len(predictor._steps) <= 4


def test_only_float32_and_float64(potential):
    with pytest.raises(ValueError, match="dtype must be torch.float32 or torch.float64, got torch.float16"):
        Predictor(potential, device="cpu", dtype=torch.float16)


def test_elements_are_looked_at_before_anything_is_predicted(tmp_path, potential, store, monkeypatch):
    structures = molecules(3)
    structures[2].numbers[1] = 53
    beyond = write_store(tmp_path / "s", frames_of(structures))
    monkeypatch.setattr(Predictor, "parts", lambda *_, **__: pytest.fail("it began"))
    sets = {"good": (store, np.arange(4)), "bad": (beyond, np.arange(3))}
    with pytest.raises(ValueError, match="up to 35, got 53 in frame 2 of 'data/first.xyz'"):
        evaluate_sets(potential, sets, device="cpu", dtype=torch.float64)
    monkeypatch.undo()
    sets["bad"] = (beyond, np.arange(2))
    assert evaluate_sets(potential, sets, device="cpu", dtype=torch.float64).errors["bad"].num_frames == 2
