"""The weight of the stress that the labels decide."""

from dataclasses import replace

import made_up
import numpy as np
import pytest

from torchmdx.training.config_file import make_config
from torchmdx.training.stress_weight import with_saved_weight, with_stress_weight


def periodic(scale):
    """Frames in a cell, with a random stress of this size."""

    def change(index, frame):
        random = np.random.default_rng(index)
        cell = 12.0 * np.eye(3)[None]
        stress = random.normal(0, scale, (1, 3, 3)).astype(np.float32)
        return replace(frame, cell=cell, pbc=np.ones((1, 3), bool), stress=stress)

    return change


def config(**loss):
    return make_config({"loss": loss})


def test_stress_and_forces_start_with_equal_terms(tmp_path):
    store = made_up.store(tmp_path / "s", 40, change=periodic(0.01))
    frames = store.gather(np.arange(40))
    found, said = with_stress_weight(config(), store, np.arange(40))
    wanted = (frames.forces.astype(float) ** 2).mean() / (frames.stress.astype(float) ** 2).mean()
    assert found.loss.stress.weight == pytest.approx(wanted, rel=0.01)
    assert said.startswith(f"loss.stress.weight: {found.loss.stress.weight:,.0f}, by which stress and the forces")
    found, _ = with_stress_weight(
        config(forces={"weight": 3.0, "function": "mae"}, stress={"function": "mae"}), store, np.arange(40)
    )
    wanted = 3 * np.abs(frames.forces.astype(float)).mean() / np.abs(frames.stress.astype(float)).mean()
    assert found.loss.stress.weight == pytest.approx(wanted, rel=0.01)
    found, said = with_stress_weight(config(forces={"weight": 0.0}), store, np.arange(40))
    assert "stress and the energies" in said
    assert found.loss.stress.weight > 0


def test_a_given_weight_is_kept_and_data_without_stress_have_none(tmp_path):
    store = made_up.store(tmp_path / "s", 12, change=periodic(0.01))
    given = config(stress={"weight": 0.0})
    assert with_stress_weight(given, store, np.arange(12)) == (given, None)
    found, said = with_stress_weight(config(), made_up.store(tmp_path / "t", 12), np.arange(12))
    assert (found.loss.stress.weight, said) == (0.0, None)


def test_a_resumed_run_keeps_the_weight_that_it_began_with():
    assert with_saved_weight(config(), {"loss": {"stress": {"weight": 120.0}}}).loss.stress.weight == 120.0
    assert with_saved_weight(config(stress={"weight": 3.0}), {"loss": {"stress": {"weight": 1.0}}}) == config(
        stress={"weight": 3.0}
    )
    assert with_saved_weight(config(), {}).loss.stress.weight is None
