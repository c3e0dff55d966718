import pytest

import torchmdx
from torchmdx.checkpoints.families import MATERIALS, MOLECULES, like
from torchmdx.checkpoints.locate import known_names


@pytest.mark.parametrize(
    ("name", "ours"),
    [
        ("mace-mp-0", MATERIALS),
        ("MACE_MP_0", MATERIALS),
        ("M3GNet-MP-2021.2.8-PES", MATERIALS),
        ("CHGNet", MATERIALS),
        ("mace-off23-medium", MOLECULES),
        ("ani2x", MOLECULES),
        ("AIMNet2", MOLECULES),
    ],
)
def test_names_of_other_packages_get_a_potential_for_the_same_structures(name, ours):
    assert ours in known_names()
    assert repr(ours) in like(name)
    with pytest.raises(FileNotFoundError, match=f"no checkpoint at .*did you mean {ours!r}, for "):
        torchmdx.load(name)


def test_spelling_comes_first_and_unknown_families_get_none():
    with pytest.raises(FileNotFoundError, match="did you mean 'organic-1'\\?"):
        torchmdx.load("organic1")
    with pytest.raises(FileNotFoundError, match="did you mean 'aceff-2.0'\\?"):
        torchmdx.load("AceFF2.0")
    assert like("something") is None
