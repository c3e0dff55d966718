import sys

import numpy as np
import pytest
import toys
from ase import Atoms
from ase.build import bulk, molecule
from ase.calculators.emt import EMT

from torchmdx.datasets.labelling import calculators
from torchmdx.datasets.labelling.calculators import Choice, parse_options
from torchmdx.datasets.labelling.geometry import UnlabelledStructure
from torchmdx.datasets.labelling.labeller import Labeller
from torchmdx.structures.units import BOHR, HARTREE


def labels(atoms, name, **options):
    return Labeller(Choice(name, options)).labels(UnlabelledStructure.from_ase(atoms))


def direct(atoms, method, charge=0, uhf=0, accuracy=0.1) -> tuple[float, np.ndarray]:
    """Energy and forces from tblite's own interface, without ASE."""
    interface = pytest.importorskip("tblite.interface")
    calculator = interface.Calculator(method, atoms.numbers, atoms.positions / BOHR, charge=charge, uhf=uhf)
    calculator.set("verbosity", 0)
    calculator.set("accuracy", accuracy)
    result = calculator.singlepoint()
    return result["energy"] * HARTREE, -result["gradient"] * HARTREE / BOHR


@pytest.mark.parametrize(("name", "method"), [("gfn2-xtb", "GFN2-xTB"), ("gfn1-xtb", "GFN1-xTB")])
def test_xtb_is_what_tblite_computes(name, method):
    atoms = molecule("H2O")
    energy, forces = direct(atoms, method)
    found = labels(atoms, name)
    assert found.energy == pytest.approx(energy, rel=2e-8)  # ASE's constants are of another year than ours
    np.testing.assert_allclose(found.forces, forces, atol=1e-6)
    assert found.stress is None


def test_gfn2_of_water_is_the_published_number():
    assert labels(molecule("H2O"), "gfn2-xtb").energy == pytest.approx(-137.96777, abs=2e-4)


@pytest.mark.parametrize(("charge", "multiplicity", "uhf"), [(1, None, 1), (-1, 2, 1), (0, 3, 2), (1, 4, 3)])
def test_xtb_gets_charge_and_spin(charge, multiplicity, uhf):
    atoms = molecule("H2O")
    atoms.info = {"charge": charge} | ({} if multiplicity is None else {"multiplicity": multiplicity})
    energy, forces = direct(atoms, "GFN2-xTB", charge, uhf)
    found = labels(atoms, "gfn2-xtb")
    assert found.energy == pytest.approx(energy, rel=2e-8)
    np.testing.assert_allclose(found.forces, forces, atol=1e-5)


def test_xtb_labels_do_not_depend_on_what_came_before():
    geometries = []
    for seed in range(3):
        atoms = molecule("CH3OH")
        atoms.rattle(0.1, seed=seed)
        geometries.append(UnlabelledStructure.from_ase(atoms))
    one = Labeller(Choice("gfn2-xtb", {"accuracy": 1.0}))
    after_others = [one.labels(geometry).forces for geometry in geometries][-1]
    alone = Labeller(Choice("gfn2-xtb", {"accuracy": 1.0})).labels(geometries[-1]).forces
    np.testing.assert_array_equal(after_others, alone)


def test_options_reach_xtb():
    atoms = molecule("H2O")
    hot = labels(atoms, "gfn2-xtb", electronic_temperature=20000.0).energy
    assert abs(hot - labels(atoms, "gfn2-xtb").energy) > 0.1
    wet = labels(atoms, "gfn2-xtb", alpb_solvation=["water"]).energy
    assert wet < labels(atoms, "gfn2-xtb").energy - 0.05
    with pytest.raises(ValueError, match="options of gfn2-xtb must be among accuracy, .*, got 'acuracy'"):
        Choice("gfn2-xtb", {"acuracy": 1}).require()
    with pytest.raises(ValueError, match="got 'charge'"):
        Choice("gfn2-xtb", {"charge": 1}).require()


def test_settings_tell_calculators_apart():
    assert Choice("gfn2-xtb").settings() == Choice("gfn2-xtb", {"accuracy": 0.1}).settings()
    assert Choice("gfn2-xtb").settings() != Choice("gfn2-xtb", {"accuracy": 1.0}).settings()
    assert Choice("emt").settings() != Choice("lj").settings()


def test_missing_tblite_says_what_to_install(monkeypatch):
    monkeypatch.setattr(calculators.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"gfn2-xtb needs tblite, .*: pip install 'torchmdx\[label\]'"):
        Choice("gfn2-xtb").require()


def test_emt_labels_a_crystal_with_stress():
    atoms = bulk("Cu", cubic=True) * (2, 2, 2)
    atoms.rattle(0.05, seed=1)
    found = labels(atoms, "emt")
    atoms.calc = EMT()
    assert found.energy == pytest.approx(atoms.get_potential_energy(), abs=1e-10)
    np.testing.assert_allclose(found.forces, atoms.get_forces(), atol=1e-12)
    np.testing.assert_allclose(found.stress, atoms.get_stress(voigt=False), atol=1e-12)
    atoms.pbc = (True, True, False)
    assert labels(atoms, "emt").stress is None


def test_the_energy_is_the_one_that_belongs_to_the_forces(monkeypatch):
    class Smeared(toys.Springs):
        implemented_properties = ["energy", "free_energy", "forces"]

        def calculate(self, *arguments, **options):
            super().calculate(*arguments, **options)
            self.results["free_energy"] = self.results["energy"] - 0.25

    monkeypatch.setattr(toys, "Smeared", Smeared, raising=False)
    atoms = toys.frames(1)[0]
    assert labels(atoms, "toys:Smeared").energy == pytest.approx(labels(atoms, "toys:Springs").energy - 0.25)


