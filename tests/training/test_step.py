"""TrainStep: losses and gradients compared with a plain evaluation, padding, overflow, non-finite gradients."""

from dataclasses import replace

import made_up
import numpy as np
import pytest
import torch
from foreign_state import STATES
from torch.utils._python_dispatch import TorchDispatchMode

from torchmdx.engines.pairs import energy as pair_energy
from torchmdx.evaluation.derivatives import evaluate
from torchmdx.models.potential import Potential
from torchmdx.models.priors.coulomb import CoulombConfig
from torchmdx.models.priors.zbl import ZBLConfig
from torchmdx.runtime.isolation import products_are_exact
from torchmdx.structures.system import Batch
from torchmdx.training.batches import Batches, Ranks
from torchmdx.training.config_file import make_config
from torchmdx.training.labelled import label
from torchmdx.training.pending_steps import PendingSteps, TrainingError
from torchmdx.training.spare_slots import LEAST_ROOM
from torchmdx.training.step import NORM, OVERFLOW, VALUES, TrainStep

CPU = torch.device("cpu")
STATES_OF_PRODUCTS = ["high precision", "fp32_precision", "autocast"]
PRIORS = {"tensornet": [], "tensornet2": [ZBLConfig(cutoff=2.0, strength=1e-3), CoulombConfig(cutoff=5.0)]}


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return made_up.store(tmp_path_factory.mktemp("data") / "st", 24)


def make(store, **sections):
    config = make_config(made_up.values(store.path, **sections))
    torch.manual_seed(1)
    potential = Potential(config.model.network(), PRIORS[config.model.name]).double()
    for number, energy in made_up.LONE.items():
        potential.reference_energies[number] = energy
    step = TrainStep(potential, config.loss, config.optimizer)
    step.set_rates(1e-2, (10.0, 1.0, 1.0))
    return potential, step


def some(store, indices, **sizes):
    frames = store.gather(indices)
    sizes = {"num_atoms": frames.num_atoms + 11, "num_systems": len(frames) + 2} | sizes
    return label(frames, np.asarray(indices), cutoff=4.0, dtype=torch.float64, **sizes)


@pytest.mark.parametrize("model", PRIORS)
def test_losses_and_gradients_match_frames_evaluated_separately(store, model):
    potential, step = make(store, loss={"energy": {"function": "huber", "delta": 0.02}}, model={"name": model})
    assert step.pairwise
    labelled = some(store, [3, 1, 20, 7])
    frames = store.gather([3, 1, 20, 7])
    results = [evaluate(potential, Batch.of(frames.system(k)), create_graph=True) for k in range(4)]
    errors = torch.stack([(r.energy[0] - e) / n for r, e, n in zip(results, frames.energy, frames.counts, strict=True)])
    off = torch.cat([r.forces for r in results]) - torch.as_tensor(frames.forces)
    energy = torch.nn.functional.huber_loss(errors, torch.zeros(4).double(), delta=0.02)
    loss = 10.0 * energy + off.square().mean()
    wanted = torch.autograd.grad(loss, step.flat.parameters)
    slot = step.load(labelled)
    step.compute(slot)
    values = dict(zip(VALUES, step.flat.extra.tolist(), strict=True))
    assert values["loss"] == pytest.approx(loss.item(), rel=1e-9)
    assert values["energy_loss"] == pytest.approx(energy.item(), rel=1e-9)
    assert values["energy"] == pytest.approx(errors.abs().mean().item(), rel=1e-9)
    assert values["forces"] == pytest.approx(off.abs().mean().item(), rel=1e-9)
    for start, (name, weight), expected in zip(step.flat.starts, step.flat.named, wanted, strict=True):
        got = step.flat.view(step.flat.gradient, start, weight)
        torch.testing.assert_close(got, expected, rtol=1e-7, atol=1e-10, msg=name)


