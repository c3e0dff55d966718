"""Training steps captured as CUDA graphs: `pytest -m gpu`."""

import numpy as np
import pytest
import torch

from torchmdx import Potential, TensorNetConfig
from torchmdx.datasets.frames import Frames
from torchmdx.models.priors.coulomb import CoulombConfig
from torchmdx.models.priors.zbl import ZBLConfig
from torchmdx.models.tensornet2 import TensorNet2Config
from torchmdx.training.config import OptimizerSection
from torchmdx.training.labelled import LabelledBatch, label
from torchmdx.training.loss_section import LossSection
from torchmdx.training.step import OVERFLOW, VALUES, TrainStep

pytestmark = pytest.mark.gpu
CUTOFF = 4.0


def batches(count: int, sizes, dtype=torch.float32, num_atoms: int = 40, weighted: bool = False) -> list[LabelledBatch]:
    """Molecules of these sizes, in different orders, padded to one shape; weighted: with weights from 0.1 to 3."""
    rng, others = np.random.default_rng(1), np.random.default_rng(2)
    made = []
    for _ in range(count):
        parts = []
        for size in rng.permutation(sizes):
            grid = np.stack(np.meshgrid(*[np.arange(3)] * 3, indexing="ij"), -1).reshape(-1, 3)[:size] * 1.3
            parts.append(
                Frames.single(
                    grid + rng.normal(0, 0.1, (size, 3)),
                    rng.choice([1, 6, 8], size),
                    energy=rng.normal(),
                    forces=rng.normal(size=(size, 3)),
                    weight=others.uniform(0.1, 3) if weighted else 1.0,
                    charges=others.normal(0, 0.2, size),
                    dipole=others.normal(0, 0.5, 3),
                )
            )
        frames = Frames.concatenate(parts)
        labelled = label(
            frames, np.arange(len(frames)), num_atoms=num_atoms, num_systems=len(sizes), cutoff=CUTOFF, dtype=dtype
        )
        made.append(labelled.to(torch.device("cuda")))
    return made


def crystals(count: int) -> list[LabelledBatch]:
    """Batches of two periodic cells with stress, of one shape."""
    rng = np.random.default_rng(3)
    made = []
    for _ in range(count):
        frames = Frames.concatenate(
            [
                Frames.single(
                    1.8 * np.stack(np.meshgrid(*[np.arange(2)] * 3, indexing="ij"), -1).reshape(-1, 3)
                    + rng.normal(0, 0.1, (8, 3)),
                    rng.choice([1, 6, 8], 8),
                    cell=3.6 * np.eye(3) + rng.normal(0, 0.05, (3, 3)),
                    pbc=[True] * 3,
                    energy=rng.normal(),
                    forces=rng.normal(size=(8, 3)),
                    stress=rng.normal(size=(3, 3)),
                )
                for _ in range(2)
            ]
        )
        labelled = label(frames, np.arange(2), num_atoms=16, num_systems=2, cutoff=CUTOFF, dtype=torch.float64)
        made.append(labelled.to(torch.device("cuda")))
    return made


SIZES = dict(num_channels=32, num_layers=2, num_radial=8, cutoff=CUTOFF)
# Those of matgl's TensorNet.
OTHER_SETTINGS = dict(
    radial_basis="bessel", num_head_layers=2, head="gated", self_message=False, readout_activation=False,
    charge_factor=False,
)  # fmt: skip
POTENTIALS = {
    "other settings": lambda: Potential(TensorNetConfig(**SIZES, **OTHER_SETTINGS)),
    "messages of own tensors": lambda: Potential(TensorNetConfig(**SIZES, messages="target")),
    "tensornet": lambda: Potential(TensorNetConfig(**SIZES)),
    "with a prior": lambda: Potential(TensorNetConfig(**SIZES), [ZBLConfig(cutoff=3.0)]),
    "tensornet2": lambda: Potential(TensorNet2Config(num_charges=4, **SIZES)),
    "with its charges' energy": lambda: Potential(
        TensorNet2Config(num_charges=4, **SIZES), [CoulombConfig(cutoff=6.0)]
    ),
    "with an Ewald sum": lambda: Potential(
        TensorNet2Config(num_charges=4, **SIZES), [CoulombConfig(cutoff=6.0, periodic="ewald")]
    ),
}


