"""Potential: a network, its head, constants that make an energy of the head's output, and priors."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from torchmdx.models.charge_equilibration import conserved
from torchmdx.models.model_card import Card
from torchmdx.models.origin import Origin
from torchmdx.models.priors.base import Geometry, Lattice, Prior, PriorConfig, shapes_are_fixed
from torchmdx.models.priors.coulomb import Coulomb
from torchmdx.models.qet import QETConfig
from torchmdx.models.registry import ModelConfig, make_head, make_network, make_prior
from torchmdx.models.skeleton import CONSTANTS, require_finite, require_fit, require_up_to
from torchmdx.models.tensornet2 import TensorNet2Config
from torchmdx.models.uncertainty import Uncertainty
from torchmdx.models.wrapped import WrappedConfig
from torchmdx.neighbors.edges import Edges, edges_within
from torchmdx.structures.domain import of_owned
from torchmdx.structures.system import Batch


class Potential(nn.Module):
    """Energy model: E = Σ_i (scale · output_i + reference_energies[Z_i]) + shift + Σ priors, eV.

    scale and reference_energies [max_z+1] apply to atoms, shift to a system; priors have their own strengths. These
    constants and all energies are float64, whatever the dtype of the network: the reference energies of a protein sum
    to 10⁷ eV, where float32 resolves 1 eV.

    Attributes:
        card: Name and training data of the potential, if known; checkpoints contain it.
        origin: The file whose weights it has; None in memory, and once it is trained.
        uncertainty: Rigidity of the last layer; None where it is not known, and once weights are trained.
    """

    origin: Origin | None = None
    uncertainty: Uncertainty | None = None
    config: Any  # a ModelConfig, with the settings of its kind
    # A TensorNet, a TensorNet2, a registered network, or a faster network with the same features.
    network: Any
    # A ScalarHead, or a registered one.
    head: Any
    scale: Tensor
    shift: Tensor
    reference_energies: Tensor

    def __init__(
        self, config: ModelConfig, priors: Sequence[PriorConfig] = (), *, network: nn.Module | None = None
    ) -> None:
        """Random weights, or a network. Raises ValueError for a prior that needs charges if the model predicts none."""
        super().__init__()
        self.config = config
        self.card = Card()
        self.network = make_network(config) if network is None else network
        self.head = make_head(config)
        self.priors = nn.ModuleList(make_prior(prior, config) for prior in priors)
        self.register_buffer("scale", torch.ones((), dtype=torch.float64))
        self.register_buffer("shift", torch.zeros((), dtype=torch.float64))
        self.register_buffer("reference_energies", torch.zeros(config.max_z + 1, dtype=torch.float64))

    @property
    def prior_configs(self) -> tuple[PriorConfig, ...]:
        """Configurations of the priors, in order."""
        return tuple(prior.config for prior in self._priors())

    @property
    def cutoff(self) -> float:
        """Largest cutoff of network and priors in any structure, Å. Priors over all pairs of atoms are excluded."""
        return max(self._search_cutoff(periodic=False), self._search_cutoff(periodic=True))

    def search_cutoff(self, batch: Batch) -> float:
        """Cutoff of the neighbour list for this batch, Å. Network and priors ignore edges beyond their own cutoffs.

        Reads the batch's periodic directions on the host.
        """
        return self._search_cutoff(periodic=bool(batch.pbc.any()))

    @property
    def max_z(self) -> int:
        """The largest atomic number that the network and every prior support."""
        return min([self.config.max_z, *(prior.max_z for prior in self._priors())])

    @property
    def predicts_charges(self) -> bool:
        """Whether the network predicts partial charges of atoms."""
        return isinstance(self.config, TensorNet2Config) or getattr(self.config, "charges", False) is True

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the weights, and of the edge vectors it expects."""
        return self._last_weight()[1].dtype

    @property
    def device(self) -> torch.device:
        return self.shift.device

    def forward(
        self,
        batch: Batch,
        edges: Edges,
        vectors: Tensor,
        positions: Tensor | None = None,
        lattice: Lattice | None = None,
    ) -> tuple[Tensor, Tensor]:
        """(energy [S], energies [N]) in eV, float64, from edge vectors [E,3] Å.

        Gradients flow through `vectors`, `positions` [N,3] Å and `lattice` only. positions are needed by priors over
        all pairs of systems without periodic directions; ValueError if they are missing then. lattice is needed by
        Ewald sums if forces or stress are wanted; None: positions and cell of the batch. energies sum to energy within
        a system: the shift is divided equally among its atoms.
        """
        energy, energies, _ = self.outputs(batch, edges, vectors, positions, lattice)
        return energy, energies

    def outputs(
        self,
        batch: Batch,
        edges: Edges,
        vectors: Tensor,
        positions: Tensor | None = None,
        lattice: Lattice | None = None,
        seen: Callable[[Tensor], None] | None = None,
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """`forward`, and the partial charges [N] of the atoms, e, float64; None where the network predicts none.

        Args:
            seen: Called with the features [N,C] of the network.
        """
        features, channels = self.features(batch, edges, vectors)
        if seen is not None:
            seen(features)
        energies = self.assemble(
            self.head(features), batch, lambda: self._geometry(batch, edges, vectors, positions, channels, lattice)
        )
        energy = energies.new_zeros(batch.num_systems).index_add(0, batch.system_index, energies)
        return energy, energies, None if channels is None else self.atomic_charges(channels, batch)

    def assemble(self, outputs: Tensor, batch: Batch, geometry: Callable[[], Geometry]) -> Tensor:
        """Energies [N] of the atoms, float64, from the outputs [N] of the head; geometry: called if there are priors.

        e_i = scale · output_i + reference_energies[Z_i] + shift / (number of atoms of the system) + Σ priors_i
        e_i = 0 for atoms that a domain does not own
        """
        scale, references, shift = self.constants(batch)
        energies = outputs.double() * scale
        energies = energies + references
        counts = batch.counts().clamp(min=1)
        energies = energies + (shift / counts).index_select(0, batch.system_index)
        return of_owned(energies + self.prior_energies(geometry()) if len(self.priors) else energies, batch)

    def constants(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        """scale [] or [N], references [N] of the atoms, and shift [] or [S]."""
        return self.scale, self.reference_energies.index_select(0, batch.atomic_numbers), self.shift

    def features(self, batch: Batch, edges: Edges, vectors: Tensor) -> tuple[Tensor, Tensor | None]:
        """Features [N,C] of the network, and charges [N,M] in all channels of all layers or None."""
        if self.cutoff > self.config.cutoff and not shapes_are_fixed(vectors):
            edges, vectors = edges_within(self.config.cutoff, edges, vectors)
        if isinstance(self.config, (TensorNet2Config, QETConfig, WrappedConfig)):
            return self.network(edges, vectors, batch)
        charge = batch.charge.index_select(0, batch.system_index)
        return self.network(edges, vectors, batch.atomic_numbers, charge), None

    def prior_energies(self, geometry: Geometry, priors: Sequence[Prior] | None = None) -> Tensor:
        """Sum of the energies [N] of all priors, or of the given ones, float64."""
        energies = geometry.distance.new_zeros(geometry.batch.num_atoms, dtype=torch.float64)
        for prior in self._priors() if priors is None else priors:
            energies = energies + prior(geometry).double()
        return energies

    def _geometry(
        self,
        batch: Batch,
        edges: Edges,
        vectors: Tensor,
        positions: Tensor | None,
        channels: Tensor | None,
        lattice: Lattice | None,
    ) -> Geometry:
        """The input of the priors. Raises ValueError if one of them needs positions and there are none."""
        if positions is None:
            for name in (prior.config.name for prior in self._priors() if prior.sees_all_pairs):
                raise ValueError(f"the prior {name} sums over all pairs of atoms and needs positions, got None")
            positions = batch.positions
        lattice = lattice or Lattice(positions, batch.cell)
        return Geometry(batch, edges, torch.linalg.vector_norm(vectors, dim=-1), positions, channels, lattice)

    def atomic_charges(self, channels: Tensor, batch: Batch) -> Tensor:
        """Charges [N] from all channels, which sum to the charge of their system, also for a model with slack.

        Those of a wrapped module are what it returns.
        """
        if isinstance(self.config, WrappedConfig):
            return channels[:, 0].double()
        return conserved(self.combined_charges(channels), batch)

    def combined_charges(self, channels: Tensor) -> Tensor:
        """Charges [N] from all channels: weighted as by the Coulomb prior, else the mean over the last layer."""
        for prior in self._priors():
            if isinstance(prior, Coulomb) and prior.config.charges == "predicted":
                return prior.atomic_charges(channels)
        count = self.config.num_charges if isinstance(self.config, TensorNet2Config) else 1
        return channels[:, -count:].mean(-1)

    def _priors(self) -> list[Prior]:
        return [cast(Prior, prior) for prior in self.priors]

    def _last_weight(self) -> tuple[str, Tensor]:
        """The weight that defines the dtype: the last of the head, else the last of the network.

        Of a network without weights it is the last buffer of floating numbers.
        """
        parts = [("head", self.head.named_parameters()), ("network", self.network.named_parameters())]
        for key, tensors in (*parts, ("network", self.network.named_buffers())):
            floating = [(f"{key}.{name}", tensor) for name, tensor in tensors if tensor.is_floating_point()]
            if floating:
                return floating[-1]
        raise ValueError("a network must have weights or buffers of floating numbers, got none")

    def _search_cutoff(self, periodic: bool) -> float:
        return max([float(self.config.cutoff), *(prior.cutoff(periodic) for prior in self._priors())])

    def with_network(self, network: nn.Module) -> Potential:
        """The same potential, sharing its weights, with another network that computes the same features."""
        other = copy.copy(self)
        other._modules = {**self._modules, "network": network}
        return other

    def with_priors(self, priors: Sequence[PriorConfig | Prior]) -> Potential:
        """The same potential, sharing its weights, with these priors in place of its own, made or by configuration."""
        other = copy.copy(self)
        made = nn.ModuleList(one if isinstance(one, Prior) else make_prior(one, self.config) for one in priors)
        other._modules = {**self._modules, "priors": made.to(self.device).train(self.training)}
        return other

    def with_kept_lists(self) -> Potential:
        """The same potential, sharing its weights, with priors of its own that keep their lists, for one engine."""
        other = copy.copy(self)
        other._modules = {**self._modules, "priors": copy.deepcopy(self.priors)}
        for prior in other._priors():
            prior.keep_lists()
        return other

    def train(self, mode: bool = True) -> Potential:
        if mode:  # both are of other weights then
            self.origin = self.uncertainty = None
        return super().train(mode)

    def require_elements(self, atomic_numbers: Tensor) -> None:
        """Raises ValueError for elements that are not on the card, if it lists the elements of the training data.

        Also for elements without an embedding in the network or without parameters in a prior.
        """
        if atomic_numbers.device.type == "cpu":
            present = set(atomic_numbers.tolist())
            if max(present, default=0) <= self.max_z and present <= set(self.card.elements or present):
                return  # the usual case, without operations of torch
        if self.card.elements is not None:
            trained = torch.tensor(self.card.elements, device=atomic_numbers.device)
            if not bool(torch.isin(atomic_numbers, trained).all()):
                self.card.require_elements(atomic_numbers.tolist())
        known = {"this potential": self.config.max_z}
        known |= {f"the prior {prior.config.name}": prior.max_z for prior in self._priors()}
        require_up_to(known, atomic_numbers)

    def doubts(
        self, atomic_numbers: Sequence[int], charge: float, periodic: bool = False, *, region: bool = False
    ) -> list[str]:
        """As `Card.doubts`, and those of the priors. region: a molecule that is part of a larger, periodic system."""
        return self.card.doubts(atomic_numbers, charge, periodic and not region) + self.prior_doubts(periodic, charge)

    def prior_doubts(self, periodic: bool, charge: float = 0.0) -> list[str]:
        """What the priors say about systems with or without periodic directions, as `Prior.doubts`."""
        return [doubt for prior in self._priors() for doubt in prior.doubts(self.card.title, periodic, charge)]

    def fill(self, tensors: dict[str, Tensor], origin: str) -> None:
        """Copies tensors by name and adopts their dtype.

        Raises:
            ValueError: Naming `origin`, if they do not fit.
        """
        require_fit(self.state_dict(), tensors, origin)
        # Embeddings and reference energies of untrained elements may have any value, NaN included.
        tables = [f"{name}.weight" for name, part in self.named_modules() if isinstance(part, nn.Embedding)]
        weights = (name for name, _ in self.named_parameters() if name not in tables)
        require_finite(tensors, ("scale", "shift", *weights), origin)
        self.to(dtype=tensors[self._last_weight()[0]].dtype)
        self.load_state_dict(tensors)

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> Potential:
        exact = {name: getattr(self, name) for name in CONSTANTS}
        super()._apply(fn, recurse)
        for name, value in exact.items():  # moved to the device, not rounded
            setattr(self, name, value.to(device=getattr(self, name).device))
        return self
