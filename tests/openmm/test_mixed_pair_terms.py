"""1-4 interactions that a force field writes as bonds are replaced; what could be a bias is refused by name."""

import logging
from pathlib import Path

import openmm
import pytest
from mixed_systems import LAMBDA, force_of, mix, nonbonded_of
from mm_systems import SOLUTE, assert_same, cluster, energy_and_forces, ml_energy_and_forces, mm_system, selected
from openmm import app
from other_force_fields import alchemical, built, gromacs_ethane, molecules_of

DATA = Path(app.__file__).with_name("data")
PAIR = (5, 8)  # O of acetyl and CA of alanine, bonded 1-4
LEFT = pytest.approx(0, abs=1e-6)


def beyond_the_potential(potential, system, topology, positions, charge=0, **options) -> float:
    """kJ/mol that a mixed system of the whole molecule has beside the potential."""
    atoms = range(topology.getNumAtoms())
    mixed = mix(system, topology, atoms, potential, **{"replace": (), "charge": charge, **options})
    learned = ml_energy_and_forces(potential, topology, positions, atoms, charge)[0]
    return energy_and_forces(mixed, positions)[0] - learned


def bond_force(name: str, pairs, *, global_parameter: str | None = None, harmonic: bool = False) -> openmm.Force:
    force = openmm.HarmonicBondForce() if harmonic else openmm.CustomBondForce("50*k*(r-0.4)^2")
    if global_parameter is None and not harmonic:
        force.setEnergyFunction("50*(r-0.4)^2")
    elif global_parameter is not None:
        force.setEnergyFunction(f"50*{global_parameter}*(r-0.4)^2")
        force.addGlobalParameter(global_parameter, 1.0)
    for pair in pairs:
        force.addBond(*pair, *((0.4, 100.0) if harmonic else ([],)))
    force.setName(name)
    return force


@pytest.mark.parametrize("rule", [1, 2, 3])
def test_files_of_gromacs(potential, tmp_path, rule) -> None:
    system, topology, positions = gromacs_ethane(rule, tmp_path)
    assert abs(energy_and_forces(system, positions)[0]) > 1
    names = [force.getName() for force in system.getForces()]
    assert ("LennardJonesExceptions" in names) == (rule != 2)
    assert beyond_the_potential(potential, system, topology, positions) == LEFT
    both = mix(system, topology, range(8), potential, interpolate=LAMBDA, replace=())
    assert_same(energy_and_forces(both, positions, **{LAMBDA: 0.0}), energy_and_forces(system, positions), 1e-8)
    difference = mix(system, topology, range(8), potential, difference_group=2, replace=())
    learned = ml_energy_and_forces(potential, topology, positions, range(8))[0]
    assert energy_and_forces(difference, positions)[0] == pytest.approx(learned, rel=1e-9)


@pytest.mark.nightly_for("whole-True")
@pytest.mark.parametrize("annihilate", [True, False])
@pytest.mark.parametrize("atoms", [SOLUTE, range(6), range(8, 14)], ids=["whole", "acetyl", "alanine"])
def test_an_alchemical_system(potential, atoms, annihilate, caplog) -> None:
    topology, positions = selected(SOLUTE)
    system = alchemical(mm_system(topology), atoms, annihilate=annihilate)
    expected = energy_and_forces(mm_system(topology), positions)[0]
    assert energy_and_forces(system, positions)[0] == pytest.approx(expected, rel=1e-6)
    with caplog.at_level(logging.INFO):
        assert beyond_the_potential(potential, system, topology, positions) == LEFT
    assert "terms inside the ML region that are treated as 1-4 interactions" in caplog.text
    mixed = mix(system, topology, SOLUTE, potential, replace=())
    for value in (0.0, 0.5):  # the region no longer depends on λ
        parameters = {"lambda_sterics": value, "lambda_electrostatics": value}
        assert energy_and_forces(mixed, positions, **parameters)[0] == pytest.approx(
            energy_and_forces(mixed, positions)[0], rel=1e-12
        )


def test_alchemy_after_mixing(potential) -> None:
    topology, positions = cluster(1)
    mixed = mix(mm_system(topology), topology, SOLUTE, potential)
    made = alchemical(mixed, SOLUTE)
    assert_same(energy_and_forces(made, positions), energy_and_forces(mixed, positions), 1e-6)


@pytest.mark.parametrize(
    "bias",
    [
        bond_force("mine", [PAIR]),
        bond_force("mine", [PAIR], global_parameter="k"),
        bond_force("mine", [PAIR], harmonic=True),
    ],
    ids=["custom", "global parameter", "harmonic"],
)
def test_a_term_on_an_exception_that_is_complete_is_refused(potential, bias) -> None:
    topology, positions = selected(SOLUTE)
    system = mm_system(topology)
    system.addForce(bias)
    message = (
        r"BondForce 'mine' \(force 4\) has two-atom terms inside the ML region on nonbonded exceptions, such as atoms "
        r"5-8, which must be either 1-4 interactions of the force field or a bias: add its name to replace"
    )
    with pytest.raises(ValueError, match=message):
        mix(system, topology, SOLUTE, potential, replace=())
    assert beyond_the_potential(potential, system, topology, positions, replace="mine") == LEFT
    assert beyond_the_potential(potential, system, topology, positions, keep="mine") > 0.1


