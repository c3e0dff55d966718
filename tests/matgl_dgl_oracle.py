"""The energy of a TensorNet of matgl 1, on DGL, by loops over edges and full matrices, from the tensors of its file."""

import numpy as np
import torch

THIRDS = np.eye(3) / 3


def cross(v: np.ndarray) -> np.ndarray:
    x, y, z = v
    return np.array([[0, -z, y], [z, 0, -x], [-y, x, 0]])


def parts(x: np.ndarray) -> list[np.ndarray]:
    """Scalar, antisymmetric and symmetric traceless part of matrices [..,3,3]."""
    scalar = np.trace(x, axis1=-2, axis2=-1)[..., None, None] * THIRDS
    transposed = np.swapaxes(x, -1, -2)
    return [scalar, (x - transposed) / 2, (x + transposed) / 2 - scalar]


def squares(x: np.ndarray) -> np.ndarray:
    return (x**2).sum((-2, -1))


def silu(x: np.ndarray) -> np.ndarray:
    return x / (1 + np.exp(-x))


class Oracle:
    """told, tensors: of a folder with Gaussian radial functions."""

    def __init__(self, told: dict, tensors: dict[str, torch.Tensor]) -> None:
        self.settings = told["kwargs"]["model"]["init_args"]
        self.w = {name.removeprefix("model."): value.double().numpy() for name, value in tensors.items()}

    def energy(self, numbers: list[int], positions: np.ndarray, symbols: list[str]) -> float:
        """Of a molecule; symbols: of the atoms."""
        cutoff, kinds = self.settings["cutoff"], [self.settings["element_types"].index(s) for s in symbols]
        count = len(numbers)
        edges = [(i, j, positions[j] - positions[i]) for i in range(count) for j in range(count) if i != j]
        edges = [(src, dst, v, np.linalg.norm(v)) for src, dst, v in edges if np.linalg.norm(v) < cutoff]
        x = self._embed(edges, kinds)
        for layer in range(self.settings["nblocks"]):
            x = self._interact(f"layers.{layer}", edges, x)
        norms = np.concatenate([squares(part) for part in parts(x)], axis=1)
        features = self._linear("linear", self._layer_norm("out_norm", norms))
        energies = self._through("layers", features) / (1 + np.exp(-self._through("gates", features)))
        references = self.w["element_refs.property_offset"][kinds]
        return float(energies.sum() * self.w["data_std"] + self.w["data_mean"] + references.sum())

    def _embed(self, edges: list, kinds: list[int]) -> np.ndarray:
        elements = self.w["tensor_embedding.emb.weight"][kinds]
        x = np.zeros((len(kinds), self.settings["units"], 3, 3))
        for src, dst, v, r in edges:
            z = self._linear("tensor_embedding.emb2", np.concatenate([elements[src], elements[dst]]))
            v = v / r
            of_parts = (np.eye(3), cross(v), np.outer(v, v) - THIRDS)
            for k, matrix in enumerate(of_parts, start=1):
                f = self._linear(f"tensor_embedding.distance_proj{k}", self._radial(r)) * self._cut(r)
                x[dst] += (z * f)[:, None, None] * matrix
        gate = self._layer_norm("tensor_embedding.init_norm", squares(x))
        for k in (0, 1):
            gate = silu(self._linear(f"tensor_embedding.linears_scalar.{k}", gate))
        return self._scaled(self._mixed("tensor_embedding", 0, x), gate)

    def _interact(self, layer: str, edges: list, x: np.ndarray) -> np.ndarray:
        x = x / (squares(x) + 1)[..., None, None]
        y = self._mixed(layer, 0, x)
        messages = np.zeros_like(y)
        for _, dst, _, r in edges:
            f = self._radial(r)
            for k in (0, 1, 2):
                f = silu(self._linear(f"{layer}.linears_scalar.{k}", f))
            messages[dst] += self._scaled(y[dst], f * self._cut(r))
        both = self.settings["equivariance_invariance_group"] == "O(3)"
        p = messages @ y + y @ messages if both else 2 * y @ messages
        d = self._mixed(layer, 3, p / (squares(p) + 1)[..., None, None])
        return x + d + d @ d

    def _radial(self, r: float) -> np.ndarray:
        return np.exp(-self.settings["width"] * (r - self.w["bond_expansion.rbf.centers"]) ** 2)

    def _cut(self, r: float) -> float:
        return 0.5 * (np.cos(np.pi * r / self.settings["cutoff"]) + 1)

    def _linear(self, name: str, x: np.ndarray) -> np.ndarray:
        return x @ self.w[f"{name}.weight"].T + self.w[f"{name}.bias"]

    def _layer_norm(self, name: str, x: np.ndarray) -> np.ndarray:
        x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
        return x * self.w[f"{name}.weight"] + self.w[f"{name}.bias"]

    def _mixed(self, name: str, first: int, x: np.ndarray) -> np.ndarray:
        maps = [self.w[f"{name}.linears_tensor.{first + k}.weight"] for k in range(3)]
        return sum(np.einsum("oc,ncab->noab", w, part) for w, part in zip(maps, parts(x), strict=True))

    def _scaled(self, x: np.ndarray, factors: np.ndarray) -> np.ndarray:
        """Parts times the factors of each channel, of which three follow each other."""
        factors = factors.reshape(*factors.shape[:-1], -1, 3)
        return sum(factors[..., k, None, None] * part for k, part in enumerate(parts(x)))

    def _through(self, network: str, x: np.ndarray) -> np.ndarray:
        for k in (0, 2, 4):
            x = silu(self._linear(f"final_layer.gated.{network}.{k}", x))
        return self._linear(f"final_layer.gated.{network}.6", x)
