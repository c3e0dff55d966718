"""Other packages with this package's calculator, as docs/toolkits.md describes; skipped without them."""

import pytest
from ase.build import bulk
from ase.calculators.emt import EMT

import torchmdx
from torchmdx.materials import equation_of_state


@pytest.mark.nightly
def test_matcalc_takes_a_calculator_and_finds_the_same_modulus(copper):
    matcalc = pytest.importorskip("matcalc")
    assert matcalc.load_fp(calculator := torchmdx.Calculator(device="cpu")) is calculator
    eos = matcalc.EOSCalc(EMT(), fmax=1e-3).calc(bulk("Cu"))
    assert eos["bulk_modulus_bm"] == pytest.approx(equation_of_state(copper).bulk_modulus, rel=0.02)
