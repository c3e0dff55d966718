"""References for the tests: plain loops over the textbook formulas, sharing no code with the package."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import numpy as np


def neighbours(positions, cell, pbc, cutoff: float) -> list[tuple[int, int, tuple[int, int, int]]]:
    """Every (target, source, shift) closer than the cutoff, sorted: a loop over atoms, atoms and images."""
    positions, cell = np.asarray(positions, float), np.asarray(cell, float)
    farthest = max((math.dist(a, b) for a in positions for b in positions), default=0.0)
    images = [range(-m, m + 1) for m in _images(cell, pbc, cutoff + farthest)]
    found = []
    for i, j in itertools.product(range(len(positions)), repeat=2):
        for shift in itertools.product(*images):
            if i == j and shift == (0, 0, 0):
                continue
            vector = positions[j] - positions[i] + np.array(shift) @ cell
            if math.sqrt(vector @ vector) < cutoff:
                found.append((i, j, shift))
    return sorted(found)


def _images(cell: np.ndarray, pbc, reach: float) -> list[int]:
    """How many images along each direction can lie within `reach` of the origin."""
    most = []
    for k in range(3):
        if not pbc[k]:
            most.append(0)
            continue
        others = [cell[m] for m in range(3) if m != k and pbc[m]]
        beside = cell[k].copy()
        if others:
            basis = np.array(others).T
            beside -= basis @ np.linalg.lstsq(basis, cell[k], rcond=None)[0]
        most.append(math.ceil(reach / np.linalg.norm(beside)))
    return most


ACTIVATIONS: dict[str, Callable[[float], float]] = {
    "silu": lambda x: x / (1 + math.exp(-x)),
    "swish": lambda x: x / (1 + math.exp(-x)),
    "ssp": lambda x: math.log(0.5 * math.exp(x) + 0.5),
    "tanh": math.tanh,
    "sigmoid": lambda x: 1 / (1 + math.exp(-x)),
    "mish": lambda x: x * math.tanh(math.log(1 + math.exp(x))),
}


def radial(kind: str, weights: dict[str, np.ndarray], cutoff: float, r: float, count: int) -> np.ndarray:
    """Radial basis [R] at one distance; count: R."""
    if kind == "bessel":
        return bessel(count, cutoff, r)
    if kind == "gauss":
        offsets = weights["network.basis.offsets"]
        return np.array([math.exp(weights["network.basis.coefficient"] * (r - o) ** 2) for o in offsets])
    pairs = zip(weights["network.basis.means"], weights["network.basis.betas"], strict=True)
    return np.array(
        [cut(r, cutoff) * math.exp(-beta * (math.exp(-5 / cutoff * r) - mean) ** 2) for mean, beta in pairs]
    )


def bessel(count: int, cutoff: float, r: float) -> np.ndarray:
    """Sums of neighbouring functions sin(nπr/c)/r, made orthonormal with the weight r² by a Cholesky factorization."""
    nodes, weights = np.polynomial.legendre.leggauss(100)
    at = np.append(cutoff / 2 * (nodes + 1), max(r, 1e-7))
    pure = [np.sin(n * np.pi * at / cutoff) / at for n in range(1, count + 2)]
    sums = np.array([(-1) ** k * (pure[k] / (k + 1) + pure[k + 1] / (k + 2)) for k in range(count)])
    inside = sums[:, :-1]
    gram = np.einsum("r,ir,jr->ij", weights * cutoff / 2 * at[:-1] ** 2, inside, inside)
    return np.linalg.solve(np.linalg.cholesky(gram), sums[:, -1])


def cut(r: float, cutoff: float) -> float:
    return 0.5 * (math.cos(math.pi * r / cutoff) + 1) if r < cutoff else 0.0


class TensorNet:
    """TensorNet with a 3×3 matrix for every edge and channel, from a potential's configuration and state."""

    def __init__(self, potential) -> None:
        self.config = potential.config
        self.w = {name: value.double().numpy() for name, value in potential.state_dict().items()}
        self.activation = np.vectorize(ACTIVATIONS[self.config.activation], otypes=[float])

    def energies(self, positions, numbers, cell=None, pbc=(False,) * 3, charge: float = 0.0) -> np.ndarray:
        """Energies [N] of the atoms of one system, eV, without the shift."""
        pairs, vectors = self._edges(positions, cell, pbc)
        x = self._embed(pairs, vectors, numbers)
        for layer in range(self.config.num_layers):
            x = self._interact(f"network.layers.{layer}.", x, pairs, vectors, charge)
        return np.array([self._read_out(x[i], numbers[i]) for i in range(len(positions))])

    def energy(self, *structure, **more) -> float:
        return float(self.energies(*structure, **more).sum() + self.w["shift"])

    def _edges(self, positions, cell, pbc) -> tuple[list, list]:
        """Pairs (target, source) and vectors, with every atom as its own neighbour at no distance if it is one."""
        cell = np.zeros((3, 3)) if cell is None else np.asarray(cell)
        positions = np.asarray(positions)
        edges = neighbours(positions, cell, pbc, self.config.cutoff)
        vectors = [positions[j] - positions[i] + np.array(shift) @ cell for i, j, shift in edges]
        pairs = [(i, j) for i, j, _ in edges]
        if self.config.self_message:
            pairs += [(i, i) for i in range(len(positions))]
            vectors += [np.zeros(3)] * len(positions)
        return pairs, vectors

    def _embed(self, pairs, vectors, numbers) -> np.ndarray:
        channels = self.config.num_channels
        x = np.zeros((len(numbers), channels, 3, 3))
        elements = self.w["network.embedding.elements.weight"]
        for (i, j), vector in zip(pairs, vectors, strict=True):
            r = np.linalg.norm(vector)
            f = self._linear("network.embedding.filters", self._radial(r)) * cut(r, self.config.cutoff)
            z = self._linear("network.embedding.pair", np.concatenate([elements[numbers[i]], elements[numbers[j]]]))
            dx, dy, dz = vector / r if r > 0 else vector
            cross = np.array([[0, -dz, dy], [dz, 0, -dx], [-dy, dx, 0]])
            outer = np.outer([dx, dy, dz], [dx, dy, dz])
            outer -= np.trace(outer) / 3 * np.eye(3)
            for c in range(channels):
                parts = f[c] * np.eye(3) + f[channels + c] * cross + f[2 * channels + c] * outer
                x[i, c] += z[c] * parts
        out = np.zeros_like(x)
        for i in range(len(x)):
            gate = self._layer_norm("network.embedding.norm", np.array([(m**2).sum() for m in x[i]]))
            for k in (0, 2):
                gate = self.activation(self._linear(f"network.embedding.gate.{k}", gate))
            out[i] = self._scale_parts(self._mix("network.embedding.mix.", x[i]), gate)
        return out

    def _interact(self, layer: str, x, pairs, vectors, charge: float, charges=None) -> np.ndarray:
        x = np.array([[m / ((m**2).sum() + 1) for m in atom] for atom in x])
        y = np.array([self._mix(f"{layer}mix_in.", atom) for atom in x])
        messages = np.zeros_like(y)
        for (i, j), vector in zip(pairs, vectors, strict=True):
            r = np.linalg.norm(vector)
            f = self._radial(r)
            if charges is not None:
                f = np.concatenate([f, charges[i], charges[j]])
            for k in (0, 2, 4):
                f = self.activation(self._linear(f"{layer}filters.{k}", f))
            messages[i] += self._scale_parts(
                y[j if self.config.messages == "source" else i], f * cut(r, self.config.cutoff)
            )
        out = np.zeros_like(x)
        factor = 1 + 0.1 * charge if self.config.charge_factor else 1.0
        for i in range(len(x)):
            if self.config.group == "O(3)":
                p = [factor * (a @ b + b @ a) for a, b in zip(y[i], messages[i], strict=True)]
            else:
                p = [2 * a @ b for a, b in zip(y[i], messages[i], strict=True)]
            d = self._mix(f"{layer}mix_out.", np.array([m / ((m**2).sum() + 1) for m in p]))
            out[i] = x[i] + d + factor * np.array([m @ m for m in d])
        return out

    def _read_out(self, x: np.ndarray, number: int) -> float:
        norms = [[(part**2).sum() for part in _split(m)] for m in x]
        features = self._layer_norm("network.norm", np.array(norms).T.ravel())
        features = self._linear("network.readout", features)
        if self.config.readout_activation:
            features = self.activation(features)
        if self.config.head == "gated":
            output = self._through("head.layers", features) / (1 + math.exp(-self._through("head.gates", features)))
        else:
            output = self._through("head.network", features)
        return output * self.w["scale"] + self.w["reference_energies"][number]

    def _through(self, network: str, x: np.ndarray) -> float:
        """The number that a head computes from x [C]."""
        last = 2 * self.config.num_head_layers + 2
        for k in range(0, last, 2):
            x = self.activation(self._linear(f"{network}.{k}", x))
        return float(self._linear(f"{network}.{last}", x)[0])

    def _radial(self, r: float) -> np.ndarray:
        return radial(self.config.radial_basis, self.w, self.config.cutoff, r, self.config.num_radial)

    def _linear(self, name: str, x: np.ndarray) -> np.ndarray:
        return self.w[f"{name}.weight"] @ x + self.w[f"{name}.bias"]

    def _layer_norm(self, name: str, x: np.ndarray) -> np.ndarray:
        normal = (x - x.mean()) / math.sqrt(x.var() + 1e-5)
        return normal * self.w[f"{name}.weight"] + self.w[f"{name}.bias"]

    def _mix(self, name: str, x: np.ndarray) -> np.ndarray:
        """Mixes the channels of x [C,3,3], each of the three parts with its own matrix."""
        maps = [self.w[f"{name}{part}.weight"] for part in ("scalar", "vector", "symmetric")]
        out = np.zeros_like(x)
        for c, m in enumerate(x):
            for matrix, part in zip(maps, _split(m), strict=True):
                out += matrix[:, c, None, None] * part
        return out

    def _scale_parts(self, x: np.ndarray, factors: np.ndarray) -> np.ndarray:
        """The three parts of x [C,3,3] times factors [3C]."""
        by_part = factors.reshape(3, len(x))
        return np.array([sum(by_part[k, c] * part for k, part in enumerate(_split(m))) for c, m in enumerate(x)])


