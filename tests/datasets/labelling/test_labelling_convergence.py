"""Programs that say that their SCF has not converged; `test_labeller` runs them."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from torchmdx.datasets.labelling.convergence import UnconvergedSCF, require_converged

SAYING = [
    ("orca", "orca.out", "               *        SCF NOT CONVERGED AFTER  125 CYCLES          *"),
    ("orca", "orca.out", "FINAL SINGLE POINT ENERGY (Wavefunction not fully converged!)  -76.0"),
    ("cp2k", "cp2k.out", "*** WARNING in qs_scf.F:542 :: SCF run NOT converged ***"),
    ("CP2K", "0-17.out", "* [ABORT] SCF run NOT converged. To continue the calculation regardless, *"),
    ("espresso", "espresso.pwo", "     convergence NOT achieved after 100 iterations: stopping"),
    ("vasp", "OUTCAR", "------ aborting loop EDIFF was not reached (unconverged) ------"),
]


@pytest.mark.parametrize(("program", "file", "line"), SAYING)
def test_what_programs_say_is_found(tmp_path, program, file, line):
    calculator = SimpleNamespace(name=program, directory=str(tmp_path))
    Path(tmp_path, file).write_bytes(b"\xff first\nSCF CONVERGED AFTER 12 CYCLES\nSCF run converged in 8 steps\n")
    require_converged([calculator])
    Path(tmp_path, file).write_text(f"first\n{line}\nlast\n")
    with pytest.raises(UnconvergedSCF, match=f"the SCF of {program.lower()} has not converged: {file} says") as caught:
        require_converged([SimpleNamespace(name="other", directory="."), calculator])
    assert " ".join(line.split()) in str(caught.value)


def test_what_ase_reads_of_an_earlier_vasp_counts(tmp_path):
    for converged in (True, None):
        require_converged([SimpleNamespace(name="vasp", directory=tmp_path, converged=converged)])
    with pytest.raises(UnconvergedSCF, match="as ASE reads from OUTCAR"):
        require_converged([SimpleNamespace(name="vasp", directory=tmp_path, converged=False)])


def test_calculators_without_a_name_pass():
    require_converged([object()])
