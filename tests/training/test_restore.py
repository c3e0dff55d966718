"""The saved state of a run: who may go on with it, and whether it has come to its end."""

import made_up
import pytest

from torchmdx.commands.cli import main
from torchmdx.training.restore import digest, is_finished
from torchmdx.training.state import read_state


def test_runs_that_have_finished_and_others(tmp_path):
    store = made_up.store(tmp_path / "s", 40)
    made_up.config_file(tmp_path, store.path, training={"epochs": 1})
    assert is_finished(tmp_path / "run") is None
    words = ["train", str(tmp_path / "c.yaml"), "--output.directory", str(tmp_path / "run")]
    assert main(words) == 0
    assert is_finished(tmp_path / "run")
    info = read_state(tmp_path / "run" / "state.safetensors")[1]
    assert (info["epoch"], info["done"], info["changes"]) == (1, 0, [])


def test_the_digest_is_that_of_trained_and_validated_frames():
    import numpy as np

    one = {"train": np.array([1, 2]), "validation": np.array([3]), "test": np.array([4])}
    assert digest(one) == digest(one | {"test": np.array([5])})
    assert digest(one) != digest(one | {"train": np.array([1])})


@pytest.mark.parametrize("key", ["digest", "train"])
def test_other_data_are_refused(tmp_path, key, capsys):
    store = made_up.store(tmp_path / "s", 40)
    made_up.config_file(tmp_path, store.path, training={"epochs": 1})
    words = ["train", str(tmp_path / "c.yaml"), "--output.directory", str(tmp_path / "run")]
    assert main(words) == 0
    other = ["--data.path", str(made_up.store(tmp_path / "t", 40, seed=4).path)] if key == "digest" else []
    (tmp_path / "run" / "split.json").unlink()
    changed = other or ["--data.split", str(tmp_path / "other.json")]
    if not other:
        from torchmdx.datasets.splits import split, write_split

        write_split(tmp_path / "other.json", split(store, validation=8, test=8, seed=9), store)
    assert main([*words, "--resume", *changed]) == 2
    assert "must be resumed with the same data" in capsys.readouterr().err
