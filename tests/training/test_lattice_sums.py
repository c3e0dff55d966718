"""Training steps with Ewald sums: losses and gradients of frames evaluated separately, in buffers that stay."""

import numpy as np
import pytest
import torch
from test_step import Watch

from torchmdx import Batch, Potential, TensorNet2Config, evaluate
from torchmdx.datasets.frames import Frames
from torchmdx.models.priors.coulomb import CoulombConfig
from torchmdx.training.config import OptimizerSection
from torchmdx.training.labelled import label
from torchmdx.training.loss_section import LossSection
from torchmdx.training.step import NORM, VALUES, TrainStep

NETWORK = TensorNet2Config(num_channels=8, num_layers=1, num_charges=2, cutoff=3.0, max_z=18)


def frame(rng, count, pbc):
    cell = np.diag(rng.uniform(5.5, 7.0, 3)) + rng.uniform(-0.5, 0.5, (3, 3))
    grid = np.stack(np.meshgrid(*[np.arange(2)] * 3), -1).reshape(-1, 3)[rng.permutation(8)[:count]]
    return Frames.single(
        (grid / 2 + rng.uniform(0.0, 0.2, (count, 3))) @ cell,
        np.resize([11, 17], count),
        cell=cell if pbc.any() else None,
        pbc=pbc,
        energy=rng.normal(),
        forces=rng.normal(size=(count, 3)),
        stress=0.01 * np.eye(3) if pbc.all() else None,
    )


def frames(seed, kinds="bbmb"):
    """b: a bulk crystal, m: a molecule, s: a slab."""
    rng, pbc = np.random.default_rng(seed), {"b": [True] * 3, "m": [False] * 3, "s": [True, True, False]}
    return Frames.concatenate([frame(rng, 4 + 2 * (k % 2), np.array(pbc[kind])) for k, kind in enumerate(kinds)])


def stepper(periodic="ewald", **options):
    torch.manual_seed(0)
    coulomb = CoulombConfig(periodic=periodic, cutoff=4.8, accuracy=1e-4)
    potential = Potential(NETWORK, [coulomb]).double()
    loss = LossSection()
    loss.stress.weight = 1.0
    step = TrainStep(potential, loss, OptimizerSection(), **options)
    step.set_rates(1e-3, (10.0, 1.0, 100.0))
    return potential, step


def labelled(given):
    sizes = dict(num_atoms=24, num_systems=5)
    return label(given, np.arange(len(given)), cutoff=4.8, dtype=torch.float64, **sizes)


def separate(potential, given):
    """Loss and its gradient from frames that are evaluated one by one."""
    bulk = given.pbc.all(-1)
    batches = [Batch.of(given.system(k)) for k in range(len(given))]
    results = [evaluate(potential, b, create_graph=True, stress=bool(s)) for b, s in zip(batches, bulk, strict=True)]
    off = torch.stack([(r.energy[0] - e) / n for r, e, n in zip(results, given.energy, given.counts, strict=True)])
    pull = torch.cat([r.forces for r in results]) - torch.as_tensor(given.forces)
    loss = 10.0 * off.square().mean() + pull.square().mean()
    if bulk.any():
        push = [results[k].stress[0] - torch.as_tensor(given.stress[k]) for k in np.flatnonzero(bulk)]
        loss = loss + 100.0 * torch.stack(push).square().mean()
    return loss, torch.autograd.grad(loss, [p for p in potential.parameters() if p.requires_grad], allow_unused=True)


def check(potential, step, given):
    loss, gradients = separate(potential, given)
    slot = step.load(labelled(given))
    values = step.compute(slot)
    assert values[VALUES.index("loss")].item() == pytest.approx(loss.item(), rel=1e-8)
    names = [name for name, p in potential.named_parameters() if p.requires_grad]
    wanted = dict(zip(names, gradients, strict=True))
    for start, (name, weight) in zip(step.flat.starts, step.flat.named, strict=True):
        expected = wanted[name] if wanted[name] is not None else torch.zeros_like(weight)
        found = step.flat.view(step.flat.gradient, start, weight)
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-8, msg=name)
    return slot


@pytest.mark.parametrize("kinds", ["bbmb", "bbb", "mm", "bbs"])
def test_losses_and_gradients_match_frames_evaluated_separately(kinds):
    potential, step = stepper()
    slot = check(potential, step, frames(1, kinds))
    assert slot.sums.fixed == ("s" not in kinds)
    assert all(prior.bulk is None for prior in potential.priors)  # others evaluate the potential too


def test_a_mesh_is_summed_as_it_was():
    potential, step = stepper("pme")
    assert not check(potential, step, frames(1, "bb")).sums.fixed


def test_batches_of_other_crystals_use_the_same_buffers_and_read_nothing(monkeypatch):
    monkeypatch.setattr("torchmdx.engines.cpu.pair_forms.serves", lambda *tensors: False)  # a CPU's kernels may
    for module in ("models.potential", "models.priors.coulomb", "models.priors.open_pairs", "models.priors.reciprocal"):
        monkeypatch.setattr(f"torchmdx.{module}.shapes_are_fixed", lambda tensor: True)
    potential, step = stepper(capacities={"24x6": 1500, "24x6 vectors 0": 512, "24x6 rows 0": 8})
    buffers = None
    for seed, kinds in ((1, "bbmb"), (2, "bbbm"), (3, "bb")):
        slot = step.load(labelled(frames(seed, kinds)))
        (sums,) = slot.sums._bulk
        found = [t.data_ptr() for t in (sums.indices, sums.atoms, sums.filled, sums.places)]
        assert buffers in (None, found)
        buffers = found
        edges = slot.search.update(slot.labelled.batch.positions, slot.labelled.batch.cell)
        with monkeypatch.context() as patch, Watch() as watch:
            patch.setattr(slot.search, "update", lambda positions, cell, edges=edges: edges)  # another's on a GPU
            values = step.compute(slot)
        assert watch.seen > 100
        with monkeypatch.context() as patch:
            for module in ("models.potential", "models.priors.coulomb", "models.priors.open_pairs"):
                patch.setattr(f"torchmdx.{module}.shapes_are_fixed", lambda tensor: False)
            loss, _ = separate(potential, frames(seed, kinds))
        assert values[0].item() == pytest.approx(loss.item(), rel=1e-8)
        assert values[NORM] == 0


def test_a_resumed_run_has_the_same_slots():
    _, step = stepper()
    step.load(labelled(frames(1)))
    capacities = step.capacities()
    assert capacities["24x6 vectors 0"] % 64 == 0
    _, resumed = stepper(capacities=capacities)
    resumed.load(labelled(frames(5, "m")))  # needs none
    assert resumed.capacities() == capacities


def test_graphs_are_captured_anew_after_buffers_have_grown_and_not_of_slabs(monkeypatch):
    _, step = stepper()
    calls = []

    class Graphs:
        def run(self, graphs, kind, work):
            calls.append(kind)
            graphs[kind] = "captured"
            return work()

    step.graphs = Graphs()
    slot = step.load(labelled(frames(1, "bb")))
    step(labelled(frames(1, "bb")))
    assert calls == ["step"]
    assert slot.graphs == {"step": "captured"}
    larger = frames(1, "bb")
    larger.cell[:] *= 1.5
    step.load(labelled(larger))
    assert slot.graphs == {}
    step(labelled(frames(1, "bs")))
    assert calls == ["step"]
