"""The energy and the charges of a QET of matgl 2, on DGL, by loops over edges, from the tensors of its file."""

import math

import numpy as np
import oracles
from matgl_dgl_oracle import Oracle, silu
from scipy.special import erf

COULOMB = 14.399645478425668  # eV Å


def softplus(x: np.ndarray) -> np.ndarray:
    return np.log1p(np.exp(x))


class QETOracle(Oracle):
    """Layers on DGL sum what the edges of an atom carry of its own: tensors, and the charge in the potential too."""

    def results(self, symbols, positions, cell, pbc, charge: float = 0.0) -> tuple[float, np.ndarray]:
        """Energy, eV, and charges [N], e."""
        cutoff, kinds = self.settings["cutoff"], [self.settings["element_types"].index(s) for s in symbols]
        edges = []
        for src, dst, shift in oracles.neighbours(positions, cell, pbc, cutoff):
            vector = positions[dst] - positions[src] + np.array(shift) @ cell
            edges.append((src, dst, vector, math.sqrt(vector @ vector)))
        x = self._embed(edges, kinds)
        for layer in range(self.settings["nblocks"]):
            x = self._interact(f"layers.{layer}", edges, x)
        features = self._linear("linear", self._layer_norm("out_norm", self._norms(x)))
        charges = self._charges(features, kinds, charge)
        joined = np.column_stack([features, charges, self._potential(edges, charges, kinds)])
        joined = self._layer_norm("norm", joined)
        outputs = self._through("layers", joined) / (1 + np.exp(-self._through("gates", joined)))
        references = self.w["element_refs.property_offset"][kinds].sum()
        return float(outputs.sum() * self.w["data_std"] + self.w["data_mean"] + references), charges

    def _norms(self, x: np.ndarray) -> np.ndarray:
        scalar = np.trace(x, axis1=-2, axis2=-1)[..., None, None] * np.eye(3) / 3
        turned = np.swapaxes(x, -1, -2)
        return np.concatenate(
            [(part**2).sum((-2, -1)) for part in (scalar, (x - turned) / 2, (x + turned) / 2 - scalar)], axis=1
        )

    def _charges(self, features: np.ndarray, kinds: list[int], total: float) -> np.ndarray:
        """The minimum of Σ χ q + η q² / 2 under Σ q = Q: a linear system with a Lagrange multiplier."""
        chi = features
        for k in (0, 2, 4):
            chi = silu(self._linear(f"chi_readout.layers.{k}", chi))
        if self.settings["is_hardness_envs"]:
            eta = features
            for k in (0, 2, 4):
                eta = softplus(self._linear(f"hardness_readout.layers.{k}", eta))
        else:
            eta = self.w["hardness_readout"][kinds][:, None]
        count = len(kinds)
        matrix = np.ones((count + 1, count + 1))
        matrix[:count, :count], matrix[count, count] = np.diag(eta[:, 0]), 0.0
        return np.linalg.solve(matrix, np.append(-chi[:, 0], total))[:count]

    def _potential(self, edges: list, charges: np.ndarray, kinds: list[int]) -> np.ndarray:
        widths, cutoff = self.w["sigma"][kinds], self.settings["cutoff"]
        found = np.zeros(len(kinds))
        for src, dst, _, r in edges:
            gamma, x = math.hypot(widths[src], widths[dst]), r / cutoff
            envelope = 1 - 10 * x**3 + 15 * x**4 - 6 * x**5
            found[dst] += COULOMB * charges[dst] * erf(r / math.sqrt(2) / gamma) / r * envelope
        return found

    def _radial(self, r: float) -> np.ndarray:
        return oracles.bessel(self.settings["max_n"], self.settings["cutoff"], r)
