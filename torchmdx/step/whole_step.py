"""A whole step of few atoms in one launch: coordinates, neighbours, energy and forces, results (one_launch_step.cuh).

Or several steps of dynamics, whose integrator is in the launch as well (one_launch_motion.cuh).

What `prepare`, the search and `finish` write, the kernel writes as well: buffers and neighbour list are the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from torchmdx.engines.engine import Engine
from torchmdx.engines.gpu.engine import GpuEngine
from torchmdx.neighbors.search import EdgeSearch
from torchmdx.step.buffer_storage import UNCERTAINTIES
from torchmdx.step.buffers import StepBuffers
from torchmdx.structures.system import Batch

# What the host reads of the results, by where inputs come from: all; energies and flags; nothing.
TO_HOST = {"host": 2, "device": 1, "steps": 0}


@dataclass(frozen=True)
class Moving:
    """What the kernel needs to move atoms.

    Attributes:
        tensors: What `struct Params` of one_launch_block.cuh names from `state_positions` to `control`, but for
            `moved`.
        steps: How many.
        thermostat: 0 for none, 1 for Langevin dynamics, 2 for velocity rescaling.
    """

    tensors: Mapping[str, Tensor]
    steps: int
    thermostat: int


def launch_whole(
    engine: Engine, buffers: StepBuffers, search: EdgeSearch, ordered: Batch, kind: str, moving: Moving | None = None
) -> bool:
    """Launches the kernel, if the engine has one that can do everything for this kind of inputs.

    For structures without periodic directions. ordered: the atoms as the engine sees them. moving: steps of dynamics
    instead of one evaluation.
    """
    single = engine.model.one_launch if isinstance(engine, GpuEngine) else None
    if single is None or not single.serves_steps or kind not in TO_HOST:
        return False
    if moving is not None and single.moving_kernel is None:
        return False
    if search.skin > 0 or search.backend != "triton_brute_force" or buffers.stress_wanted or not buffers.direct:
        return False
    assert isinstance(engine, GpuEngine)
    launch_step(engine, buffers, search, ordered, kind, moving)
    return True


def launch_step(
    engine: GpuEngine,
    buffers: StepBuffers,
    search: EdgeSearch,
    ordered: Batch,
    kind: str,
    moving: Moving | None = None,
) -> None:
    """Launches the kernel."""
    inputs = buffers.host_inputs if kind == "host" else buffers.inputs
    kept = buffers.inputs if kind == "host" else {}
    tensors = {
        "given": inputs["positions"],
        "given_cell": inputs["cell"],
        "kept_positions": kept.get("positions"),
        "kept_cell": kept.get("cell"),
        "order": buffers.order,
        "images": buffers.images,
        "origin": buffers.origin,
        "far": buffers.far,
        "places": buffers.places,
        "box": buffers.box,
        "rounded": buffers.positions,
        "rounded_cell": buffers.cell,
        "num_edges": search.edges.num_edges,
        "needed": search.edges.needed,
        "overflow": search.edges.overflow,
        "invalid": search.invalid,
        "updates": search._search.updates,
        "flags": buffers.outputs["flags"],
        "energy_out": buffers.outputs["energy"],
        "energies_out": buffers.outputs["energies"] if buffers.energies_wanted else None,
        "forces_out": buffers.outputs["forces"],
        "output": buffers.output,
        "host_output": buffers.host_output,
    }
    model = engine.model
    assert model.one_launch is not None
    if model.one_launch.has_uncertainties:
        of_systems, of_atoms = UNCERTAINTIES
        tensors |= {"system_doubts_out": buffers.outputs[of_systems], "atom_doubts_out": buffers.outputs[of_atoms]}
        tensors["most_doubt"] = buffers.most
    charge = ordered.charge if model.config.charge_factor else model.no_charge
    atoms = (buffers.places, ordered.atomic_numbers, ordered.system_index, buffers.box, charge)
    if moving is None:
        model.one_launch.run_step(*atoms, search.edges, tensors, search.radius, TO_HOST[kind])
    else:
        tensors |= {**moving.tensors, "moved": buffers.inputs["positions"]}
        settings = (search.radius, TO_HOST[kind], moving.steps, moving.thermostat)
        model.one_launch.run_step(*atoms, search.edges, tensors, *settings)