class TensorNet2(TensorNet):
    """TensorNet2 in the same way."""

    def energies(self, positions, numbers, cell=None, pbc=(False,) * 3, charge: float = 0.0) -> np.ndarray:
        pairs, vectors = self._edges(positions, cell, pbc)
        x = self._embed(pairs, vectors, numbers)
        self.charges = [self._equilibrate(0, x, charge)]
        for layer in range(self.config.num_layers):
            # The total charge enters by the charges alone: as a factor it would be 1 + 0.1 · 0.
            x = self._interact(f"network.layers.{layer}.", x, pairs, vectors, 0.0, self.charges[-1])
            self.charges.append(self._equilibrate(layer + 1, x, charge))
        return np.array([self._read_out(x[i], numbers[i]) for i in range(len(positions))])

    def _equilibrate(self, index: int, x, charge: float) -> np.ndarray:
        """Charges [N,K] that add up to the total."""
        name, proposals = f"network.charges.{index}.", []
        for atom in x:
            parts = [_split(m) for m in atom]
            values = [p[0][0, 0] for p in parts] + [(p[k] ** 2).sum() for k in (1, 2) for p in parts]
            f = self._layer_norm(f"{name}norm", np.array(values))
            for k in (0, 2):
                f = self.activation(self._linear(f"{name}network.{k}", f))
            proposals.append(self._linear(f"{name}network.4", f))
        first, share = np.split(np.array(proposals), 2, axis=1)
        missing = charge - first.sum(0)
        return first + share**2 / ((share**2).sum(0) + self.config.charge_slack) * missing


