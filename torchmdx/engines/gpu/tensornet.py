"""TensorNet's energy and forces in a fixed chain of kernels, float32, for a GPU.

The same function as `Potential` with `TabulatedFilters`: filters are read from the table, messages are summed without
storing edge features, and the backward pass is written by hand instead of recorded. Forces are the exact gradient of
the energy that is returned with them.

`run` only launches kernels, without allocation or synchronisation and with fixed shapes, so it can be captured in a
CUDA graph. There are no atomics: equal inputs give bit-identical results.

The chain, for L layers::

    place_edges → surroundings → standardised_norms → W → W → W → gated → L x (W → messages → W → update)
    → read_norms → W → read_energies → W → read_features_gradient
    → L x (W → update_gradient → messages_gradient → W → mix_in_gradient) → W → W → W → surroundings_mix_gradient
    → surroundings_gradient → forces → sum_systems

with W a product with weights (kernels/tf32_product.py). Where an atom has many neighbours of few elements, most of

::

    surroundings is   element_sums → multiply_sums
    surroundings_gradient is   multiply_sums_back → element_sums_gradient

For few atoms (`Tiles.row`), one program per atom does most of this::

    embed → L x layer → L x layer_gradient → forces → sum_systems
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from torchmdx.engines.filter_table import BOUND, TabulatedFilters, tabulate
from torchmdx.engines.gpu.branches import in_branch
from torchmdx.engines.gpu.buffers import Buffers, BufferSizes
from torchmdx.engines.gpu.slab_layout import SlabLayout
from torchmdx.engines.gpu.slab_windows import SlabShape, SlabWindows
from torchmdx.engines.plan import KernelPlan, Machine, Network, Workload, plan_kernels
from torchmdx.engines.plan.decide import why_not_fused
from torchmdx.engines.plan.kernels import LEAN, ROWS
from torchmdx.engines.plan.launch_sizes import Tiles, launch_sizes
from torchmdx.models.potential import Potential
from torchmdx.models.tensornet import TensorNet
from torchmdx.neighbors.edges import Edges

if TYPE_CHECKING:
    from torchmdx.engines.gpu.atom_tiles import TileKernels
    from torchmdx.engines.gpu.charged_launch import ChargedLaunch
    from torchmdx.engines.gpu.element_functions import ElementFunctions, PresentElements
    from torchmdx.engines.gpu.many_atoms import Chain
    from torchmdx.engines.gpu.one_launch import OneLaunch
    from torchmdx.engines.gpu.uncertainty import UncertaintyKernels

UNCERTAINTY = 5  # number of a branch; charged.py and with_priors.py have others


class FastTensorNet:
    """A potential's energy and forces by kernels.

    Args:
        bound: Largest error of a tabulated filter relative to the largest filter; `table.error` is what was reached.
        priors: Leave them out; the caller adds them.

    Raises:
        ValueError: If `why_not` gives a reason.
    """

    network_type: type[nn.Module] = TensorNet
    plan: KernelPlan  # of the last `allocate`, as its `capacity`
    capacity: int

    def __init__(
        self,
        potential: Potential,
        *,
        bound: float = BOUND,
        table: TabulatedFilters | None = None,
        priors: bool = False,
    ) -> None:
        reason = self.why_not(potential, priors=priors)
        if reason is not None:
            raise ValueError(f"this potential has no fast path: {reason}")
        # Imported here, so that the package imports without Triton.
        from torchmdx.engines.gpu.weights import SplitWeights, Weights, dense_table

        self.config = potential.config
        self.device, self.priors = potential.device, priors
        self.between = priors  # whether these need several launches
        self.machine = Machine.of(self.device, code=False)
        self.table = table if table is not None else tabulate(self.tabulated(potential.network), bound)
        self.weights = Weights.pack(potential, self.table)
        # The tables of embedding and layers, for blocks of atoms.
        tables = (self.weights.table, *(layer.table for layer in self.weights.layers))
        self.tables = [dense_table(table, self.table.stretch) for table in tables]
        self.split_weights = SplitWeights.of(self.weights)
        self.epsilons = (potential.network.embedding.norm.eps, potential.network.norm.eps)
        self.buffers: Buffers | None = None
        self.uncertainty = potential.uncertainty  # then inputs of the last layer are results
        self.doubts: UncertaintyKernels | None = None
        self.one_launch: OneLaunch | None = None
        self.tile_kernels: TileKernels | None = None
        self.outcomes: list[str] = []  # what of the plan could not be had, and why
        self.layout, self.memory = SlabLayout(), 0  # of slabs; bytes that an evaluation may take, 0: of the device

    @staticmethod
    def tabulated(network: nn.Module) -> nn.Module:
        """The module whose filters are tabulated."""
        return network

    @classmethod
    def why_not(cls, potential: Potential, *, priors: bool = False) -> str | None:
        """Why the kernels cannot evaluate this potential; None if they can. priors: apart from its priors."""
        network = Network.of(potential)
        if network.kind != cls.network_type.__name__:
            return f"its network must be a {cls.network_type.__name__}, got {network.kind}"
        if potential.prior_configs and not priors:
            names = ", ".join(config.name for config in potential.prior_configs)
            return f"it must have no priors, got {names}"
        return why_not_fused(network, potential.config, Machine.of(potential.device, code=False))

    @cached_property
    def element_functions(self) -> ElementFunctions | None:
        """Few functions that make the filters of the embedding; None if that takes many."""
        from torchmdx.engines.gpu.element_functions import ElementFunctions

        return ElementFunctions.of(self.weights.table, self.table.stretch)

    def allocate(
        self,
        num_atoms: int,
        num_systems: int,
        capacity: int,
        *,
        forces: bool = True,
        tiles: Tiles | None = None,
        elements: Sequence[int] = (),
        plan: KernelPlan | None = None,
        slabs: SlabShape | None = None,
    ) -> Buffers:
        """Allocates buffers for N atoms, S systems and E edge slots. forces=False: none for the backward pass.

        Args:
            plan: What is launched; None: what `planned` decides, with these launch sizes if `tiles` are given.
            slabs: Of a plan with slabs; None: all atoms in one.
            elements: Atomic numbers of the atoms that will be evaluated, each once, as far as they are known. Sums over
                neighbours are faster where these are few, and where neighbours have no others.
        """
        from torchmdx.engines.gpu.uncertainty import UncertaintyKernels  # needs Triton

        work = Workload(
            atoms=num_atoms, systems=num_systems, capacity=capacity, elements=len(elements), forces=forces, alone=False,
            last_inputs=self.uncertainty is not None, ordered=slabs is not None,
        )  # fmt: skip
        plan = plan or self.planned(work, tiles)
        self.plan, self.capacity = plan, capacity
        head = self.weights.head
        sizes = BufferSizes(
            num_atoms=num_atoms,
            num_systems=num_systems,
            capacity=capacity,
            channels=self.weights.channels,
            hidden=self.weights.hidden,
            layers=len(self.weights.layers),
            head_layers=head.num_layers,
            head_width=2 * head.width if head.gated else head.width,
            head_gated=head.gated,
            tiles=plan.tiles,
            chain=plan.chain,
            with_forces=forces,
            device=self.device,
        )
        present = self._present(elements) if plan.by_elements else None
        sizes = replace(sizes, sums=0 if present is None else present.count * present.functions.count)
        self.one_launch = None
        last_inputs = 0 if self.uncertainty is None else self.uncertainty.size
        self.buffers = Buffers.allocate(sizes, present, last_inputs=last_inputs)
        if sizes.in_slabs:
            self.buffers.windows = SlabWindows.allocate(sizes, slabs or SlabShape(num_atoms, max(num_atoms, 1), 1))
        self.no_charge = sizes.new(max(num_systems, 1))
        self.doubts = UncertaintyKernels.of(self.uncertainty, self.buffers)
        return self.buffers

    def _present(self, elements: Sequence[int]) -> PresentElements | None:
        """What sums by elements need; None where many functions make the filters."""
        from torchmdx.engines.gpu.element_functions import PresentElements

        return PresentElements.of(self.element_functions, elements, self.weights.sources)

    def use_one_launch(self, *, virials: bool = False) -> None:
        """Makes `run` take one kernel for energies, forces and, if told, virials, in the buffers of `allocate`.

        Its blocks wait for each other, so no other such kernel should run at the same time. Raises ValueError if the
        kernel does not serve this network, these buffers or this GPU; CompileError, CacheError or DriverError.
        """
        from torchmdx.engines.gpu.one_launch import OneLaunch

        if self.buffers is None:
            raise RuntimeError("allocate must be called before use_one_launch")
        self.one_launch = OneLaunch.made(self, self.buffers, virials=virials)

    @property
    def single(self) -> OneLaunch | ChargedLaunch | None:
        """The kernel that `run` takes for all of its work, if there is one."""
        return self.one_launch

    def use_tiles(self) -> None:
        """Makes `run` of many atoms take the kernels of atom_tiles.py, unless memory counts.

        Raises ValueError if they do not serve this network; CompileError, CacheError or DriverError.
        """
        from torchmdx.engines.gpu.atom_tiles import TileKernels

        self.tile_kernels = self.tile_kernels or TileKernels.made(self)

    def run(
        self,
        positions: Tensor,
        atomic_numbers: Tensor,
        system_index: Tensor,
        cell: Tensor,
        charge: Tensor,
        edges: Edges,
        *,
        forces: bool = True,
        virial: bool = False,
        between: Callable[[Chain], None] | None = None,
        within: Tensor | None = None,
    ) -> Buffers:
        """Computes energies, and optionally forces, the virial ∂E/∂strain [S,3,3] and stress; returns the buffers.

        positions [N,3] (float32 or float64), atomic_numbers [N], system_index [N] ascending, cell [S,3,3], charge [S]
        and a full list of edges, in the shapes given to `allocate`; contiguous, on the potential's device. between:
        called with the chain between forward and backward pass. within: of a Domain; needs the buffers of many atoms.
        """
        buffers = self.buffers
        if buffers is None:
            raise RuntimeError("allocate must be called before run")
        sizes = buffers.sizes
        if len(positions) != sizes.num_atoms or len(cell) != sizes.num_systems:
            raise ValueError(
                f"run needs the {sizes.num_atoms} atoms and {sizes.num_systems} systems it was allocated for, "
                f"got {len(positions)} and {len(cell)}"
            )
        if edges.capacity != sizes.capacity:
            raise ValueError(f"edges must have the capacity {sizes.capacity}, got {edges.capacity}")
        if (forces or virial) and not sizes.with_forces:
            raise ValueError("forces need the buffers of the gradient: allocate(..., forces=True)")
        if not self.config.charge_factor:
            charge = self.no_charge
        single, wanted = self.single, forces or virial
        served = single and (single.virials or not virial) and (wanted or not single.needs_forces)
        if single and served and between is None and within is None:
            single.run(positions, atomic_numbers, system_index, cell, charge, edges, forces=wanted)
            if self.doubts is not None and not single.has_uncertainties:
                self.doubts.run(system_index)
            return buffers
        inputs: tuple[Tensor | Edges, ...] = (positions, atomic_numbers, system_index, cell, charge, edges)
        inputs = inputs if within is None else (*inputs, within)
        chain = self.chain_type(buffers)(self, buffers, *inputs)
        chain.forward(keep=forces or virial)
        with in_branch(self.device, UNCERTAINTY) as branch:
            if self.doubts is not None:
                branch.run(functools.partial(self.doubts.run, system_index))
            if between is not None:
                between(chain)
            if forces or virial:
                chain.backward(virial)
            chain.total(virial)
        return buffers

    def choose_tiles(self, num_atoms: int) -> Tiles:
        """The fastest launch sizes for this number of atoms."""
        return launch_sizes(self.network_type.__name__, Workload(atoms=num_atoms), self.machine)

    def planned(self, work: Workload, tiles: Tiles | None = None) -> KernelPlan:
        """The kernels for this work. tiles: launch sizes; None: the fastest."""
        kind = self.network_type.__name__
        return plan_kernels(kind, self.config, work, self.machine, priors=self.between, tiles=tiles)

    def chain_type(self, buffers: Buffers) -> Callable[..., Any]:
        """The class of the launches: one program per atom, or blocks of atoms."""
        from torchmdx.engines.gpu.atom_tiles import TileChain
        from torchmdx.engines.gpu.few_atoms import RowChain
        from torchmdx.engines.gpu.many_atoms import Chain
        from torchmdx.engines.gpu.recompute import LeanChain
        from torchmdx.engines.gpu.slabs import SlabRows, SlabSweep, SlabTiles

        if buffers.sizes.in_slabs:
            return functools.partial(SlabSweep, SlabTiles if self.tile_kernels else SlabRows)
        blocks = TileChain if self.tile_kernels else Chain
        return {ROWS: RowChain, LEAN: LeanChain}.get(buffers.sizes.chain, blocks)