def test_losses_on_charges_and_dipoles_match_frames_evaluated_separately(tmp_path):
    def change(index, frame):
        frame = made_up.charged(frame)
        return frame if index != 1 else replace(frame, charges=frame.charges * np.nan, dipole=frame.dipole * np.nan)

    store = made_up.store(tmp_path / "st", 4, change=change)
    terms = {"charges": {"weight": 3.0}, "dipole": {"weight": 0.5, "function": "mae"}}
    potential, step = make(store, loss=terms, model={"name": "tensornet2"})
    step.set_rates(1e-2, (0.0, 0.0, 0.0, 3.0, 0.5))
    labelled = some(store, [3, 1, 0])
    frames = store.gather([3, 1, 0])
    assert labelled.totals == (3, frames.num_atoms, 0, frames.counts[0] + frames.counts[2], 2)
    results = [evaluate(potential, Batch.of(frames.system(k)), create_graph=True) for k in (0, 2)]
    has = np.repeat(frames.has("charges"), frames.counts)
    of_atoms = torch.cat([r.charges for r in results]) - torch.as_tensor(frames.charges[has])
    of_frames = torch.cat([r.dipoles for r in results]) - torch.as_tensor(frames.dipole[[0, 2]])
    loss = 3.0 * of_atoms.square().mean() + 0.5 * of_frames.abs().mean()
    wanted = torch.autograd.grad(loss, step.flat.parameters, allow_unused=True)
    step.compute(step.load(labelled))
    values = dict(zip(VALUES, step.flat.extra.tolist(), strict=True))
    assert values["loss"] == pytest.approx(loss.item(), rel=1e-6)
    assert values["charges"] == pytest.approx(of_atoms.abs().mean().item(), rel=1e-6)
    assert values["dipole"] == pytest.approx(of_frames.abs().mean().item(), rel=1e-6)
    for start, (name, weight), expected in zip(step.flat.starts, step.flat.named, wanted, strict=True):
        got = step.flat.view(step.flat.gradient, start, weight)
        expected = torch.zeros_like(got) if expected is None else expected
        torch.testing.assert_close(got, expected, rtol=1e-6, atol=1e-9, msg=name)


def test_padding_changes_nothing(store):
    losses = []
    for sizes in ({}, {"num_atoms": 100, "num_systems": 9}):
        _, step = make(store)
        losses.append([step(some(store, batch, **sizes))[:NORM].tolist() for batch in ([0, 1, 2], [3, 4, 5])])
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-9)


def test_an_overflow_skips_the_step_which_is_repeated_after_growing(store):
    _, wide = make(store)
    _, tight = make(store)
    labelled, other = some(store, [0, 1, 2, 3], num_atoms=64), some(store, [4, 5, 6, 7], num_atoms=64)
    tight._capacities = {"64x7": 16}
    before = {name: value.clone() for name, value in tight.optimizer.state().items()}
    row = tight(labelled)
    assert row[OVERFLOW] > 0
    assert all(torch.equal(value, before[name]) for name, value in tight.optimizer.state().items())
    pending = PendingSteps(tight, 2, lambda batch: "frames")
    assert pending.add(1, labelled, row) == []
    found = pending.add(2, other, tight(other))
    expected = [wide(batch).tolist() for batch in (labelled, other)]
    np.testing.assert_allclose([row for _, _, row in found], expected, rtol=1e-9)
    assert tight.optimizer.steps == 2
    assert tight.capacities()["64x7"] > 16
    assert not tight(labelled)[OVERFLOW]


def test_new_sizes_are_assigned_without_reading_the_device(store, monkeypatch):
    _, step = make(store)
    slot = step.load(some(store, [0, 1, 2], num_atoms=64))
    given, plain = [], slot.search.assign
    monkeypatch.setattr(slot.search, "assign", lambda *arguments: (given.append(arguments), plain(*arguments))[1])
    labelled = some(store, [3, 4], num_atoms=64, num_systems=5)
    assert step.load(labelled) is slot
    ((batch, counts),) = given
    assert counts == batch.counts().tolist() == labelled.batch.counts().tolist()
    assert counts[:2] == store.counts[[3, 4]].tolist()


