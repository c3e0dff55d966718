"""The pair style beside others, and what it refuses."""

import numpy as np
import pytest
import torch
from ase.calculators.lj import LennardJones
from lammps_checks import PRESSURES, STYLE, require_equal
from mpi import launch, needs_lammps, setup, write

import torchmdx
from torchmdx import Potential, TensorNet2Config
from torchmdx.lammps.example import water
from torchmdx.models.priors.coulomb import CoulombConfig

pytestmark = [needs_lammps, pytest.mark.nightly]
OVERLAY = f"hybrid/overlay {STYLE} lj/cut 4.0"


def overlay(coefficients: str, elements: str = "H O") -> str:
    """An input with the potential and a Lennard-Jones potential on top of it."""
    text = setup(OVERLAY, elements="TYPES")
    return text.replace("pair_coeff * * TYPES", f"pair_coeff * * torchmdx {elements}\n{coefficients}")


def test_a_pair_potential_on_top(tmp_path, model):
    atoms = water(27)
    write(tmp_path, atoms)
    found = launch(tmp_path, overlay("pair_coeff * * lj/cut 0.01 2.0") + "run 0\n", 2)
    assert found.status == 0, found.text
    own = torchmdx.evaluate(model, torchmdx.System.from_ase(atoms))
    atoms.calc = LennardJones(sigma=2.0, epsilon=0.01, rc=4.0)
    shift = 4 * 0.01 * (0.5**12 - 0.5**6) / 2  # ASE's potential is zero at its cutoff
    pairs = round(sum((atoms.repeat(3).get_all_distances(mic=False)[13 * 81 : 14 * 81] < 4.0).sum(1)) - len(atoms))
    expected = float(own.energy) + atoms.get_potential_energy() + pairs * shift
    assert found.thermo["PotEng"][-1] == pytest.approx(expected, rel=1e-9)
    assert np.allclose(found.dump()[:, 3:6], own.forces.numpy() + atoms.get_forces(), rtol=0, atol=1e-9)


def test_types_without_an_element_belong_to_another_style(tmp_path, model):
    atoms = water(27)
    write(tmp_path, atoms)
    found = launch(tmp_path, overlay("pair_coeff 1 * lj/cut 0.0 1.0", "NULL O") + "run 0\n", 2)
    assert found.status == 0, found.text
    oxygen = atoms.numbers == 8
    exact = torchmdx.evaluate(model, torchmdx.System.from_ase(atoms[oxygen]))
    values = found.dump()
    assert not values[~oxygen, 3:].any()
    assert np.allclose(values[oxygen, 3:6], exact.forces.numpy(), rtol=0, atol=1e-12)


def test_exclusions_between_atoms_of_other_styles_are_theirs(tmp_path, model):
    atoms = water(27)
    write(tmp_path, atoms)
    text = overlay("pair_coeff 1 1 lj/cut 0.5 3.0\npair_coeff 1 2 lj/cut 0.0 1.0", "NULL O")
    text += "group h type 1\ngroup o type 2\nrun 0\nneigh_modify exclude group h h\nrun 0\n"
    text += "neigh_modify exclude type 1 2\nneigh_modify exclude group h o\nrun 0\n"
    found = launch(tmp_path, text, 2)
    assert found.status == 0, found.text
    exact = torchmdx.evaluate(model, torchmdx.System.from_ase(atoms[atoms.numbers == 8]))
    assert found.thermo["PotEng"][-1] == pytest.approx(float(exact.energy), rel=1e-12)
    first = found.text.split("Step")[1].splitlines()[1].split()
    assert float(first[2]) > float(exact.energy) + 1  # with the pairs that are excluded afterwards


def test_a_box_without_atoms_of_the_potential(tmp_path, model):
    """As before a deposition: its energy is zero, and right once an atom has come."""
    write(tmp_path, water(8))
    text = overlay("pair_coeff 1 * lj/cut 0.0 1.0", "NULL O") + "group o type 2\ndelete_atoms group o compress no\n"
    text += 'run 0\nprint "$(pe)" file before\ncreate_atoms 2 single 1.0 2.0 3.0\nrun 1\n'
    found = launch(tmp_path, text, 2)
    assert found.status == 0, found.text[-2000:]
    assert float((tmp_path / "before").read_text()) == 0
    alone = torchmdx.System.create([[1.0, 2.0, 3.0]], [8], cell=water(8).cell.array, pbc=True)
    exact = float(torchmdx.evaluate(model, alone).energy)
    assert found.thermo["PotEng"] == pytest.approx([exact] * 2, rel=1e-12)


def test_rerun_evaluates_the_frames_of_a_file(tmp_path, model):
    write(tmp_path, water(8))
    text = setup(STYLE) + "fix 1 all nve\nvelocity all create 300 1 loop geom\ntimestep 0.0005\nrun 5\n"
    first = launch(tmp_path, text, 2)
    assert first.status == 0, first.text
    again = launch(tmp_path, setup(STYLE, number=1) + "rerun dump.0 dump x y z\n", 2)
    assert again.status == 0, again.text
    assert again.thermo["PotEng"] == pytest.approx(first.thermo["PotEng"], rel=1e-12)
    assert np.allclose(again.dump(1)[:, 3:6], first.dump()[:, 3:6], rtol=0, atol=1e-11)


def per_atom(compute: str) -> str:
    return f"compute s all {compute} NULL virial\ndump 2 all custom 1 s id c_s[1]\n"


