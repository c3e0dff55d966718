import numpy as np
import pytest
from ase import Atoms, units
from ase.build import bulk, molecule
from ase.calculators.singlepoint import SinglePointCalculator
from ase.constraints import FixAtoms

from torchmdx.report.view.curves import frame_panels, log_panels

LOG = """\
step,time_ps,potential_eV,kinetic_eV,total_eV,temperature_K,volume_A3,density_g_per_cm3,ns_per_day
0,0.0,-100.5,0.5,-100.0,300.0,1000.0,{0},
10,0.005,-100.25,0.75,-99.5,310.0,1001.0,{1},5.0
"""


def test_panels_of_a_log(tmp_path):
    log = tmp_path / "run.log"
    log.write_text(LOG.format(0.9, 0.8991))
    energy, temperature, density = log_panels(log, 305.0)
    assert energy.title == "energy / eV, relative to -100.000"
    assert [line.name for line in energy.lines] == ["potential", "total"]
    assert energy.lines[0].y == pytest.approx([-0.5, -0.25])
    assert energy.lines[1].y == pytest.approx([0.0, 0.5])
    assert energy.lines[1].x == pytest.approx([0.0, 0.005])
    assert temperature.level == 305.0
    assert density.lines[0].y == pytest.approx([0.9, 0.8991])
    log.write_text(LOG.format(0.9, 0.9))
    assert len(log_panels(log)) == 2  # a constant density is not drawn


def test_a_log_of_openmm(tmp_path):
    log = tmp_path / "run.log"
    log.write_text(
        '#"Progress (%)","Step","Time (ps)","Potential Energy (kJ/mole)","Temperature (K)",'
        '"Density (g/mL)","Speed (ns/day)"\n'
        "50.0%,10,0.02,-964.85332,290.0,0.9,--\n100.0%,20,0.04,-1061.33865,300.0,0.91,12.5\n"
    )
    energy, temperature, density = log_panels(log)
    assert energy.title == "energy / eV, relative to -10.000"
    assert energy.lines[0].y == pytest.approx([0.0, -1.0], rel=1e-6)
    assert energy.lines[0].x == pytest.approx([0.02, 0.04])
    assert temperature.lines[0].y == pytest.approx([290.0, 300.0])
    assert density.lines[0].y == pytest.approx([0.9, 0.91])


@pytest.mark.parametrize("content", ["", "a,b\n1,2\n", "step,time_ps\n1\n", "step,time_ps\n1,x\n"])
def test_other_files_are_refused_by_name(tmp_path, content):
    log = tmp_path / "run.log"
    log.write_text(content)
    with pytest.raises(ValueError, match=r"run\.log"):
        log_panels(log)


def labelled(atoms, **results):
    atoms = atoms.copy()
    atoms.calc = SinglePointCalculator(atoms, **results)
    return atoms


def test_panels_of_frames_with_labels():
    water = molecule("H2O")
    water.set_constraint(FixAtoms([0]))
    forces = np.array([[9.0, 0, 0], [0, 3.0, 4.0], [0, 0, 0]])
    frames = [labelled(water, energy=-5.0 - k, forces=forces / 10**k) for k in range(3)]
    energy, force = frame_panels(frames, np.arange(3.0))
    assert energy.lines[0].y == pytest.approx([0.0, -1.0, -2.0])
    assert force.lines[0].y == pytest.approx([5.0, 0.5, 0.05])  # that on the fixed atom does not count
    assert force.logarithmic


def test_panels_of_structures_of_several_sizes():
    frames = [labelled(molecule("H2O"), energy=-3.0), labelled(molecule("CH4"), energy=-10.0)]
    (energy,) = frame_panels(frames, np.arange(2.0))
    assert energy.title == "energy / eV/atom"
    assert energy.lines[0].y == pytest.approx([-1.0, -2.0])


def test_temperature_and_density_of_frames():
    frames = []
    for scale in (1.0, 1.1):
        atoms = bulk("Cu", cubic=True)
        atoms.set_cell(atoms.cell * scale, scale_atoms=True)
        atoms.set_momenta(np.full((4, 3), 3.0))
        frames.append(atoms)
    temperature, density = frame_panels(frames, np.arange(2.0))
    assert temperature.lines[0].y == pytest.approx([frames[0].get_temperature()] * 2)
    expected = 4 * 63.546 / units.mol / (3.61e-8) ** 3
    assert density.lines[0].y == pytest.approx([expected, expected / 1.1**3], rel=1e-4)


def test_a_cell_relaxation_shows_its_pressure():
    frames = []
    for scale, pressure in ((1.0, 30.0), (1.02, 0.5)):
        atoms = bulk("Cu", cubic=True)
        atoms.set_cell(atoms.cell * scale, scale_atoms=True)
        frames.append(labelled(atoms, energy=1.0, stress=[-pressure * units.GPa] * 3 + [0.3, 0, 0]))
    panel = frame_panels(frames, np.arange(2.0))[-1]
    assert panel.title == "pressure / GPa"
    assert panel.lines[0].y == pytest.approx([30.0, 0.5])
    frames[1].set_cell(frames[0].cell)
    assert frame_panels(frames, np.arange(2.0))[-1].title != "pressure / GPa"  # of a fixed cell


def test_bare_frames_have_no_panel():
    assert frame_panels([Atoms("H"), Atoms("H")], np.arange(2.0)) == []
    assert frame_panels([labelled(Atoms("H"), energy=1.0)], np.arange(1.0)) == []