def make_step(
    record: bool, dtype=torch.float32, kind: str = "tensornet", loss: LossSection | None = None, **options
) -> TrainStep:
    torch.manual_seed(2)
    potential = POTENTIALS[kind]().to(dtype).cuda()
    step = TrainStep(potential, loss or LossSection(), OptimizerSection(), record=record, **options)
    step.set_rates(1e-3, (1.0, 1.0, 0.0))
    return step


def losses(step: TrainStep, given: list[LabelledBatch]) -> np.ndarray:
    return torch.stack([step(labelled) for labelled in given]).cpu().numpy()


# Tolerances of losses and of weights, for rounding differences between captured and launched steps. Over twenty steps
# the energy of charges amplifies them in float32; the float64 tolerances show that they are rounding only.
SINGLE = dict(rtol=1e-6, atol=1e-7), dict(rtol=1e-5, atol=1e-6)
GROWN = (dict(rtol=1e-4, atol=1e-6),) * 2
DOUBLE = (dict(rtol=1e-10, atol=1e-12),) * 2


@pytest.mark.parametrize("kind", POTENTIALS)
@pytest.mark.parametrize("sizes", [[12, 12, 12], [5, 9, 14]])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_captured_steps_have_the_losses_of_launched_ones(dtype, sizes, kind):
    given = batches(4, sizes, dtype=dtype) * 5
    captured, launched = make_step(True, dtype, kind), make_step(False, dtype, kind)
    assert captured.pairwise
    first, second = losses(captured, given), losses(launched, given)
    assert captured.graphs.num_replays == len(given) - 2
    assert launched.graphs is None
    np.testing.assert_allclose(first[:8], second[:8], rtol=1e-6, atol=1e-7)
    single = GROWN if kind in ("with its charges' energy", "with an Ewald sum") else SINGLE
    of_losses, of_weights = DOUBLE if dtype == torch.float64 else single
    np.testing.assert_allclose(first, second, **of_losses)
    assert first[-4:, 0].mean() < first[:4, 0].mean()
    weights = zip(captured.potential.parameters(), launched.potential.parameters(), strict=True)
    for one, other in weights:
        torch.testing.assert_close(one, other, **of_weights)


@pytest.mark.parametrize("kind", ["other settings", "tensornet", "with an Ewald sum"])
def test_stress_in_the_loss_is_captured(kind):
    given = crystals(4) * 5
    loss = LossSection(stress={"weight": 10.0})
    steps = [make_step(record, torch.float64, kind, loss=loss) for record in (True, False)]
    for step in steps:
        step.set_rates(1e-3, (1.0, 1.0, 10.0))
    first, second = (losses(step, given) for step in steps)
    assert steps[0].pairwise
    assert steps[0].graphs.num_replays == len(given) - 2
    assert (first[:, VALUES.index("stress_loss")] > 0).all()
    np.testing.assert_allclose(first, second, rtol=1e-10, atol=1e-12)
    assert first[-4:, 0].mean() < first[:4, 0].mean()


CHARGED = LossSection(charges={"weight": 5.0}, dipole={"weight": 2.0})
WITH_CHARGES = (1.0, 1.0, 0.0, 5.0, 2.0)


@pytest.mark.parametrize("kind", ["tensornet2", "with its charges' energy"])
def test_labels_of_charges_and_dipoles_change_with_every_replay(kind):
    given = batches(4, [5, 9, 14], dtype=torch.float64) * 4
    rows = []
    for record in (True, False):
        step = make_step(record, torch.float64, kind, loss=CHARGED)
        step.set_rates(1e-3, WITH_CHARGES)
        rows.append(losses(step, given))
    np.testing.assert_allclose(*rows, **DOUBLE[0])
    columns = [VALUES.index(name) for name in ("charges_loss", "dipole_loss", "charges", "dipole")]
    assert rows[0][:4, columns].std(0).min() > 1e-4
    assert rows[0][-4:, columns[0]].mean() < rows[0][:4, columns[0]].mean()


