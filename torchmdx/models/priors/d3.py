"""D3 dispersion with Becke-Johnson damping, with tables and interpolation of the package torch-dftd."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from torchmdx.models.priors.base import Geometry, Prior, PriorConfig
from torchmdx.structures.units import BOHR, HARTREE

PARAMETERS = ("s6", "s8", "a1", "a2")


@dataclass(frozen=True, kw_only=True)
class D3Config(PriorConfig):
    """Settings of the D3(BJ) dispersion, two-body terms.

    Attributes:
        functional: Name of a functional as torch-dftd spells it ("pbe", "b3-lyp"), for s6, s8, a1 and a2 (bohr); or
            these four, for any other.
        cutoff: Å; over the last bohr before it the energy goes smoothly to zero.
        strength: Factor of the energy.
    """

    name: ClassVar[str] = "d3"
    functional: str | None = None
    s6: float = math.nan
    s8: float = math.nan
    a1: float = math.nan
    a2: float = math.nan
    cutoff: float = 15.0
    strength: float = 1.0

    def __post_init__(self) -> None:
        self._require_lengths("cutoff")
        if self.cutoff <= 2 * BOHR:
            raise ValueError(f"cutoff of the prior d3 must be > {2 * BOHR:.2f} Å, got {self.cutoff}")
        given = [name for name in PARAMETERS if not _is_absent(getattr(self, name))]
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
    """E = -½ Σ_ij t(r_ij) C6_ij [ s6 / (r_ij⁶ + R_ij⁶) + s8 K_ij / (r_ij⁸ + R_ij⁸) ],  R_ij = a1 sqrt(K_ij) + a2

    ::

        | variable | symbol |
        |---|---|
        | end | t(r), 1 up to 1 bohr before the cutoff, then smoothly to 0 |
        | ratio | K_ij = 3 Q_i Q_j, ratio of C8 to C6; Q is `expectation` |
        | c6 | C6_ij, interpolated between reference compounds by the coordination numbers of both atoms |
        | coordination | Σ_j t(r_ij) / (1 + exp(-16 (R_cov / r_ij - 1))) |

    Tables, interpolation and t(r) are torch-dftd's. Its own sum over pairs selects edges on the host and has a sharp
    cutoff for coordination numbers; this one has fixed shapes and is smooth.
    """

    config: D3Config
    reach = 2  # C6 of a pair depends on the neighbours of both atoms
    c6: Tensor
    covalent: Tensor
    expectation: Tensor

    def __init__(self, config: D3Config) -> None:
        super().__init__()
        self.config = config
        tables = _tables()
        self.max_z = len(tables["rcov"]) - 1
        for name, theirs in (("c6", "c6ab"), ("covalent", "rcov"), ("expectation", "r2r4")):
            self.register_buffer(name, torch.as_tensor(tables[theirs], dtype=torch.float64), persistent=False)

    def forward(self, geometry: Geometry) -> Tensor:
        from torch_dftd.functions.smoothing import poly_smoothing

        config, cutoff = self.config, self.config.cutoff / BOHR
        r = torch.where(geometry.distance < config.cutoff, geometry.distance / BOHR, cutoff)
        end = poly_smoothing(r, cutoff)
        c6 = self.interpolated(geometry, r, end)
        numbers = geometry.batch.atomic_numbers
        expectation = self.expectation.to(r.dtype).index_select(0, numbers)
        ratio = 3 * geometry.at_target(expectation) * geometry.at_source(expectation)
        damping = config.a1 * ratio.sqrt() + config.a2
        pair = config.s6 / (r**6 + damping**6) + config.s8 * ratio / (r**8 + damping**8)
        return geometry.halved_onto_atoms(-config.strength * HARTREE * end * c6 * pair)

    def interpolated(self, geometry: Geometry, r: Tensor, end: Tensor) -> Tensor:
        """C6 [E] of pairs, hartree bohr⁶, from distances [E], bohr."""
        from torch_dftd.functions.dftd3 import _getc6, d3_k1

        numbers = geometry.batch.atomic_numbers
        covalent = self.covalent.to(r.dtype).index_select(0, numbers)
        touching = geometry.at_target(covalent) + geometry.at_source(covalent)
        counts = end * torch.sigmoid(d3_k1 * (touching / r - 1))
        coordination = geometry.onto_targets(counts)
        return _getc6(
            geometry.at_target(numbers),
            geometry.at_source(numbers),
            geometry.at_target(coordination),
            geometry.at_source(coordination),
            self.c6.to(r.dtype),
        )


def _is_absent(value: Any) -> bool:
    return isinstance(value, float) and math.isnan(value)


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
