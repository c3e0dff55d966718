"""Labels that contradict each other, against potentials that agree with one of them."""

from dataclasses import replace

import made_up
import numpy as np
import pytest
import torch

from torchmdx.datasets.frames import Frames
from torchmdx.datasets.store import Store, StoreWriter
from torchmdx.evaluation.derivatives import evaluate
from torchmdx.models.potential import Potential
from torchmdx.models.tensornet import TensorNetConfig
from torchmdx.training.contradiction import contradiction, is_due


def store(path, potential, energy=1.0, forces=1.0, count=30):
    """Frames labelled by a potential, with factors."""
    made = []
    for frame in made_up.frames(count):
        found = evaluate(potential, frame.system(0))
        made.append(
            replace(
                frame,
                energy=energy * found.energy.detach().numpy(),
                forces=(forces * found.forces.numpy()).astype(np.float32),
            )
        )
    with StoreWriter(path) as writer:
        writer.add(Frames.concatenate(made), "made.xyz", 0)
    return Store.open(path)


@pytest.mark.nightly
def test_gradients_are_noticed_and_forces_are_not(tmp_path):
    torch.manual_seed(3)
    potential = Potential(TensorNetConfig(num_channels=8, num_layers=1, num_radial=8, cutoff=4.0, max_z=8)).double()
    everything = np.arange(30)
    assert contradiction(potential, store(tmp_path / "good", potential), everything) is None
    for name, factors in (("gradients", {"energy": -1.0}), ("forces", {"forces": -1.0})):
        said = contradiction(potential, store(tmp_path / name, potential, **factors), everything)
        assert "contradict each other" in said
    assert contradiction(potential, store(tmp_path / "both", potential, -1.0, -1.0), everything) is None
    assert contradiction(potential, store(tmp_path / "few", potential, -1.0, count=5), np.arange(5)) is None


def test_it_is_looked_at_three_times():
    assert [epoch for epoch in range(1, 101) if is_due(epoch, 100)] == [10, 30, 100]
    assert [epoch for epoch in range(1, 3) if is_due(epoch, 2)] == [1, 2]
