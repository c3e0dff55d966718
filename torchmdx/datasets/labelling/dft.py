"""Density functional theory of molecules with PySCF, or GPU4PySCF where a GPU and the package are there."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from ase.calculators.calculator import Calculator, all_changes

from torchmdx.datasets.labelling.convergence import UnconvergedSCF
from torchmdx.datasets.labelling.spin import lowest_or_given
from torchmdx.runtime.optional_package import require_package
from torchmdx.structures.units import BOHR, HARTREE

if TYPE_CHECKING:
    from torchmdx.datasets.labelling.geometry import UnlabelledStructure

DEVICES = ("auto", "cpu", "gpu")
DISPERSIONS = ("d3bj", "d3zero", "d3bjm", "d3zerom", "d3op", "d4")  # of PySCF
FINEST_GRID = 9  # PySCF's levels are 0 to 9
INSTALL = "pip install 'torchmdx[dft]'"


@dataclass(frozen=True, kw_only=True)
class DftSettings:
    """A level of theory, and how precisely it is evaluated.

    Attributes:
        xc: Functional, as PySCF names it, such as "wb97m-d3bj", "pbe0" or "hf".
        basis: Basis set of every element, with the effective core potentials that belong to it.
        dispersion: "d3bj", "d4", ... for a functional whose name does not have it; needs pyscf-dispersion.
        auxbasis: Auxiliary basis set of density fitting, such as "def2-universal-jkfit"; None for exact integrals.
        grid_level: Of the grid of the functional, 0 to 9. nlc_grid_level: Of the grid of nonlocal correlation (VV10).
        conv_tol: Largest change of the energy in the last cycle, hartree. max_cycle: most cycles.
        device: "gpu" for GPU4PySCF, "cpu" for PySCF, "auto" for a GPU if there is one with GPU4PySCF.
    """

    xc: str
    basis: str
    dispersion: str | None = None
    auxbasis: str | None = None
    grid_level: int = 3
    nlc_grid_level: int = 1
    conv_tol: float = 1e-9
    max_cycle: int = 100
    device: str = "auto"

    def __post_init__(self) -> None:
        for name in ("xc", "basis", "dispersion", "auxbasis"):
            value = getattr(self, name)
            optional = name in ("dispersion", "auxbasis")
            if not (isinstance(value, str) and value) and not (optional and value is None):
                raise ValueError(f"{name} of pyscf must be a name, got {value!r}")
        if self.dispersion is not None and self.dispersion not in DISPERSIONS:
            raise ValueError(f"dispersion of pyscf must be one of {', '.join(DISPERSIONS)}, got {self.dispersion!r}")
        for name in ("grid_level", "nlc_grid_level"):
            level = getattr(self, name)
            if type(level) is not int or not 0 <= level <= FINEST_GRID:
                raise ValueError(f"{name} of pyscf must be an integer from 0 to {FINEST_GRID}, got {level!r}")
        if type(self.conv_tol) not in (int, float) or not 0 < self.conv_tol < 1:
            raise ValueError(f"conv_tol of pyscf must be > 0 and < 1 hartree, got {self.conv_tol!r}")
        if type(self.max_cycle) is not int or self.max_cycle < 1:
            raise ValueError(f"max_cycle of pyscf must be an integer >= 1, got {self.max_cycle!r}")
        if self.device not in DEVICES:
            raise ValueError(f"device of pyscf must be one of {', '.join(DEVICES)}, got {self.device!r}")

    def shared(self) -> dict[str, Any]:
        """What all labels of a run must share: both devices compute the same function."""
        found = {name: value for name, value in asdict(self).items() if name != "device"}
        found["version of PySCF"] = importlib.metadata.version("pyscf")
        if self._dispersion() is not None:
            found["version of pyscf-dispersion"] = importlib.metadata.version("pyscf-dispersion")
        return found

    def on_gpu(self) -> bool:
        """Whether GPU4PySCF does the work.

        Raises:
            ImportError: If it must, and is not installed.
            ValueError: If it must, and there is no GPU.
        """
        if self.device == "cpu":
            return False
        installed = importlib.util.find_spec("gpu4pyscf") is not None
        if self.device == "gpu" and not installed:
            raise ImportError(
                "device=gpu of pyscf needs GPU4PySCF, which is not installed: pip install gpu4pyscf-cuda12x"
            )
        if self.device == "gpu" and not torch.cuda.device_count():
            raise ValueError("device=gpu of pyscf needs a CUDA GPU, got none")
        return installed and torch.cuda.device_count() > 0

    def require(self) -> None:
        """Raises ImportError or ValueError if PySCF is not installed or does not know a name."""
        require_package("pyscf", "--calculator pyscf needs", "dft", "PySCF")
        self.on_gpu()
        from pyscf import dft, gto

        functional = _known("xc", self.xc, lambda: _parsed(self.xc))[0]
        _known("xc", self.xc, lambda: dft.libxc.parse_xc(functional))
        for name in ("basis", "auxbasis"):
            value = getattr(self, name)
            if value is not None:
                _known(name, value, lambda value=value: gto.basis.load(value, "H"))
        if self._dispersion() is None:
            return
        if importlib.util.find_spec("pyscf.dispersion") is None:
            raise ImportError(f"dispersion with pyscf needs pyscf-dispersion, which is not installed: {INSTALL}")
        hydrogen = molecule(self, np.array([1, 1]), np.array([[0.0, 0.0, 0.0], [0.0, 0.0, 1.0]]), 0, 1)
        told = f"{self.dispersion} of {self.xc}" if self.dispersion else self.xc
        _known("dispersion", told, mean_field(self, hydrogen).get_dispersion)

    def _dispersion(self) -> str | None:
        from pyscf.scf.dispersion import parse_disp

        return parse_disp(self.xc, self.dispersion)[1]


class Dft(Calculator):
    """ASE's calculator of one molecule: energy and analytic forces of restricted or unrestricted Kohn-Sham theory.

    A multiplicity of 1 is restricted, any other unrestricted. The forces are exact derivatives of the energy: those of
    the integration grid and of the auxiliary basis are included.
    """

    implemented_properties = ["energy", "forces"]

    def __init__(self, settings: DftSettings, structure: UnlabelledStructure) -> None:
        super().__init__()
        self.settings = settings
        protons = int(structure.numbers.sum())
        self.multiplicity = lowest_or_given(structure, protons, "DFT")
        self.charge = int(structure.charge)
        electrons = protons - self.charge
        if electrons < max(1, self.multiplicity - 1):
            raise ValueError(
                f"DFT needs at least one electron, and all unpaired ones; got {electrons} electrons (charge "
                f"{self.charge}) with multiplicity {self.multiplicity}"
            )
        if structure.pbc.any():
            raise ValueError(
                "--calculator pyscf labels molecules, which have no periodic directions; got pbc "
                f"{' '.join('FT'[int(flag)] for flag in structure.pbc)}"
            )

    def calculate(
        self, atoms: Any = None, properties: Sequence[str] = ("energy",), system_changes: Sequence[str] = all_changes
    ) -> None:
        """Raises UnconvergedSCF."""
        super().calculate(atoms, properties, system_changes)
        atoms = self.atoms
        mol = molecule(self.settings, atoms.numbers, atoms.positions, self.charge, self.multiplicity)
        field = mean_field(self.settings, mol)
        energy = float(field.kernel())
        if not field.converged:
            raise UnconvergedSCF(
                f"the SCF must converge to conv_tol={self.settings.conv_tol:g} hartree within "
                f"max_cycle={self.settings.max_cycle} cycles, it did not (last energy {energy * HARTREE:.6f} eV)"
            )
        self.results = {"energy": energy * HARTREE}
        if "forces" in properties:
            gradient = field.nuc_grad_method()
            if hasattr(gradient, "grid_response"):
                gradient.grid_response = True
            self.results["forces"] = -np.asarray(gradient.kernel(), np.float64) * (HARTREE / BOHR)


def take_gpu(number: int) -> None:
    """Makes one GPU visible to this process, by the number of its worker; runs before GPU4PySCF is imported."""
    listed = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = [str(index) for index in range(torch.cuda.device_count())] if listed is None else listed.split(",")
    os.environ["CUDA_VISIBLE_DEVICES"] = names[number % len(names)]


def molecule(settings: DftSettings, numbers: np.ndarray, positions: np.ndarray, charge: int, multiplicity: int) -> Any:
    """PySCF's molecule. numbers [N], positions [N,3] Å."""
    from pyscf import gto

    return gto.M(
        atom=[(int(number), tuple(place)) for number, place in zip(numbers, positions / BOHR, strict=True)],
        unit="Bohr",  # PySCF's own length of a bohr is that of another year
        basis=settings.basis,
        ecp=_core_potentials(settings.basis, numbers),
        charge=charge,
        spin=multiplicity - 1,
        verbose=0,
        # PySCF reads the command line by itself: -o OUTPUT would become its log.
        parse_arg=False,
        dump_input=False,
    )


