"""What is said where an optional package is missing."""

import re

import pytest

from torchmdx.runtime.optional_package import require_package


def test_a_package_that_is_there_is_accepted():
    require_package("numpy", "arrays need", "arrays")


@pytest.mark.parametrize(("name", "said"), [("", "no_such_module"), ("NoSuch", "NoSuch")])
def test_a_missing_package_is_named_with_the_extra_that_has_it(name, said):
    text = f"pictures need {said}, which is not installed: pip install 'torchmdx[train]'"
    with pytest.raises(ImportError, match=re.escape(text)):
        require_package("no_such_module", "pictures need", "train", name)