@pytest.mark.parametrize(("parameter", "rest"), [("k", "kept"), (None, "refused")])
def test_a_bias_beside_1_4_interactions(potential, tmp_path, parameter, rest) -> None:
    system, topology, positions = gromacs_ethane(3, tmp_path)
    exceptions = next(force for force in system.getForces() if force.getName() == "LennardJonesExceptions")
    first, second, _ = exceptions.getBondParameters(0)
    bias = bond_force("mine", [(first, second)], global_parameter=parameter)
    system.addForce(bias)
    if rest == "kept":
        alone = openmm.System()
        for _ in positions:
            alone.addParticle(1.0)
        alone.addForce(openmm.XmlSerializer.clone(bias))
        added = energy_and_forces(alone, positions)[0]
        assert added > 0.1
        assert beyond_the_potential(potential, system, topology, positions) == pytest.approx(added, rel=1e-6)
    else:
        with pytest.raises(ValueError, match=r"CustomBondForce 'mine' \(force \d+\) has two-atom terms inside"):
            mix(system, topology, range(8), potential, replace=())


@pytest.mark.parametrize("parameter", ["k", None])
@pytest.mark.parametrize("replace", [(), "CustomBondForce"])
def test_a_bias_in_an_alchemical_system_is_refused(potential, parameter, replace) -> None:
    """Also if the user has named the alchemical forces."""
    topology, positions = selected(SOLUTE)
    system = alchemical(mm_system(topology), SOLUTE)
    system.addForce(bond_force("mine", [PAIR], global_parameter=parameter))
    with pytest.raises(
        ValueError, match=r"CustomBondForce 'mine' \(force 12\) has two-atom terms inside the ML region"
    ):
        mix(system, topology, SOLUTE, potential, replace=replace)
    assert beyond_the_potential(potential, system, topology, positions, replace=replace, keep="mine") > 0.1


def test_the_ends_of_a_torsion_count_without_an_exception(potential) -> None:
    """As in GROMACS' files with nrexcl 2 and without pairs: 1-4 pairs interact as any others."""
    topology, _ = selected(SOLUTE)
    system = mm_system(topology)
    bare = openmm.NonbondedForce()
    old = nonbonded_of(system)
    for index in SOLUTE:
        bare.addParticle(*old.getParticleParameters(index))
    system.removeForce([type(force).__name__ for force in system.getForces()].index("NonbondedForce"))
    system.addForce(bare)
    system.addForce(bond_force("mine", [PAIR]))
    with pytest.raises(ValueError, match=r"CustomBondForce 'mine' .* atoms 5-8"):
        mix(system, topology, SOLUTE, potential, replace=())


# Every force field of OpenMM: files without molecules, and those whose regions are refused.
COMPANIONS = {"amber14/GLYCAM_06j-1.xml": ("amber14/protein.ff14SB.xml",)}
EMPTY = ("_obc.xml", "_gk.xml", "ydrogens.xml", "pdbNames.xml", "residues.xml")  # no molecules of their own
BROKEN = ("amber99Test.xml",)  # OpenMM cannot read it
REFUSED = ("amoeba", "iamoeba", "charmm_polar", "swm4ndp")  # polarisable: AMOEBA forces, Drude particles
SITES = ("tip4p", "tip5p", "opc.xml")  # water with virtual sites, which the mixed system refuses


def force_fields() -> list[str]:
    names = sorted(path.relative_to(DATA).as_posix() for path in DATA.rglob("*.xml"))
    return [name for name in names if not name.endswith((*EMPTY, *BROKEN)) and not name.startswith("implicit/")]


@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore")  # charged molecules, which the potential is not made for
@pytest.mark.parametrize("name", force_fields())
def test_every_force_field_of_openmm(make_potential, name) -> None:
    """Whole molecules as regions, in vacuum: nothing of the force field is left."""
    field = app.ForceField(*COMPANIONS.get(name, ()), name)
    potential = make_potential(num_channels=8, num_layers=1)
    is_refused = name.startswith(REFUSED)
    chosen = [names for names in molecules_of(field) if not (is_refused and len(names) > 1)]
    assert chosen or is_refused or Path(name).name.startswith(SITES), "no molecule can be made"
    for names in chosen:
        system, topology, positions = built(field, names)
        if is_refused:
            with pytest.raises(ValueError, match="whose part inside the ML region is unknown"):
                mix(system, topology, range(topology.getNumAtoms()), potential, replace=())
            continue
        force = nonbonded_of(system)
        total = sum(force.getParticleParameters(index)[0]._value for index in range(force.getNumParticles()))
        assert beyond_the_potential(potential, system, topology, positions, round(total)) == LEFT, names


@pytest.mark.nightly
def test_charmm_interpolated(potential) -> None:
    system, topology, positions = built(app.ForceField("charmm36.xml"), ("ALAD",))
    assert force_of(system, "CustomBondForce").getName() == "LennardJones14"
    mechanical = energy_and_forces(system, positions)
    both = mix(system, topology, SOLUTE, potential, interpolate=LAMBDA, replace=())
    assert_same(energy_and_forces(both, positions, **{LAMBDA: 0.0}), mechanical, 1e-8)
    plain = mix(system, topology, SOLUTE, potential, replace=())
    assert_same(energy_and_forces(both, positions), energy_and_forces(plain, positions), 1e-10)