def mean_field(settings: DftSettings, mol: Any) -> Any:
    """PySCF's or GPU4PySCF's object of a restricted or unrestricted Kohn-Sham or Hartree-Fock calculation."""
    if settings.on_gpu():
        from gpu4pyscf import dft, scf
    else:
        from pyscf import dft, scf
    functional, _, dispersion = _parsed(settings.xc)
    if functional == "hf":
        field = (scf.RHF if mol.spin == 0 else scf.UHF)(mol)
        field.disp = settings.dispersion or dispersion
    else:
        field = (dft.RKS if mol.spin == 0 else dft.UKS)(mol, xc=settings.xc)
        field.disp = settings.dispersion
        field.grids.level = settings.grid_level
        field.nlcgrids.level = settings.nlc_grid_level
    field.conv_tol, field.max_cycle = settings.conv_tol, settings.max_cycle
    field.chkfile = None
    # GPU4PySCF makes an even-tempered auxiliary basis, which is slow, unless it is named.
    return field if settings.auxbasis is None else field.density_fit(auxbasis=settings.auxbasis)


def _core_potentials(basis: str, numbers: np.ndarray) -> dict[str, str]:
    """The effective core potentials of a basis set that has them: without, heavy atoms get a wrong energy."""
    from ase.data import chemical_symbols
    from pyscf.gto.mole import bse_predefined_ecp

    symbols = [chemical_symbols[number] for number in np.unique(numbers)]
    name, heavy = bse_predefined_ecp(basis, symbols)
    return {chemical_symbols[int(number)]: name for number in heavy or ()}


def _parsed(xc: str) -> tuple[Any, ...]:
    from pyscf.scf.dispersion import parse_dft

    return tuple(parse_dft(xc))


def _known(what: str, value: str, look: Any) -> Any:
    """Raises ValueError if PySCF does not know a name."""
    try:
        return look()
    except Exception as error:  # of many kinds
        text = " ".join(str(error).split()) or type(error).__name__
        raise ValueError(f"{what} of pyscf must be one that PySCF knows, got {value!r}: {text}") from error