def test_options_reach_the_classical_ones():
    atoms = Atoms("Ar2", [[0, 0, 0], [0, 0, 3.9]])
    found = labels(atoms, "lj", epsilon=0.01, sigma=3.5, rc=20.0)
    powers = (3.5 / 3.9) ** 6, (3.5 / 20) ** 6
    energy, shift = (4 * 0.01 * (power**2 - power) for power in powers)
    assert found.energy == pytest.approx(energy - shift, abs=1e-12)
    with pytest.raises(ValueError, match="options of lj must be among .*sigma.*, got 'sigam'"):
        Choice("lj", {"sigam": 1}).require()
    with pytest.raises(ValueError, match="emt supports neither charge nor multiplicity, got charge 1 and"):
        labels(Atoms("Cu", info={"charge": 1}), "emt")


def test_any_calculator_by_module_and_name(tmp_path, monkeypatch):
    atoms = toys.frames(2)[1]
    atoms.info["charge"] = -1
    found = labels(atoms, "toys:Springs")
    assert found.energy == pytest.approx((atoms.positions**2).sum() - 1)
    np.testing.assert_allclose(found.forces, -2 * atoms.positions)
    (tmp_path / "beside_the_data.py").write_text("from ase.calculators.emt import EMT\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    assert labels(bulk("Cu"), "beside_the_data:EMT").energy == pytest.approx(labels(bulk("Cu"), "emt").energy)


def test_a_function_with_atoms_is_called_for_each_structure(monkeypatch):
    seen = []

    def made(atoms, shift=0.0):
        seen.append((atoms.info["charge"], atoms.info.get("multiplicity"), len(atoms), shift))
        return toys.Springs()

    monkeypatch.setattr(toys, "made", made, raising=False)
    labeller = Labeller(Choice("toys:made", {"shift": 2}))
    assert seen == []
    for charge, multiplicity in ((1, None), (-1, 3)):
        labeller.labels(UnlabelledStructure.from_ase(toys.frames(1)[0], charge, multiplicity))
    assert seen == [(1, None, 3, 2), (-1, 3, 3, 2)]


def test_a_class_with_atoms_is_made_once():
    """ASE's calculators have a parameter `atoms` of another meaning."""
    assert not Choice("ase.calculators.emt:EMT").made_for_each
    assert not Choice("ase.calculators.calculator:Calculator").made_for_each


@pytest.mark.parametrize(
    ("name", "error", "words"),
    [
        ("gfn3", ValueError, "must be one of gfn2-xtb, gfn1-xtb, pyscf, emt, lj, or module:name, got 'gfn3'"),
        (":name", ValueError, "or module:name, got ':name'"),
        ("toys:Nothing", ValueError, "module toys has no 'Nothing'"),
        ("toys:STIFFNESS", ValueError, "must name a callable that returns a calculator, got 2.0"),
        ("no_such_module:Name", ImportError, "no_such_module:Name: No module named 'no_such_module'"),
    ],
)
def test_calculators_that_are_not_there(name, error, words):
    with pytest.raises(error, match=words):
        Choice(name).require()


@pytest.mark.parametrize(
    ("positions", "words"),
    [(np.zeros((0, 3)), "must have atoms, got none"), ([[0, np.inf, 0]], "got \\[0.0, inf, 0.0\\] for atom 0")],
)
def test_senseless_structures_are_refused(positions, words):
    with pytest.raises(ValueError, match=words):
        labels(Atoms("H" * len(positions), positions), "toys:Springs")


def test_labels_that_are_not_finite_are_refused():
    with pytest.raises(ValueError, match="forces must be finite, got nan"):
        labels(toys.frames(1)[0], "toys:Springs", nan=[0])


def test_options_are_read_as_what_they_are():
    texts = ["a=1", "b=1e-3", "c=False", "d=true", "e=GFN", "f=[1, 2]", "g=('alpb', 'water')", "h=null", "i=", "j=x=y"]
    wanted = [1, 1e-3, False, True, "GFN", [1, 2], ("alpb", "water"), None, "", "x=y"]
    assert parse_options(texts) == dict(zip("abcdefghij", wanted, strict=True))
    for text in ("accuracy", "=1", "a b=1"):
        with pytest.raises(ValueError, match=f"must be key=value, got '{text}'"):
            parse_options([text])
    with pytest.raises(ValueError, match="must name a key once, got 'a' again"):
        parse_options(["a=1", "a=2"])


def test_where_the_charge_comes_from():
    atoms = Atoms("NaCl", [[0, 0, 0], [0, 0, 2]])
    assert UnlabelledStructure.from_ase(atoms).charge == 0
    atoms.set_initial_charges([0.6, 0.4])
    assert UnlabelledStructure.from_ase(atoms).charge == 1
    atoms.info["key_value_pairs"] = {"charge": -2}
    assert UnlabelledStructure.from_ase(atoms).charge == -2
    atoms.info["charge"] = 3
    with pytest.raises(ValueError, match=r"must state one total charge, got 'charge' \+3 and 'charge' -2"):
        UnlabelledStructure.from_ase(atoms)
    del atoms.info["key_value_pairs"]
    assert UnlabelledStructure.from_ase(atoms).charge == 3
    assert UnlabelledStructure.from_ase(atoms, charge=0.0).charge == 0
    atoms.info = {}
    atoms.set_initial_charges([0.6, 0.3])
    with pytest.raises(
        ValueError, match=r"must add up to an integer .* got 0.9 e; --charge, or charge=, sets the total"
    ):
        UnlabelledStructure.from_ase(atoms)
