"""Other packages with this package's calculator, as docs/toolkits.md describes; skipped without them."""

import pytest
from ase.build import bulk
from ase.calculators.emt import EMT

import torchmdx
from torchmdx.materials import elastic, equation_of_state
from torchmdx.structures.units import GPA


@pytest.mark.nightly
def test_matcalc_finds_the_same_moduli(copper):
    matcalc = pytest.importorskip("matcalc")
    assert matcalc.load_fp(calculator := torchmdx.Calculator(device="cpu")) is calculator
    eos = matcalc.EOSCalc(EMT(), fmax=1e-3).calc(bulk("Cu"))
    assert eos["bulk_modulus_bm"] == pytest.approx(equation_of_state(copper).bulk_modulus, rel=0.02)
    found = matcalc.ElasticityCalc(EMT(), fmax=1e-3).calc(bulk("Cu"))
    direct = elastic(copper, relax=False)
    assert found["bulk_modulus_vrh"] / GPA == pytest.approx(direct.bulk, rel=0.02)
    assert found["shear_modulus_vrh"] / GPA == pytest.approx(direct.shear, rel=0.02)
