import numpy as np
import pytest
from water_files import WATER


@pytest.fixture
def water():
    """Positions [5,3,3] Å, energies [5] eV, forces [5,3,3] eV/Å of five waters."""
    generator = np.random.default_rng(11)
    positions = WATER + generator.normal(scale=0.02, size=(5, 3, 3))
    return positions, -2080 + generator.normal(size=5), generator.normal(size=(5, 3, 3))