@pytest.mark.parametrize("kind", ["tensornet2", "with its charges' energy"])
def test_training_on_charges_and_dipoles_is_bitwise_reproducible(kind):
    given, rows = batches(3, [5, 9, 14]) * 6, []
    for _ in range(2):
        step = make_step(True, kind=kind, loss=CHARGED)
        step.set_rates(1e-3, WITH_CHARGES)
        rows.append(losses(step, given))
    np.testing.assert_array_equal(*rows)


def test_crystals_in_larger_cells_get_larger_buffers_and_another_graph():
    """The first cells are the smallest: later ones need more vectors than the buffers of the first graph have."""
    given = sorted(crystals(6), key=lambda labelled: np.abs(np.linalg.det(labelled.crystals.cells)).max())
    for k, labelled in enumerate(given):
        labelled.crystals.cells[:] *= 1 + 0.1 * k
        labelled.batch.cell.copy_(torch.from_numpy(np.pad(labelled.crystals.cells, ((0, 1), (0, 0), (0, 0)))))
    rows = []
    for record in (True, False):
        step = make_step(record, torch.float64, "with an Ewald sum")
        rows.append(losses(step, [labelled for labelled in given for _ in range(4)]))
    np.testing.assert_allclose(*rows, rtol=1e-10, atol=1e-12)


def test_weights_of_frames_change_with_every_replay():
    given = batches(4, [5, 9, 14], dtype=torch.float64, weighted=True) * 4
    captured, launched = make_step(True, torch.float64), make_step(False, torch.float64)
    first, second = losses(captured, given), losses(launched, given)
    assert captured.graphs.num_replays == len(given) - 2
    np.testing.assert_allclose(first, second, **DOUBLE[0])
    plain = losses(make_step(True, torch.float64), batches(4, [5, 9, 14], dtype=torch.float64) * 4)
    assert np.abs(first[:, 0] / plain[:, 0] - 1).min() > 1e-3


@pytest.mark.parametrize("kind", POTENTIALS)
def test_training_is_bitwise_reproducible(kind):
    given = batches(3, [5, 9, 14]) * 6
    first, second = losses(make_step(True, kind=kind), given), losses(make_step(True, kind=kind), given)
    np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize("kind", POTENTIALS)
def test_float64_training_on_gpu_matches_cpu(kind):
    given = batches(2, [5, 9, 14], torch.float64) * 3
    on_gpu = losses(make_step(True, torch.float64, kind), given)
    torch.manual_seed(2)
    potential = POTENTIALS[kind]().double()
    step = TrainStep(potential, LossSection(), OptimizerSection())
    step.set_rates(1e-3, (1.0, 1.0, 0.0))
    on_cpu = torch.stack([step(labelled.map(torch.Tensor.cpu)) for labelled in given]).numpy()
    np.testing.assert_allclose(on_gpu, on_cpu, rtol=1e-8, atol=1e-10)


def test_an_overflow_changes_nothing_and_growing_fixes_it():
    given = batches(1, [12, 12, 12])
    plain = make_step(True)
    expected = losses(plain, given * 4)
    step = make_step(True, capacities={"40x4": 16})
    before = step.flat.values.clone()
    row = step(given[0])
    assert row[OVERFLOW] == 1
    assert torch.equal(step.flat.values, before)
    step.grow(given[0])
    np.testing.assert_allclose(losses(step, given * 4), expected, rtol=1e-5, atol=1e-6)


def test_validation_is_captured_and_changes_nothing():
    given = batches(2, [12, 12, 12]) * 3
    step = make_step(True)
    before = step.flat.values.clone()
    rows = torch.stack([step.evaluate(labelled) for labelled in given]).cpu().numpy()
    assert step.graphs.num_replays == 4
    assert torch.equal(step.flat.values, before)
    np.testing.assert_allclose(rows[:2], rows[4:], rtol=1e-6)


@pytest.mark.parametrize("precision", ["tf32", "bf16"])
def test_low_precision_products_train(precision):
    given = batches(3, [12, 12, 12]) * 20
    found = losses(make_step(True, **{precision: True}), given)
    exact = losses(make_step(True), given)
    assert np.isfinite(found).all()
    np.testing.assert_allclose(found[0, 0], exact[0, 0], rtol=0.05)
    assert found[-3:, 0].mean() < found[:3, 0].mean()
