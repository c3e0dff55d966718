"""Arrays that only some stores have: weights, kinds of frames, charges and dipole moments."""

import json

import numpy as np
import pytest

from torchmdx.datasets.frames import Frames
from torchmdx.datasets.store import Store, StoreWriter


def atom(**values):
    return Frames.single(np.zeros((1, 3)), np.array([1]), energy=-1.0, **values)


def written(path, *frames):
    with StoreWriter(path) as writer:
        for index, frame in enumerate(frames):
            writer.add(frame, "x", index)
    return Store.open(path)


def test_a_store_has_only_the_arrays_it_needs(tmp_path):
    plain = written(tmp_path / "plain", atom(), atom())
    assert not list((tmp_path / "plain").glob("*weight*")) + list((tmp_path / "plain").glob("*charges*"))
    assert json.loads((tmp_path / "plain" / "store.json").read_text())["version"] == 1
    assert not plain.isolated.any()
    full = written(
        tmp_path / "full",
        atom(weight=2.5, config_type="IsolatedAtom"),
        atom(charges=np.array([0.25]), dipole=np.array([1.0, 2, 3])),
        atom(config_type="surface"),
    )
    assert json.loads((tmp_path / "full" / "store.json").read_text())["version"] == 2
    assert full.labels == {"energy", "charges", "dipole"}
    frames = full.gather([2, 1, 0])
    assert frames.weight.tolist() == [1.0, 1.0, 2.5]
    assert frames.config_type.tolist() == ["surface", "", "IsolatedAtom"]
    assert frames.has("charges").tolist() == frames.has("dipole").tolist() == [False, True, False]
    assert frames.dipole[1].tolist() == [1, 2, 3]
    assert full.isolated.tolist() == [True, False, False]


@pytest.mark.parametrize("change", [{"weight": 2.0}, {"config_type": "a"}, {"charges": np.ones(1)}])
def test_the_digest_is_of_optional_arrays_too(tmp_path, change):
    digests = {written(tmp_path / str(k), atom(**values)).digest for k, values in enumerate([{}, change, change])}
    assert len(digests) == 2
    other = {"config_type": "b"} if "config_type" in change else {name: 3 * value for name, value in change.items()}
    assert written(tmp_path / "other", atom(**other)).digest not in digests


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"optional": ["mass"]}, "optional in store.json of .* is damaged"),
        ({"config_types": ["a"]}, "config_type.bin of the store .* must number config_types: it is damaged"),
        ({"config_types": [3, 4]}, "config_types in store.json of .* is damaged"),
    ],
)
def test_damaged_descriptions_are_refused(tmp_path, change, said):
    written(tmp_path / "st", atom(config_type="a"), atom(config_type="b"))
    file = tmp_path / "st" / "store.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    with pytest.raises(ValueError, match=said):
        Store.open(tmp_path / "st")
