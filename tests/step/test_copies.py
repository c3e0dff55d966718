"""Copies, pickles and threads of captured steps, pools and searches."""

import copy
import pickle
import threading

import numpy as np
import pytest

from torchmdx import Batch, CapturedStep, EdgeSearch, StepPool, System, evaluate

WAYS = [copy.deepcopy, lambda thing: pickle.loads(pickle.dumps(thing))]
way = pytest.mark.parametrize("way", WAYS, ids=["deepcopy", "pickle"])


@way
def test_a_step_is_copied_with_its_settings_and_last_cell(potential, crystal, way, device):
    potential = copy.deepcopy(potential).to(device)
    step = CapturedStep(potential, System.from_ase(crystal), stress=True, energies=True, skin=0.3, audit_every=7)
    stretched = crystal.cell.array * 1.02
    step(crystal.positions, stretched)
    other = way(step)
    assert (other.skin, other.audit_every, other.precision) == (0.3, 7, "float64")
    crystal.set_cell(stretched)
    crystal.rattle(0.02, seed=1)
    wanted = evaluate(potential, System.from_ase(crystal), stress=True)
    found = other(crystal.positions)  # the last cell of the original
    np.testing.assert_allclose(found.forces, wanted.forces.cpu(), atol=1e-12)
    np.testing.assert_allclose(found.stress, wanted.stress.cpu(), atol=1e-12)
    np.testing.assert_allclose(found.energies, wanted.energies.cpu(), atol=1e-12)
    assert other.num_evaluations == 1


@way
def test_a_pool_is_copied_without_steps(potential, ethanol, crystal, way):
    pool = StepPool(potential, stress=True, precision="float64", most_steps=3)
    pool(System.from_ase(ethanol))
    other = way(pool)
    assert (len(pool), len(other), other.stress, other.most_steps) == (1, 0, True, 3)
    wanted = evaluate(potential, System.from_ase(crystal), stress=True)
    np.testing.assert_allclose(other(System.from_ase(crystal)).stress, wanted.stress, atol=1e-12)


@way
def test_a_search_is_copied_after_use(ethanol, way):
    batch = Batch.of(System.from_ase(ethanol))
    ethanol.positions *= 3
    far = Batch.of(System.from_ase(ethanol))
    search = EdgeSearch(4.0)
    before = search.allocate(batch).source.clone()
    other = way(search)
    found = int(other.update(far.positions).num_edges)
    assert found == int(EdgeSearch(4.0).allocate(far).num_edges)
    assert found < int(search.edges.num_edges)  # the original keeps its list
    assert bool((search.edges.source == before).all())
    assert other._handle != search._handle


def test_threads_that_share_a_step_take_turns(potential, ethanol):
    step = CapturedStep(potential, System.from_ase(ethanol))
    frames = [ethanol.positions + np.random.default_rng(k).normal(scale=0.05, size=(9, 3)) for k in range(4)]
    wanted = [step(frame).forces for frame in frames]
    errors = []

    def work(frame, forces):
        try:
            for _ in range(15):
                np.testing.assert_allclose(step(frame).forces, forces, atol=1e-12)
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=pair) for pair in zip(frames, wanted, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
