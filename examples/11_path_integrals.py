"""Path integrals with i-PI: kinetic energies of hydrogen and deuterium in ethanol, with 16 beads; half a minute."""

import contextlib
from pathlib import Path

import ase.build
import ase.io
import numpy as np
from ipi.scripting import InteractiveSimulation

FOLDER = Path("out") / "11_path_integrals"
DRIVER = 'from torchmdx.ipi import TorchmdxDriver\n__DRIVER_CLASS__ = "TorchmdxDriver"\n'
STEPS = 200
INPUT = """<simulation verbosity='quiet'>
 <output prefix='{isotope}_{beads}'>
  <properties filename='out' stride='4'>[kinetic_cv{{electronvolt}}({isotope})]</properties>
 </output>
 <prng><seed>7</seed></prng>
 <ffdirect name='torchmdx' pbc='False'>
  <pes>custom</pes> <pes_path>pes_torchmdx.py</pes_path> <batch_size>{beads}</batch_size>
  <parameters>{{template: ethanol.xyz, model: organic-1}}</parameters>
 </ffdirect>
 <system>
  <initialize nbeads='{beads}'>
   <file mode='xyz' units='angstrom'>{isotope}.xyz</file> <cell mode='abc' units='angstrom'>[20, 20, 20]</cell>
   <velocities mode='thermal' units='kelvin'>300</velocities> </initialize>
  <forces><force forcefield='torchmdx'/></forces>
  <motion mode='dynamics'><dynamics mode='nvt'> <timestep units='femtosecond'>0.5</timestep>
   <thermostat mode='pile_l'><tau units='femtosecond'>20</tau></thermostat> </dynamics></motion>
  <ensemble><temperature units='kelvin'>300</temperature></ensemble>
 </system> </simulation>
"""


def kinetic_energy(isotope: str, beads: int) -> float:
    """The mean kinetic energy of a hydrogen of ethanol, meV, by the centroid virial estimator."""
    simulation = InteractiveSimulation(INPUT.format(isotope=isotope, beads=beads))
    simulation.run(STEPS)
    rows = np.loadtxt(f"{isotope}_{beads}.out")
    return 1e3 * rows[len(rows) // 4 :].mean() / 6


def main() -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    with contextlib.chdir(FOLDER):
        ethanol = ase.build.molecule("CH3CH2OH")
        ase.io.write("ethanol.xyz", ethanol)
        for isotope in ("H", "D"):
            labels = [isotope if symbol == "H" else symbol for symbol in ethanol.symbols]
            lines = [f"{label} {x} {y} {z}" for label, (x, y, z) in zip(labels, ethanol.positions, strict=True)]
            Path(f"{isotope}.xyz").write_text("\n".join(["9", "ethanol", *lines, ""]))
        Path.cwd().joinpath("pes_torchmdx.py").write_text(DRIVER)
        for isotope, beads in (("H", 1), ("H", 16), ("D", 16)):
            kind = "classical" if beads == 1 else f"{beads} beads  "
            print(f"{isotope}, {kind}: {kinetic_energy(isotope, beads):6.1f} meV an atom")


if __name__ == "__main__":
    main()
