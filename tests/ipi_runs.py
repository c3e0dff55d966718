"""Runs of i-PI for tests: inputs, and the program in a process of its own."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parents[1]
PROGRAM = """
import sys
from ipi.engine.simulation import Simulation
from ipi.utils.softexit import softexit
simulation = Simulation.load_from_xml(open(sys.argv[1]), request_banner=False)
softexit.hard_exit = True
simulation.run()
softexit.trigger(status="success", message="end")
"""
DRIVER = 'from torchmdx.ipi.driver import TorchmdxDriver\n__DRIVER_CLASS__ = "TorchmdxDriver"\n'
PROPERTIES = "step,potential{electronvolt},virial_cv{ev/ang3},conserved{electronvolt}"
INPUT = """<simulation verbosity='low'>
 <output prefix='run'>
  <properties stride='1' filename='out'>[PROPERTIES]</properties>
  <trajectory stride='1' filename='pos' cell_units='angstrom'>positions{angstrom}</trajectory>
  <trajectory stride='1' filename='for'>forces{ev/ang}</trajectory>
  <checkpoint filename='chk' stride='2' overwrite='True'/>
 </output>
 <total_steps>STEPS</total_steps>
 <prng><seed>1</seed></prng>
 FORCEFIELD
 <system>
  <initialize nbeads='BEADS'>
   <file mode='ase' units='angstrom'>init.xyz</file>
   <cell mode='abc' units='angstrom'>[EDGE,EDGE,EDGE]</cell>
   <velocities mode='thermal' units='kelvin'>300</velocities>
  </initialize>
  <forces><force forcefield='torchmdx'></force></forces>
  <motion mode='dynamics'>MOTION</motion>
  <ensemble><temperature units='kelvin'>300</temperature>PRESSURE</ensemble>
 </system>
</simulation>
"""
NVT = """<dynamics mode='nvt'><timestep units='femtosecond'>0.25</timestep>
<thermostat mode='pile_g'><tau units='femtosecond'>100</tau></thermostat></dynamics>"""
NPT = """<dynamics mode='npt'><timestep units='femtosecond'>0.5</timestep>
<thermostat mode='langevin'><tau units='femtosecond'>100</tau></thermostat>
<barostat mode='isotropic'><tau units='femtosecond'>20</tau>
<thermostat mode='langevin'><tau units='femtosecond'>100</tau></thermostat></barostat></dynamics>"""
DIRECT = """<ffdirect name='torchmdx' pbc='False' threaded='THREADED'><pes>custom</pes>
<pes_path>pes_torchmdx.py</pes_path><batch_size>BATCH</batch_size>
<parameters>{template:init.xyz,dtype:float64,device:cpu}</parameters></ffdirect>"""
SOCKET = """<ffsocket name='torchmdx' mode='unix' pbc='False'><address>ADDRESS</address>
<batch_size>BATCH</batch_size></ffsocket>"""


def write(folder: Path, forcefield: str, *, steps: int, beads: int = 1, edge: float = 20.0, npt: bool = False) -> None:
    """input.xml and the driver's file; init.xyz must be there."""
    values = {
        "FORCEFIELD": forcefield,
        "PROPERTIES": PROPERTIES,
        "STEPS": steps,
        "BEADS": beads,
        "EDGE": edge,
        "MOTION": NPT if npt else NVT,
        "PRESSURE": "<pressure units='bar'>1</pressure>" if npt else "",
    }
    text = INPUT
    for name, value in values.items():
        text = text.replace(name, str(value))
    (folder / "input.xml").write_text(text)
    (folder / "pes_torchmdx.py").write_text(DRIVER)


def start(folder: Path, name: str = "input.xml") -> subprocess.Popen:
    """i-PI on an input, with its output in the file log."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    with (folder / "log").open("a") as log:
        return subprocess.Popen(
            [sys.executable, "-c", PROGRAM, name], cwd=folder, env=environment, stdout=log, stderr=subprocess.STDOUT
        )


def finish(folder: Path, process: subprocess.Popen, limit: float = 120) -> None:
    """Waits for the end of a run, and for its success."""
    try:
        status = process.wait(limit)
    finally:
        process.kill()
    assert status == 0, (folder / "log").read_text()[-3000:]


def rows(folder: Path) -> np.ndarray:
    """The properties of every step."""
    return np.loadtxt(folder / "run.out", ndmin=2)


def frames(folder: Path, name: str) -> list[tuple[np.ndarray, np.ndarray]]:
    """Edges of the cell and vectors of all atoms, of every frame of a trajectory of i-PI."""
    found = []
    lines = (folder / name).read_text().splitlines()
    while lines:
        count = int(lines[0])
        edges = np.array(lines[1].split()[2:5], float)
        found.append((edges, np.array([line.split()[1:] for line in lines[2 : count + 2]], float)))
        del lines[: count + 2]
    return found
