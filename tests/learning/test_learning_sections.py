"""Settings of exploration and selection that depend on each other."""

import pytest

from torchmdx.learning.sections import ExploreSection, SelectSection, StartSection

BOND = {"kind": "distance", "atoms": [0, 1], "reference": 1.5, "stiffness": 5.0}


@pytest.mark.parametrize(
    ("section", "values", "text"),
    [
        (ExploreSection, {"steps": 5}, "every must be at most steps, 5, got 10"),
        (ExploreSection, {"temperatures": []}, "at least 1 item"),
        (ExploreSection, {"temperatures": [-1.0]}, "greater than 0"),
        (ExploreSection, {"restraints": [BOND | {"kind": "bond"}]}, "restraint 0 must have a kind, one of distance"),
        (
            ExploreSection,
            {"replicas": 2, "restraints": [BOND | {"reference": [1.0, 1.5, 2.0]}]},
            r"restraints\[0\]\.reference must be a number, or a list of replicas, 2, got 3",
        ),
        (SelectSection, {"count": 4, "random": 5}, "random must be at most count, 4, got 5"),
        (SelectSection, {"least": 2.0, "most": 1.0}, "most must be above least, 2, got 1"),
        (StartSection, {"structures": []}, "start needs structures or smiles"),
    ],
)
def test_wrong_values_are_refused_with_the_requirement(section, values, text):
    with pytest.raises(ValueError, match=text):
        section(**values)


def test_a_reference_for_each_replica_is_accepted():
    found = ExploreSection(replicas=2, restraints=[BOND | {"reference": [1.0, 1.5], "structures": [0]}])
    assert found.restraints[0]["reference"] == [1.0, 1.5]
