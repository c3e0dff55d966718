"""Uncertainty of a single potential: the rigidity of its last layer (LLPR, arXiv 2403.02251).

The output of an atom is a linear function of the inputs of the last layer, its features::

    f_i    [D]   inputs of the last layer for an atom, and 1 for its bias
    f      [D]   Σ_i f_i over a structure
    C      [D,D] covariance of the training: mean of (f/n) (f/n)ᵀ over its structures, of n atoms
    σ(E)²  = a² fᵀ (C + r)⁻¹ f                    of a structure, eV
    σ_i²   = a² f_iᵀ (C + r)⁻¹ f_i                of the energy of an atom, eV

It is the deviation that the energy would have if the last layer were fitted to many drawings of the same training
labels. The factor a and the regulariser r are chosen by the errors on frames that were not trained on. Conformal
quantiles q(p) then give intervals E ± q(p) σ(E) that contain a share p of the labels.

========== ==================
variable   symbol
========== ==================
covariance C
regulariser r
factor     a
quantiles  q, by p
========== ==================
"""

from __future__ import annotations

import copy
import functools
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from torchmdx.runtime.damaged_file import parse_json
from torchmdx.runtime.isolation import isolated

if TYPE_CHECKING:
    from torchmdx.models.potential import Potential

NUMBERS = ("regulariser", "factor", "num_frames", "num_calibration")


@dataclass(frozen=True, kw_only=True, eq=False)
class Uncertainty:
    """Rigidity of the last layer of a potential, checked on construction. `Potential.uncertainty` and files hold it.

    Attributes:
        covariance: [D,D] float64 on the CPU, C: the mean over `num_frames` structures.
        regulariser: r, > 0.
        factor: a, eV.
        quantiles: q by coverage p; a coverage that needs more calibration frames than there were is left out.
        num_calibration: Frames by which factor and quantiles were chosen; 0 for values that were set.
        force_factor: That of forces, eV; None if no forces have calibrated it: then it is `factor`.
    """

    covariance: Tensor
    regulariser: float
    factor: float = 1.0
    quantiles: Mapping[float, float] = field(default_factory=dict)
    num_frames: int = 0
    num_calibration: int = 0
    force_factor: float | None = None

    def __post_init__(self) -> None:
        c = self.covariance
        if c.dim() != 2 or c.shape[0] != c.shape[1] or not len(c):
            raise ValueError(f"covariance of an uncertainty must have shape [D, D], got {list(c.shape)}")
        if c.dtype != torch.float64:
            raise ValueError(f"covariance of an uncertainty must be of torch.float64, got {c.dtype}")
        if not c.isfinite().all():
            raise ValueError("covariance of an uncertainty must be finite, got NaN or infinity")
        if not torch.allclose(c, c.T, rtol=1e-9, atol=1e-12 * float(c.abs().max())):
            raise ValueError("covariance of an uncertainty must be symmetric, got one that is not")
        for name in ("regulariser", "factor", "force_factor"):
            value = getattr(self, name)
            if name == "force_factor" and value is None:
                continue
            if not (type(value) in (int, float) and math.isfinite(value) and value > 0):
                raise ValueError(f"{name} of an uncertainty must be > 0 and finite, got {value!r}")
        for name in ("num_frames", "num_calibration"):
            value = getattr(self, name)
            if type(value) is not int or value < 0:
                raise ValueError(f"{name} of an uncertainty must be a whole number >= 0, got {value!r}")
        for coverage, value in self.quantiles.items():
            if not (0 < coverage < 1 and math.isfinite(value) and value >= 0):
                raise ValueError(
                    f"quantiles of an uncertainty must be >= 0, for coverages between 0 and 1, got {value!r} for "
                    f"{coverage!r}"
                )
        _ = self.root

    @property
    def size(self) -> int:
        """D, of the features with that of the bias."""
        return len(self.covariance)

    @property
    def force_factor_or_factor(self) -> float:
        """The factor of forces, eV; that of energies if it is not known."""
        return self.factor if self.force_factor is None else self.force_factor

    @functools.cached_property
    def root(self) -> Tensor:
        """R [D,D] float64, with σ² = ‖fᵀ R‖²; it is a L⁻ᵀ, where L Lᵀ = C + r."""
        return self.factor * self._unit_root

    @functools.cached_property
    @isolated
    def _unit_root(self) -> Tensor:
        eye = torch.eye(self.size, dtype=torch.float64, device="cpu")
        lower, failed = torch.linalg.cholesky_ex((self.covariance + self.covariance.T) / 2 + self.regulariser * eye)
        if bool(failed):
            raise ValueError(
                f"the covariance of an uncertainty plus its regulariser {self.regulariser:g} must be positive definite"
            )
        return torch.linalg.solve_triangular(lower, eye, upper=False).T.contiguous()

    def of(self, rows: Tensor, system_index: Tensor, num_systems: int) -> tuple[Tensor, Tensor]:
        """(σ(E) [S], σ_i [N]), eV, float64, of structures with these inputs of the last layer [N,D]."""
        rows = rows.double()
        sums = rows.new_zeros(num_systems, self.size).index_add(0, system_index, rows)
        root = self.root.to(rows.device)
        return torch.linalg.vector_norm(sums @ root, dim=-1), torch.linalg.vector_norm(rows @ root, dim=-1)

    def quantile(self, coverage: float) -> float:
        """q: a share `coverage` of energies is within q σ(E) of the label. Raises ValueError for an unknown one."""
        if coverage not in self.quantiles:
            known = ", ".join(f"{one:g}" for one in self.quantiles) or "none"
            raise ValueError(
                f"coverage must be one of {known}, which {self.num_calibration} calibration frames can give, got "
                f"{coverage!r}"
            )
        return self.quantiles[coverage]

    def settings_text(self) -> str:
        """All but the covariance, as JSON for a file."""
        numbers: dict[str, Any] = {name: getattr(self, name) for name in (*NUMBERS, "force_factor")}
        return json.dumps(numbers | {"quantiles": [[p, q] for p, q in sorted(self.quantiles.items())]})

    @classmethod
    def from_file(cls, text: str, covariance: Tensor) -> Uncertainty:
        """From what `settings_text` wrote. Ignores unknown fields, which a later version may have added.

        Raises:
            ValueError: For any other text, and for bad values.
        """
        try:
            values = parse_json(text)
            numbers = {name: values[name] for name in NUMBERS}
            numbers["force_factor"] = values.get("force_factor")
            quantiles = {float(p): float(q) for p, q in values["quantiles"]}
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise ValueError(f"the settings of an uncertainty must be a JSON object, got {text[:80]!r}") from error
        return cls(covariance=covariance, quantiles=quantiles, **numbers)


