"""The interface to torch-sim: any potential as a model of torch-sim, which moves many structures at once."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor
from torch_sim.models.interface import ModelInterface

from torchmdx.checkpoints.prepare import DTYPES, PotentialSource, prepare_potential
from torchmdx.models.ensemble import Ensemble
from torchmdx.models.potential import Potential
from torchmdx.runtime.cpu_memory import available_bytes
from torchmdx.runtime.devices import choose_device
from torchmdx.runtime.precisions import require_precision
from torchmdx.step.batch_pool import BatchPool
from torchmdx.step.capture_policy import EAGER_FIRST, require_mode
from torchmdx.structures.system import Batch

__all__ = ["TorchmdxModel"]

# Of the memory that is free, for a batch: torch-sim's own states and the allocator need some.
SHARE_OF_MEMORY = 0.6
MEMORY_UNKNOWN = 4 * 2**30  # bytes assumed on systems that do not say how much is free


class TorchmdxModel(ModelInterface):
    """Energy, forces and stress of a batch of structures, for `torch_sim.optimize`, `integrate` and `static`.

    Example::

        model = TorchmdxModel("model.safetensors")
        state = torch_sim.optimize(structures, model, optimizer=torch_sim.Optimizer.fire)

    Batches are evaluated by captured steps of a few padded sizes, which are kept while torch-sim swaps structures. The
    total charge of each structure is the state's `charge` [S], 0 without it, and `partial_charges` [N] are for
    potentials that take the charges of atoms as given. The stress of a structure without a volume is zero. An ensemble
    also returns `energy_spread` [S] and `force_spread` [N].

    Args:
        potential: A Potential, the path of a checkpoint, a name or an ensemble, as for Calculator.
        precision: "float32" or "float64" (on a GPU the exact model), of the network.
        dtype: Of states that torch-sim creates, and of results. In float64 coordinates are not rounded; forces have the
            precision of the network.
        device: "cpu", "cuda", "cuda:1"; None takes a GPU if one is available.
        mode: As for CapturedStep.
        compute_stress, compute_forces: What results contain; both can be set later.
        coulomb_cutoff, coulomb, coulomb_accuracy: Treatment of the Coulomb energy of periodic structures, as for
            `torchmdx.load`.
        head: Of a file with several; None: its default.
    """

    def __init__(
        self,
        potential: PotentialSource = None,
        *,
        precision: str = "float32",
        dtype: torch.dtype = torch.float64,
        device: torch.device | str | None = None,
        mode: str = "auto",
        compute_stress: bool = True,
        compute_forces: bool = True,
        coulomb_cutoff: float | None = None,
        coulomb: str | None = None,
        coulomb_accuracy: float | None = None,
        head: str | None = None,
    ) -> None:
        super().__init__()
        require_precision(precision)
        if dtype not in (torch.float32, torch.float64):
            raise ValueError(f"dtype must be torch.float32 or torch.float64, got {dtype}")
        target = choose_device(device)
        require_mode(mode, target)
        treatment = (coulomb_cutoff, coulomb, coulomb_accuracy, head)
        prepared = prepare_potential(potential, DTYPES[precision], target, *treatment)
        self._device, self._dtype = prepared.device, dtype
        self._compute_stress, self._compute_forces = compute_stress, compute_forces
        self.pool = BatchPool(prepared, mode=mode, stress=compute_stress, precision=precision)
        self._memory_scales_with = "n_atoms"
        self._held: _Composition | None = None
        self._asked_about: set[tuple[float, float, bool]] = set()

    @property
    def potential(self) -> Potential | Ensemble:
        return self.pool.potential

    @property
    def cutoff(self) -> Tensor:
        return torch.tensor(self.potential.cutoff, dtype=self._dtype, device="cpu")

    # torch-sim declares the getters in its class, and setters that refuse.
    @ModelInterface.compute_stress.setter
    def compute_stress(self, value: bool) -> None:
        if value != self._compute_stress:
            pool = self.pool
            self.pool = BatchPool(pool.potential, mode=pool.mode, stress=value, precision=pool.precision)
            self._compute_stress, self._held = value, None

    @ModelInterface.compute_forces.setter
    def compute_forces(self, value: bool) -> None:
        self._compute_forces = value

    def forward(self, state: Any, **_: Any) -> dict[str, Tensor]:
        """energy [S] eV and, as requested, forces [N,3] eV/Å and stress [S,3,3] eV/Å³ of a SimState.

        Raises:
            ValueError: For a state on another device, unsupported elements or a charge of the wrong shape, and what
                CapturedStep raises.
        """
        if state.positions.device != self.potential.device:
            raise ValueError(f"the state must be on {self.potential.device}, got one on {state.positions.device}")
        held = self._held
        if held is None or not held.fits(state):
            self._held = None
            batch = _batch_of(state)
            self._warn_of_doubts(batch)
            self.pool.hold(batch)
            self._held = held = _Composition(state)
        cell = None if held.has_cell(state) else state.row_vector_cell
        held.cell = None  # not known if the evaluation fails
        found = self.pool(state.positions, cell, copy=True)
        held.keep_cell(state)
        results = {"energy": found.energy}
        if self._compute_forces:
            results["forces"] = found.forces
        if self._compute_stress:
            results["stress"] = torch.nan_to_num(found.stress, nan=0.0)
        if found.energy_spread is not None:
            results |= {"energy_spread": found.energy_spread, "force_spread": found.force_spread}
        return {name: values.to(self._dtype) for name, values in results.items()}

    def max_memory_scaler(self, state: Any) -> float:
        """How many atoms a batch of structures like those of a SimState may have, for torch-sim's autobatchers.

        On a GPU it is measured: the memory of the step that evaluates the state, graph included, for each atom. On the
        CPU it is estimated from the size of the network. torch-sim's own estimate evaluates ever larger batches until
        the memory of a GPU is exhausted, and refuses CPUs.
        """
        for _ in range(EAGER_FIRST + 1):  # the last one captures
            self.forward(state)
        device = self.potential.device
        if device.type == "cuda":
            step = self.pool.steps[-1]
            free, _total = torch.cuda.mem_get_info(device)
            needed = step.memory_bytes() / step.batch.num_atoms
            free += torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        else:
            free, needed = available_bytes() or MEMORY_UNKNOWN, _bytes_an_atom(self.potential)
        return max(float(state.n_atoms_per_system.max()), SHARE_OF_MEMORY * free / needed)

    def _warn_of_doubts(self, batch: Batch) -> None:
        """Warns once of each kind of structure that the potential was not made for."""
        self.potential.require_elements(batch.atomic_numbers)  # an error takes precedence over a warning
        protons = torch.zeros_like(batch.charge).index_add(0, batch.system_index, batch.atomic_numbers.to(batch.charge))
        columns = torch.stack([protons % 2, batch.charge, batch.pbc.any(-1).to(protons)], dim=1)
        for odd, charge, periodic in torch.unique(columns, dim=0).tolist():
            key = (odd, charge, bool(periodic))
            if key not in self._asked_about:
                self._asked_about.add(key)
                index = int((columns == columns.new_tensor([odd, charge, periodic])).all(1).nonzero()[0])
                numbers = batch.atomic_numbers[batch.system_index == index].tolist()
                for doubt in self.potential.doubts(numbers, charge, bool(periodic)):
                    warnings.warn(doubt, stacklevel=4)


class _Composition:
    """The tensors of a state that a step fixes, to notice another composition without reading the device."""

    names = ("atomic_numbers", "system_idx", "pbc", "charge", "partial_charges")

    def __init__(self, state: Any) -> None:
        self.tensors = {name: getattr(state, name, None) for name in self.names}
        self.versions = {name: _version(tensor) for name, tensor in self.tensors.items()}
        self.copies = {name: None if tensor is None else tensor.clone() for name, tensor in self.tensors.items()}
        self.cell: Tensor | None = None
        self._cell_version: int | None = None

    def fits(self, state: Any) -> bool:
        """Whether the state has the same atoms; compares values only of tensors that are not the same objects."""
        return all(self._same(name, getattr(state, name, None)) for name in self.names)

    def has_cell(self, state: Any) -> bool:
        """Whether the last evaluation that succeeded had this state's cell, the same tensor, unchanged since."""
        version = _version(state.cell)
        return self.cell is state.cell and version is not None and self._cell_version == version

    def keep_cell(self, state: Any) -> None:
        """Remembers the cell of an evaluation that has succeeded."""
        self.cell, self._cell_version = state.cell, _version(state.cell)

    def _same(self, name: str, tensor: Tensor | None) -> bool:
        copy, version = self.copies[name], _version(tensor)
        if tensor is self.tensors[name] and version is not None and version == self.versions[name]:
            return True
        if tensor is None or copy is None or tensor.shape != copy.shape or not torch.equal(tensor, copy):
            return tensor is copy
        self.tensors[name], self.versions[name] = tensor, version
        return True


