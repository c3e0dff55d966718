"""Elements of i-PI's atoms against the template: compared by the driver, before anything is evaluated."""

import ase.build
import ase.io
import ipi_runs as runs
import numpy as np
import pytest

from torchmdx.ipi.species import check_species, require_species

ETHANOL = ase.build.molecule("CH3CH2OH")
OTHER_ORDER = "i-PI's atoms must be those of the template in its order, but atom 1 is O in i-PI and C in the template"


@pytest.mark.parametrize(("names", "number"), [("O", 8), ("D", 1), ("T", 1), ("H", 1), ("Cl", 17)])
def test_elements_and_isotopes(names, number):
    require_species([names], [number])


def test_names_that_are_no_elements_are_not_compared():
    with pytest.warns(UserWarning, match="i-PI's names 'CA', 'HB' are no elements, and were not compared"):
        require_species(["HB", "CA", "O"], [1, 6, 8])
    with pytest.raises(ValueError, match="atom 2 is O in i-PI and H in the template"):
        require_species(["HB", "CA", "O"], [1, 6, 1])


class Named:
    def __init__(self, **given) -> None:
        self.__dict__ |= given


def test_drivers_get_the_names_of_the_systems_that_use_them(monkeypatch):
    """Also those of force fields that are combined in others, and no others."""
    forces = pytest.importorskip("ipi.engine.forces")
    bound = []
    monkeypatch.setattr(forces.Forces, "bind", lambda self, *given: bound.append(given))

    class Driver:
        def __init__(self) -> None:
            self.seen: list[list[str]] = []

        def require_names(self, names) -> None:
            self.seen.append(names)

    check_species(Driver)
    check_species(Driver)  # once is enough
    one, inner, unused = Driver(), Driver(), Driver()
    fields = {"a": Named(driver=one), "b": Named(fflist=[Named(driver=inner)]), "c": Named(driver=unused), "d": Named()}
    given = (Named(names=np.array(["O", "H"])), None, [Named(ffield=name) for name in "abd"], fields, [], None)
    forces.Forces.bind(None, *given)
    assert (one.seen, inner.seen, unused.seen) == ([["O", "H"]], [["O", "H"]], [])
    assert bound == [given]


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.nightly
def test_a_run_with_atoms_in_another_order_ends(tmp_path, swapped):
    pytest.importorskip("ipi.pes")
    ase.io.write(tmp_path / "init.xyz", ETHANOL[[0, 2, 1, *range(3, 9)]] if swapped else ETHANOL)
    ase.io.write(tmp_path / "template.xyz", ETHANOL)
    direct = runs.DIRECT.replace("BATCH", "1").replace("THREADED", "False").replace("init.xyz", "template.xyz")
    runs.write(tmp_path, direct, steps=2)
    process = runs.start(tmp_path)
    assert (process.wait(60) != 0) == swapped
    said = (tmp_path / "log").read_text()
    assert (OTHER_ORDER in said) == swapped
    assert "no elements" not in said
