import pytest

from torchmdx.ase.parameters import CHANGEABLE, FIXED, require_changeable


def test_every_parameter_that_can_be_changed_is_accepted():
    require_changeable(CHANGEABLE)


@pytest.mark.parametrize("name", FIXED)
def test_others_need_a_new_calculator(name):
    with pytest.raises(ValueError, match=f"^{name} can't be changed by set, which takes charge, mode, .*: make a new"):
        require_changeable(["charge", name])


def test_a_name_that_is_nearly_right_is_suggested():
    with pytest.raises(TypeError, match="got 'max_spread'; did you mean 'max_force_spread'"):
        require_changeable(["max_spread"])