def _version(tensor: Tensor | None) -> int | None:
    """How often a tensor was changed in place; None where torch does not count."""
    if tensor is None:
        return 0
    return None if tensor.is_inference() else tensor._version


def _batch_of(state: Any) -> Batch:
    """The structures of a SimState, in tensors of their own."""
    systems, device = state.n_systems, state.positions.device
    charge = getattr(state, "charge", None)
    if charge is None:
        charge = torch.zeros(systems, dtype=torch.float64, device=device)
    if charge.shape not in ((systems,), (systems, 1)):
        raise ValueError(f"charge must have shape [{systems}], one for each system, got {list(charge.shape)}")
    given = getattr(state, "partial_charges", None)
    return Batch(
        positions=state.positions.detach().double().clone(),
        atomic_numbers=state.atomic_numbers.long().clone(),
        system_index=state.system_idx.long().clone(),
        cell=state.row_vector_cell.detach().double().clone(),
        pbc=state.pbc.to(device).bool().reshape(-1, 3).expand(systems, 3).clone(),
        charge=charge.detach().double().reshape(systems).clone(),
        partial_charges=None if given is None else given.detach().double().clone(),
    )


def _bytes_an_atom(potential: Potential | Ensemble) -> float:
    """Memory for the features of an atom, forward and backward; of an ensemble's members together."""
    members = list(potential) if isinstance(potential, Ensemble) else [potential]
    return float(sum(_member_bytes(member) for member in members))


def _member_bytes(potential: Potential) -> int:
    config = potential.config
    layers, channels = getattr(config, "num_layers", 2), getattr(config, "num_channels", 128)
    # Nine components a channel; features, messages, products and their gradients in each layer.
    return int(9 * channels * (layers + 1) * 8 * torch.finfo(potential.dtype).bits // 8)
