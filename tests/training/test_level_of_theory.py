"""When training warns about energies of another level of theory."""

import pytest

from torchmdx.training.config_file import make_config
from torchmdx.training.level_of_theory import doubt


def config(**finetune):
    return make_config({"finetune": {"checkpoint": "base"} | finetune})


@pytest.mark.parametrize(
    ("energy", "forces", "warned"),
    [(2.3, 0.131, True), (0.06, 0.1, True), (0.02, 0.001, False), (0.3, 1.2, False), (0.004, 0.1, False)],
)
def test_energies_far_off_compared_with_forces_are_warned_of(energy, forces, warned):
    said = doubt(config(), {"energy": energy, "forces": forces})
    assert (said is not None) == warned
    if said:
        assert f"differ from those of 'base' by {energy:.3g} eV/atom, forces by {forces:.3g} eV/Å" in said
        assert "finetune.references: shift" in said


def test_only_where_references_are_kept():
    far = {"energy": 2.0, "forces": 0.1}
    assert doubt(config(references="shift"), far) is None
    assert doubt(config(checkpoint=None), far) is None
    energies = make_config({"finetune": {"checkpoint": "base"}, "loss": {"forces": {"weight": 0.0}}})
    assert "by 2 eV/atom: the labels" in doubt(energies, {"energy": 2.0, "forces": 0.0})
