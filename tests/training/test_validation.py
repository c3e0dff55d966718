"""Validation of both sets, and the loss that chooses a checkpoint."""

import made_up
import numpy as np
import pytest
import torch

from torchmdx.models.potential import Potential
from torchmdx.models.tensornet import TensorNetConfig
from torchmdx.training.batches import Batches, Ranks
from torchmdx.training.config_file import make_config
from torchmdx.training.pending_steps import TrainingError
from torchmdx.training.step import TrainStep
from torchmdx.training.validation import choice, validate


@pytest.fixture
def world(tmp_path):
    torch.manual_seed(0)
    potential = Potential(TensorNetConfig(num_channels=8, num_layers=1, num_radial=8, cutoff=4.0, max_z=8))
    store = made_up.store(tmp_path / "st", 12)

    def batches(indices):
        return Batches(
            store, indices, 5, cutoff=4.0, dtype=torch.float32, device=torch.device("cpu"), seed=None,
            ranks=Ranks(), prefetch=2,
        )  # fmt: skip

    return potential, batches


def test_both_sets_count_by_their_shares(world):
    potential, batches = world
    config = make_config({"finetune": {"checkpoint": "base", "replay": "old.xyz", "replay_share": 0.25}})
    step = TrainStep(potential, config.loss, config.optimizer)
    sets = {"validation": batches(np.arange(8)), "old": batches(np.arange(8, 12))}
    found = validate(step, sets, config, 1)
    alone = validate(step, {"validation": sets["validation"]}, config, 1)
    assert alone == {name: value for name, value in found.items() if name.startswith("validation")}
    assert choice(alone) == found["validation_loss"]
    assert found["old_loss"] != found["validation_loss"]
    assert choice(found) == pytest.approx(0.75 * found["validation_loss"] + 0.25 * found["old_loss"])


def test_averaged_weights_are_validated_and_weights_restored(world):
    potential, batches = world
    config = make_config({})
    step = TrainStep(potential, config.loss, config.optimizer)
    before, kept = validate(step, {"validation": batches(np.arange(8))}, config, 1), step.flat.values.clone()
    step.flat.values.mul_(1.5)
    moved = step.flat.values.clone()
    assert validate(step, {"validation": batches(np.arange(8))}, config, 1) == before
    assert torch.equal(step.flat.values, moved)
    assert not torch.equal(moved, kept)
    step.optimizer.average.fill_(torch.nan)
    with pytest.raises(TrainingError, match="the validation loss must be finite, got nan after epoch 3"):
        validate(step, {"validation": batches(np.arange(8))}, config, 3)
