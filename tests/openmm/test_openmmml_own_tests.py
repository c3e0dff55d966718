"""openmm-ml's own test files with torchmdx in the place of its potentials.

They need MACE, which is not installed, or TorchMD-Net. What they take from these packages is one name, which stands for
a potential of torchmdx here: ASE's calculator of torchmdx where they use openmm-ml's potential "ase", and torchmdx's
potential for openmm-ml where they name one of MACE or AceFF.
"""

import functools
import sys
import types
from pathlib import Path
from typing import Any

import pytest
from released_files import released

openmmml = pytest.importorskip("openmmml")
from openmm import app  # noqa: E402
from openmmml import MLPotential  # noqa: E402

from torchmdx.ase import Calculator  # noqa: E402
from torchmdx.openmm.openmmml import PotentialFactory  # noqa: E402

ACEFF = ("aceff-1.0", "aceff-1.1", "aceff-2.0")
OURS = "organic-1"
pytestmark = [
    pytest.mark.nightly,
    pytest.mark.filterwarnings("ignore:.*truncates the Coulomb energy:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*trained on molecules in vacuum:UserWarning"),
]


def _stand_ins() -> dict[str, types.ModuleType]:
    """The modules that the files import, with what they use of them."""
    names = ("mace", "mace.calculators", "mace.calculators.foundations_models", "torchmdnet")
    made = {name: types.ModuleType(name) for name in names}
    made["mace.calculators.foundations_models"].mace_off = lambda size: Calculator(OURS, device="cpu")
    return made


def _test_class(name: str) -> type:
    """A class of one of the files, which are imported while their packages seem to be there."""
    folder = str(Path(__file__).parent / "openmm_ml")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        for module, stand_in in _stand_ins().items():
            patch.setitem(sys.modules, module, stand_in)
        return getattr(__import__(name), name)


class InPlace(PotentialFactory):
    """Creates a potential of torchmdx, whatever name openmm-ml's tests ask for."""

    def createImpl(self, name: str, **args: Any) -> Any:
        if name not in ACEFF:
            return super().createImpl(name, modelPath=OURS, **args)
        return super().createImpl(name, modelPath=released(name), **args)


@pytest.fixture(autouse=True)
def torchmdx_in_place(monkeypatch):
    """openmm-ml finds torchmdx's potentials under the names of its own, and "ase" runs torchmdx's calculator."""
    for name in ("mace-off23-small", *ACEFF):
        monkeypatch.setitem(MLPotential._implFactories, name, InPlace())
    for module, stand_in in _stand_ins().items():
        monkeypatch.setitem(sys.modules, module, stand_in)


# Files of thousands of atoms and of force fields are read once; the tests change neither.
READ_ONCE = {name: functools.cache(getattr(app, name)) for name in ("PDBFile", "ForceField")}
ALIKE = ("testMLLongRangeUnknown", "testRemoveConstraints")


@pytest.fixture(autouse=True)
def once(request, monkeypatch):
    """Each file is read once, and what makes no context runs for the first platform only.

    So do the embedding's tests of torchmdx's own embedding: the platforms are those of openmm-ml's, with each of them.
    """
    for name, reader in READ_ONCE.items():
        monkeypatch.setattr(app, name, reader)
    repeated = request.node.originalname in ALIKE or request.cls is TestEmbeddingOfTorchmdx
    if repeated and request.node.callspec.params["platform_int"] > 0:
        pytest.skip("as on the first platform: nothing is evaluated, or the other embedding does it there")


class TestMechanicalEmbedding(_test_class("TestMechanicalEmbedding")):
    """As openmm-ml has it: its embedding with torchmdx's calculator, and torchmdx's embedding for a named potential."""


class TestTorchMDNetPotential(_test_class("TestTorchMDNetPotential")):
    """As openmm-ml has it, for released files."""


class TestEmbeddingOfTorchmdx(_test_class("TestMechanicalEmbedding")):
    """The same with torchmdx's own embedding in all tests: "ase" stands for a potential of torchmdx, too."""

    @pytest.fixture(autouse=True)
    def _all_in_place(self, monkeypatch):
        class Deaf(InPlace):
            def createImpl(self, name: str, **args: Any) -> Any:
                made = super().createImpl(name, **args)
                for method in ("addForces", "createMixedSystem"):
                    monkeypatch.setattr(made, method, _without_calculator(getattr(made, method)))
                return made

        monkeypatch.setitem(MLPotential._implFactories, "ase", Deaf())

    def testMLLongRangeUnknown(self, platform_int):
        """Not asked of torchmdx: it knows of each potential whether it reaches the images of the region."""
        pytest.skip("the range of a potential of torchmdx is known")


def _without_calculator(method: Any) -> Any:
    def called(*args: Any, calculator: Any = None, **options: Any) -> Any:
        return method(*args, **options)

    return called


class TestMixedSystemWithoutWeights(_test_class("TestTorchMDNetPotential")):
    """The test of TorchMD-Net's potential that needs no reference energy, with the potential of torchmdx."""

    testCreatePureMLSystem = None
    testPeriodicSystem = None

    @pytest.fixture(autouse=True)
    def _shipped(self, monkeypatch):
        class Shipped(PotentialFactory):
            def createImpl(self, name: str, **args: Any) -> Any:
                return super().createImpl(name, modelPath=OURS, **args)

        monkeypatch.setitem(MLPotential._implFactories, "aceff-1.1", Shipped())
