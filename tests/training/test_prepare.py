import numpy as np

from torchmdx.datasets.frames import Frames
from torchmdx.datasets.store import Store, StoreWriter
from torchmdx.models.model_card import Card
from torchmdx.training.prepare import card_of, tuned_card


def test_card_of_a_new_potential(tmp_path):
    """Only training frames count. Neutral OH has an odd number of electrons."""
    place = [[0.0, 0, 0], [1.2, 0, 0]]
    with StoreWriter(tmp_path / "data") as writer:
        for index, (numbers, charge) in enumerate([([6, 6], 0.0), ([1, 1], 0.0), ([8, 1], 0.0), ([8, 1], -1.0)]):
            frame = Frames.single(
                np.array(place), np.array(numbers), energy=0.0, forces=np.zeros((2, 3)), charge=charge
            )
            writer.add(frame, "made.xyz", index)
    store = Store.open(tmp_path / "data")
    assert card_of(store, np.array([0, 1])) == Card(elements=(1, 6), charges=(0.0,), closed_shell=True, periodic=False)
    assert card_of(store, np.array([3, 1])) == Card(
        elements=(1, 8), charges=(-1.0, 0.0), closed_shell=True, periodic=False
    )
    assert card_of(store, np.arange(4)) == Card(
        elements=(1, 6, 8), charges=(-1.0, 0.0), closed_shell=False, periodic=False
    )


def test_card_of_a_fine_tuned_potential():
    base = Card(name="organic-1", licence="MIT", elements=(1, 6), charges=(0,), closed_shell=True)
    more = Card(elements=(1, 14), charges=(0, 1), closed_shell=True)
    assert tuned_card(base, more) == Card(
        description="fine-tuned from organic-1", licence="MIT", elements=(1, 6, 14), charges=(0, 1), closed_shell=True
    )
    assert tuned_card(Card(), more) == Card()  # what it knew before is not known