def why_not(head: nn.Module) -> str | None:
    """Why there is no uncertainty for potentials with this head; None if there is."""
    if callable(getattr(head, "last_layer_inputs", None)):
        return None
    return f"its head must have a linear last layer and the method last_layer_inputs, got a {type(head).__name__}"


def require_last_layer(potential: Potential) -> None:
    """Raises ValueError for a potential whose head has no last layer that is known."""
    if (reason := why_not(potential.head)) is not None:
        raise ValueError(f"{potential.card.title} can't have an uncertainty: {reason}")


def last_layer_size(potential: Potential) -> int:
    """D. Raises ValueError as `require_last_layer`."""
    require_last_layer(potential)
    size: int = potential.head.last_layer_size
    return size


def last_layer_inputs(potential: Potential, features: Tensor) -> Tensor:
    """Inputs of the last layer [N,D] from the features [N,C] of the network, in their dtype."""
    with torch.no_grad():
        rows: Tensor = potential.head.last_layer_inputs(features.detach())
    return rows


def with_uncertainty(potential: Potential, uncertainty: Uncertainty | None) -> Potential:
    """The same potential, sharing its weights, with an uncertainty; None: without.

    Raises:
        ValueError: Naming both sizes, unless the covariance is one of the potential's last layer.
    """
    if uncertainty is not None and (size := last_layer_size(potential)) != uncertainty.size:
        raise ValueError(
            f"the covariance for {potential.card.title} must have shape {[size, size]}, got "
            f"{[uncertainty.size, uncertainty.size]}"
        )
    other = copy.copy(potential)
    other.uncertainty = uncertainty
    return other