def test_spare_slots_depend_on_the_variation_between_systems(store):
    _, step = make(store)
    alike = some(store, [4] * 20, num_atoms=20 * int(store.counts[4]) + 8)
    needed = int(step.load(alike).search.edges.num_edges)
    assert needed < step.capacities()[f"{alike.shape[0]}x23"] == needed + LEAST_ROOM + int(0.005 * needed)


def test_a_grown_list_has_the_capacity_of_a_new_one(store):
    _, wide = make(store)
    _, tight = make(store)
    labelled = some(store, list(range(20)))
    key = "{}x{}".format(*labelled.shape)
    tight._capacities = {key: 16}
    assert tight(labelled)[OVERFLOW]
    tight.grow(labelled)
    assert not tight(labelled)[OVERFLOW]
    wide.load(labelled)
    assert tight.capacities() == wide.capacities()


def test_with_a_longer_prior_cutoff_the_list_of_the_network_grows_too(store):
    _, wide = make(store, model={"name": "tensornet2"})
    _, tight = make(store, model={"name": "tensornet2"})
    batches = [some(store, indices, num_atoms=64) for indices in ([0, 1, 2, 3], [4, 5, 6, 7])]
    tight._capacities = {"64x7 near": 16}
    row = tight(batches[0])
    assert row[OVERFLOW] > 0
    tight.grow(batches[0])
    found, expected = ([step(batch).tolist() for batch in batches] for step in (tight, wide))
    np.testing.assert_allclose(found, expected, rtol=1e-9)
    near, far = (wide.capacities()[name] for name in ("64x7 near", "64x7"))
    assert 16 < near < far
    _, again = make(store, model={"name": "tensornet2"})
    again._capacities = wide.capacities()
    again.load(batches[1])
    assert again.capacities() == wide.capacities()


def test_coincident_atoms_raise_with_step_and_frames_and_keep_the_weights(store, tmp_path):
    def change(index, frame):
        if index == 5:
            frame.positions[1] = frame.positions[0]
        return frame

    broken = made_up.store(tmp_path / "st", 10, change=change)
    _, step = make(broken)
    before = step.flat.values.clone()
    labelled = some(broken, [2, 5])
    pending = PendingSteps(step, 1, lambda batch: f"frames {batch.frames.tolist()}")
    with pytest.raises(TrainingError, match=r"must be finite, got loss nan, .* in step 12 with frames \[2, 5\]"):
        pending.add(12, labelled, step(labelled))
    assert torch.equal(step.flat.values, before)


def test_stress_is_trained_for_crystals_and_omitted_for_molecules(tmp_path):
    generator = np.random.default_rng(0)
    made = []
    for index in range(4):
        frame = made_up.frames(1, seed=index)[0]
        cell = np.eye(3)[None] * 9.0 if index % 2 else np.zeros((1, 3, 3))
        stress = generator.normal(size=(3, 3)).astype(np.float32) * 0.01
        stress = (stress + stress.T)[None] if index % 2 else np.full((1, 3, 3), np.nan, np.float32)
        made.append(
            type(frame)(**{**vars(frame), "cell": cell, "pbc": np.full((1, 3), bool(index % 2)), "stress": stress})
        )
    with made_up.StoreWriter(tmp_path / "st") as writer:
        for index, frame in enumerate(made):
            writer.add(frame, "x", index)
    store = made_up.Store.open(tmp_path / "st")
    _, step = make(store, loss={"stress": {"weight": 1.0}})
    values = dict(zip(VALUES, step(some(store, [0, 1, 2, 3])).tolist(), strict=True))
    _, fresh = make(store)
    frames = store.gather([1, 3])
    predicted = [evaluate(fresh.potential, frames.system(k), stress=True).stress[0] for k in range(2)]
    off = torch.stack(predicted) - torch.as_tensor(frames.stress)
    assert values["stress_loss"] == pytest.approx(off.square().mean().item(), rel=1e-6)
    assert np.isfinite(values["gradient_norm"])


