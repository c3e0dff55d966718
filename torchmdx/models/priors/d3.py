"""D3 dispersion with Becke-Johnson damping, computed by the package torch-dftd on torchmdx's own edges."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from torchmdx.models.priors.base import Geometry, Prior, PriorConfig
from torchmdx.units import BOHR, HARTREE

PARAMETERS = ("s6", "s8", "a1", "a2")


@dataclass(frozen=True, kw_only=True)
class D3Config(PriorConfig):
    """Settings of the D3(BJ) dispersion, two-body terms.

    functional: name of a functional as torch-dftd spells it ("pbe", "b3-lyp"), for s6, s8, a1 and a2 (bohr); or
        these four, for any other. cutoff: Å, over whose last bohr every pair goes smoothly to zero.
    strength: factor on the energy.
    """

    name: ClassVar[str] = "d3"
    functional: str | None = None
    s6: float | None = None
    s8: float | None = None
    a1: float | None = None
    a2: float | None = None
    cutoff: float = 15.0
    strength: float = 1.0

    def __post_init__(self) -> None:
        self._require_lengths("cutoff")
        if self.cutoff <= 2 * BOHR:
            raise ValueError(f"cutoff of the prior d3 must be > {2 * BOHR:.2f} Å, got {self.cutoff}")
        given = [name for name in PARAMETERS if getattr(self, name) is not None]
        if not given:
            if self.functional is None:
                raise ValueError("the prior d3 needs a functional, or its s6, s8, a1 and a2; got neither")
            for name, value in parameters_of(self.functional).items():
                object.__setattr__(self, name, value)
        elif len(given) < len(PARAMETERS):
            raise ValueError(f"the prior d3 needs all of s6, s8, a1 and a2, or none; got {', '.join(given)}")
        self._require_finite(*PARAMETERS, "strength")

    def scaled(self, factor: float) -> Self:
        return self._times("strength", factor)


class D3(Prior):
    """E = -½ Σ_ij C6_ij [ s6 / (r_ij⁶ + R⁶) + 3 s8 Q_i Q_j / (r_ij⁸ + R⁸) ],  R = a1 sqrt(3 Q_i Q_j) + a2

    C6_ij depends on the coordination numbers of both atoms; all tables are torch-dftd's.
    """

    config: D3Config
    c6: Tensor
    covalent: Tensor
    ratio: Tensor

    def __init__(self, config: D3Config) -> None:
        super().__init__()
        self.config = config
        tables = _tables()
        self.max_z = len(tables["rcov"]) - 1
        for name, theirs in (("c6", "c6ab"), ("covalent", "rcov"), ("ratio", "r2r4")):
            self.register_buffer(name, torch.as_tensor(tables[theirs], dtype=torch.float64), persistent=False)

    def forward(self, geometry: Geometry) -> Tensor:
        from torch_dftd.functions.dftd3 import edisp

        config, batch, edges = self.config, geometry.batch, geometry.edges
        # What lies beyond the cutoff, padding included, goes to an atom more, which nobody reads: shapes stay fixed.
        inside, nowhere = geometry.distance < config.cutoff, batch.num_atoms
        target = torch.where(inside, edges.target.long(), nowhere)
        source = torch.where(inside, edges.source.long(), nowhere)
        r = torch.where(inside, geometry.distance, config.cutoff)
        energies = edisp(
            torch.cat([batch.atomic_numbers, batch.atomic_numbers.new_ones(1)]),
            r / BOHR,
            torch.stack([target, source]),
            c6ab=self.c6.to(r.dtype),
            r0ab=None,  # zero damping's
            rcov=self.covalent.to(r.dtype),
            r2r4=self.ratio.to(r.dtype),
            params={"s6": config.s6, "s18": config.s8, "rs6": config.a1, "rs18": config.a2},
            cutoff=config.cutoff / BOHR,
            damping="bj",
            cutoff_smoothing="poly",
            bidirectional=True,
            # Its energies of graphs are ours of atoms: a pair belongs to its target.
            batch=target,
            batch_edge=target,
            cell=r.new_zeros(nowhere + 1, 1),
        )
        return config.strength * HARTREE * energies[:nowhere]


def parameters_of(functional: str) -> dict[str, float]:
    """s6, s8, a1 and a2 of a functional. Raises ValueError for one that torch-dftd has no parameters for."""
    _require_library()
    from torch_dftd.dftd3_xc_params import get_dftd3_default_params

    try:
        found = get_dftd3_default_params("bj", functional)
    except ValueError as error:
        raise ValueError(f"functional of the prior d3 must be one that torch-dftd knows, got {functional!r}") from error
    return {"s6": found["s6"], "s8": found["s18"], "a1": found["rs6"], "a2": found["rs18"]}


def _tables() -> Any:
    _require_library()
    from importlib.resources import files

    import numpy as np

    with files("torch_dftd").joinpath("nn/params/dftd3_params.npz").open("rb") as file:
        return dict(np.load(file, allow_pickle=False))


def _require_library() -> None:
    try:
        import torch_dftd  # noqa: F401
    except ImportError as error:
        raise ImportError("the prior d3 needs torch-dftd: pip install 'torchmdx[dispersion]'") from error