def _split(m: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Isotropic, antisymmetric and symmetric traceless part of a 3×3 matrix."""
    scalar = np.trace(m) / 3 * np.eye(3)
    return scalar, (m - m.T) / 2, (m + m.T) / 2 - scalar


# Central difference of fourth order: f'(0) = Σ c f(k h) / h.
STENCIL = {-2: 1 / 12, -1: -2 / 3, 1: 2 / 3, 2: -1 / 12}


def central_forces(energies_of: Callable, positions: np.ndarray, step: float = 1e-3) -> np.ndarray:
    """-∂E/∂positions by central differences; energies_of takes a list of (positions, None) at once."""
    moved = []
    for atom, axis in np.ndindex(*positions.shape):
        for k in STENCIL:
            other = positions.copy()
            other[atom, axis] += k * step
            moved.append((other, None))
    found = np.reshape(energies_of(moved), (*positions.shape, len(STENCIL)))
    return -found @ np.array(list(STENCIL.values())) / step


def finite_strain(energies_of: Callable, positions: np.ndarray, cell: np.ndarray, step: float = 5e-4) -> np.ndarray:
    """∂E/∂strain / volume by symmetric strains of positions and cell, eV/Å³."""
    moved = []
    for a, b in np.ndindex(3, 3):
        for k in STENCIL:
            strain = np.eye(3)
            strain[a, b] += k * step / 2
            strain[b, a] += k * step / 2
            moved.append((positions @ strain, cell @ strain))
    found = np.reshape(energies_of(moved), (3, 3, len(STENCIL)))
    volume = abs(np.dot(cell[0], np.cross(cell[1], cell[2])))
    return found @ np.array(list(STENCIL.values())) / step / volume
