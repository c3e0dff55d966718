"""The one list of models and priors that the suites of symmetries, derivatives, supercells and batches go through."""

import importlib.util

import numpy as np
import pytest

from torchmdx.models.priors.coulomb import CoulombConfig
from torchmdx.models.priors.d2 import D2Config
from torchmdx.models.priors.d3 import D3Config
from torchmdx.models.priors.zbl import ZBLConfig

ELEMENTS = np.arange(36)
needs_dispersion = pytest.mark.skipif(
    importlib.util.find_spec("torch_dftd") is None, reason="needs torch-dftd: pip install 'torchmdx[dispersion]'"
)
SMALL_D3 = dict(s6=1.0, s8=0.7875, a1=0.4289, a2=4.4407, cutoff=7.3)  # PBE


def zbl(**settings) -> ZBLConfig:
    return ZBLConfig(**{"cutoff": 3.5, **settings})


def coulomb(**settings) -> CoulombConfig:
    # A conductor beyond the cutoff, so that forces end there as smoothly as the others'.
    return CoulombConfig(**{"cutoff": 6.0, "dielectric": float("inf"), "weights": (1.0, 0.5, 2.0), **settings})


def d2(**settings) -> D2Config:
    tables = dict(c6=tuple(3.0 + 2.0 * ELEMENTS), radii=tuple(1.2 + 0.01 * ELEMENTS))
    return D2Config(**{"cutoff": 6.0, **tables, **settings})


def d3(**settings) -> D3Config:
    return D3Config(**{**SMALL_D3, **settings})


# Settings of `random_potential`; priors are made when they are used, since one needs an optional package.
KINDS = {
    "tensornet": dict(),
    "tensornet-SO(3)": dict(group="SO(3)"),
    "tensornet-gated": dict(
        radial_basis="bessel",
        num_radial=3,
        head="gated",
        num_head_layers=2,
        self_message=False,
        readout_activation=False,
        charge_factor=False,
    ),
    "tensornet-target": dict(messages="target", self_message=False),
    "qet": dict(model="qet"),
    "qet-target": dict(model="qet", messages="target", hardness="element", self_message=False),
    "tensornet2": dict(model="tensornet2"),
    "tensornet2-SO(3)": dict(model="tensornet2", group="SO(3)", num_head_layers=1),
    "coulomb": dict(model="tensornet2", priors=[coulomb]),
    "coulomb-ewald": dict(model="tensornet2", priors=[lambda: coulomb(periodic="ewald", accuracy=1e-11)]),
    "coulomb-cut": dict(model="tensornet2", priors=[lambda: coulomb(cut_in_vacuum=True)]),
    "zbl": dict(priors=[zbl]),
    "zbl-covalent": dict(priors=[lambda: zbl(radii="covalent")]),
    "d2": dict(priors=[d2]),
    "d3": dict(priors=[d3]),
    "everything": dict(model="tensornet2", priors=[zbl, coulomb, d2, d3]),
}
# A wire has no Ewald sum.
NO_WIRES = "coulomb-ewald"
NEEDS_DISPERSION = ("d3", "everything")
# One for each network and for each prior, where every kind would say the same again.
FEW = ("tensornet", "tensornet2", "everything")
# Nightly where a test goes through all kinds: what differs from another kind in one respect, or is part of another one.
# `everything` has all priors, and the network of `tensornet2`.
VARIANTS = (
    "tensornet-SO(3)",
    "tensornet-gated",
    "tensornet-target",
    "qet-target",
    "tensornet2",
    "tensornet2-SO(3)",
    "coulomb",
    "coulomb-cut",
    "zbl",
    "zbl-covalent",
    "d2",
    "d3",
)


def as_text(settings: dict) -> str:
    """An id of a test, the same in each process: functions that make priors by their names."""
    return ", ".join(
        f"{k}={[getattr(x, '__name__', x) for x in v] if isinstance(v, list) else v}" for k, v in settings.items()
    )


def kinds(*names: str) -> list:
    """Parameters for pytest: these kinds, or all, of which VARIANTS are nightly."""

    def marks(name: str) -> list:
        dispersion = [needs_dispersion] if name in NEEDS_DISPERSION else []
        return dispersion if names or name not in VARIANTS else [*dispersion, pytest.mark.nightly]

    return [pytest.param(name, marks=marks(name), id=name) for name in names or KINDS]