@pytest.mark.nightly_for("mae")
@pytest.mark.parametrize("function", ["mse", "mae", "huber"])
def test_every_function_trains(store, function):
    term = {"function": function}
    _, step = make(store, loss={"energy": term, "forces": term})
    batches = Batches(
        store, np.arange(24), 8, cutoff=4.0, dtype=torch.float64, device=CPU, seed=0, ranks=Ranks(), prefetch=1
    )
    losses = [step(labelled)[0].item() for epoch in range(8) for labelled in batches.epoch(epoch)]
    assert np.mean(losses[-3:]) < 0.8 * np.mean(losses[:3])


def test_bf16_products_are_close_to_float32(store):
    values = []
    for bf16 in (False, True):
        potential, _ = make(store)
        potential = potential.float()
        config = make_config(made_up.values(store.path))
        step = TrainStep(potential, config.loss, config.optimizer, bf16=bf16)
        step.set_rates(1e-3, (10.0, 1.0, 0.0))
        frames = store.gather([0, 1])
        batch = label(frames, np.arange(2), num_atoms=40, num_systems=2, cutoff=4.0, dtype=torch.float32)
        values.append(step(batch)[:NORM])
    assert not torch.equal(values[0], values[1])
    torch.testing.assert_close(values[0], values[1], rtol=0.1, atol=0.01)


@pytest.mark.parametrize("tf32", [False, True])
@pytest.mark.parametrize("of_others", STATES_OF_PRODUCTS)
def test_products_are_exact_unless_tf32_is_asked_for(store, monkeypatch, tf32, of_others):
    potential, config = make(store)[0].float(), make_config(made_up.values(store.path))
    step = TrainStep(potential, config.loss, config.optimizer, tf32=tf32)
    batch = label(store.gather([0]), np.arange(1), num_atoms=30, num_systems=2, cutoff=4.0, dtype=torch.float32)
    seen, differentiate = [], pair_energy.differentiate_pairwise

    def watched(*args, **options):
        seen.append((torch.get_float32_matmul_precision(), torch.is_autocast_enabled("cpu")))
        return differentiate(*args, **options)

    monkeypatch.setattr(pair_energy, "differentiate_pairwise", watched)
    with STATES[of_others]():
        step(batch)
        step.evaluate(batch)
    assert seen == [("high" if tf32 else "highest", False)] * 2
    assert products_are_exact()


class Watch(TorchDispatchMode):
    """Rejects operations that synchronize with the device or have value-dependent shapes."""

    REFUSED = ("_local_scalar_dense", "nonzero", "masked_select", "unique", "equal", "is_nonzero")

    def __init__(self):
        super().__init__()
        self.seen = 0

    def __torch_dispatch__(self, function, types, arguments=(), options=None):
        name = function.overloadpacket.__name__
        assert name not in self.REFUSED, name
        if name == "index":  # by a mask
            assert all(i is None or i.dtype != torch.bool for i in arguments[1])
        self.seen += 1
        return function(*arguments, **(options or {}))


@pytest.mark.parametrize("stress", [0.0, 1.0])
def test_compute_and_apply_read_nothing_on_the_host(store, stress, monkeypatch):
    monkeypatch.setattr("torchmdx.engines.cpu.pair_forms.serves", lambda *tensors: False)  # a CPU's kernels may
    _, step = make(store, loss={"stress": {"weight": stress}})
    slot = step.load(some(store, [0, 1, 2]))
    edges = slot.search.edges
    slot.search.update = lambda positions, cell: edges  # the search on the CPU is another's
    buffers = {"values": step.flat.values.data_ptr(), "gradient": step.flat.gradient.data_ptr()}
    with Watch() as watch:
        step.set_rates(1e-3, (1.0, 2.0, 3.0))
        step.compute(slot)
        step.apply()
    assert watch.seen > 100
    assert step.optimizer.steps == 1
    assert buffers == {"values": step.flat.values.data_ptr(), "gradient": step.flat.gradient.data_ptr()}
    with pytest.raises(AssertionError, match="_local_scalar_dense"), Watch():
        bool(step.flat.values.sum() > 0)