FLUX = """\
compute ke all ke/atom
compute cs all centroid/stress/atom NULL virial
compute J all heat/flux ke each cs
thermo_style custom step pe c_J[1] c_J[2] c_J[3]
"""


@pytest.mark.parametrize(("compute", "units"), [("stress/atom", "metal"), ("centroid/stress/atom", "real")])
def test_virials_of_atoms_add_up_to_the_pressure(tmp_path, model, compute, units):
    write(tmp_path, water(27))
    sums = "".join(f"variable w{k} equal -c_t[{k}]/vol\n" for k in range(1, 7))
    text = setup(STYLE, units=units) + per_atom(compute) + "compute t all reduce sum "
    text += " ".join(f"c_s[{k}]" for k in range(1, 7)) + "\n" + sums
    text += "thermo_style custom step pe press pxx pyy pzz pxy pxz pyz " + " ".join(f"v_w{k}" for k in range(1, 7))
    found = launch(tmp_path, text + "\nthermo_modify format float %.17g\nrun 0\n", 4)
    assert found.status == 0, found.text[-2000:]
    for k, name in enumerate(PRESSURES, 1):
        assert found.thermo[f"v_w{k}"][-1] == pytest.approx(found.thermo[name][-1], rel=1e-9, abs=1e-4)


@pytest.mark.parametrize("ranks", [1, 2])
def test_the_heat_flux_moves_the_energy(tmp_path, model, ranks):
    """J = d/dt Σ_i r_i e_i, with e_i the kinetic and potential energy of an atom, in a cluster in vacuum."""
    atoms = water(8)
    write(tmp_path, atoms)
    text = setup(STYLE, boundary="f f f").replace("fx fy fz c_each", "vx vy vz c_each c_ke")
    text = text.replace("dump out", FLUX + "dump out") + "thermo_modify format float %.17g\n"
    text += "velocity all create 600 7 loop geom\nfix 1 all nve\ntimestep 1e-5\nrun 2\n"
    found = launch(tmp_path, text, ranks)
    assert found.status == 0, found.text[-2000:]
    frames = (tmp_path / "dump.0").read_text().split("ITEM: ATOMS")[1:]
    moments = []
    for frame in frames:
        rows = np.array([[float(x) for x in line.split()[1:]] for line in frame.split("ITEM:")[0].splitlines()[1:]])
        moments.append(rows[:, :3].T @ rows[:, 6:].sum(1))
    expected = (moments[2] - moments[0]) / 2e-5
    flux = np.array([found.thermo[f"c_J[{k}]"][1] for k in (1, 2, 3)])
    assert np.abs(flux - expected).max() < 1e-5 * np.abs(expected).max()


REFUSED = {
    "an unknown element": (dict(elements="H Xx"), "pair_coeff needs symbols of elements or NULL, got 'Xx'"),
    "too few elements": (dict(elements="H"), "needs * * and one element for each of the 2 atom types"),
    "units": (dict(units="lj"), "needs units metal or real, got lj"),
    "newton": (dict(before="newton off"), "needs newton on"),
    "a missing file": (dict(style="torchmdx other.safetensors"), "other.safetensors"),
    "a precision": (dict(style=STYLE.replace("float64", "float16")), "precision must be one of float32, float64"),
    "a heat flux of symmetric stress": (
        dict(after=per_atom("stress/atom") + FLUX.replace("centroid/", "")),
        "needs compute centroid/stress/atom for compute heat/flux",
    ),
    "excluded types": (
        dict(after="neigh_modify exclude type 2 1\n"),
        "evaluates all pairs of its atoms, got neigh_modify exclude type 2 1",
    ),
    "excluded groups": (
        dict(after="group o type 2\nneigh_modify exclude group o all\n"),
        "neigh_modify exclude group o all",
    ),
    "excluded molecules": (
        dict(after="fix m all property/atom mol\nset group all mol 1\nneigh_modify exclude molecule/intra all\n"),
        "neigh_modify exclude molecule/intra all",
    ),
    "no coefficients": (dict(coefficients=False), "pair coeffs are not set"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(tmp_path, model, name):
    """Every process ends, with a status that scripts see; two of them where only Python knows the reason."""
    options, message = REFUSED[name]
    ranks = 2 if name in ("an unknown element", "a missing file", "excluded groups") else 1
    options = dict(options)
    after, coefficients = options.pop("after", ""), options.pop("coefficients", True)
    write(tmp_path, water(8))
    text = setup(options.pop("style", STYLE), **options) + after + "run 1\n"
    if not coefficients:
        text = "".join(line for line in text.splitlines(keepends=True) if not line.startswith("pair_coeff"))
    found = launch(tmp_path, text, ranks, timeout=200)
    assert found.status != 0
    assert message in found.text


def test_potentials_that_depend_on_all_atoms_need_one_process(tmp_path):
    atoms = water(8)
    write(tmp_path, atoms)
    config = dict(num_channels=8, num_radial=4, num_layers=1, cutoff=3.0)
    torch.manual_seed(0)
    model = Potential(TensorNet2Config(**config, num_charges=2), [CoulombConfig(periodic="ewald")]).double()
    torchmdx.save(model, tmp_path / "model.safetensors")
    tiled = setup(STYLE, before="comm_style tiled") + "balance 1.0 rcb\nrun 0\n"
    require_equal(launch(tmp_path, tiled, 1), model, atoms)
    found = launch(tmp_path, setup(STYLE) + "run 0\n", 2)
    assert found.status != 0
    assert "can't be divided among processes, and needs one that owns all atoms: a TensorNet2 conserves" in found.text
