"""The interface to OpenMM: potentials as forces of an openmm.System.

Example::

    force = add_potential(system, topology, "model.safetensors")  # all atoms
    mixed = create_mixed_system(mm_system, topology, ligand, "model.safetensors")  # a region, the rest by force field
    (force,) = find(mixed)  # also after XML

The `transport` of a force is how positions and forces are passed: "native" (C++, replays the captured step on OpenMM's
own stream), "torch" (openmm-torch) or "python" (a PythonForce, which needs only OpenMM).
"""

from torchmdx.openmm.add import add_potential as add_potential
from torchmdx.openmm.boresch_restraint import BoreschRestraint as BoreschRestraint
from torchmdx.openmm.charge_reporter import ChargeReporter as ChargeReporter
from torchmdx.openmm.charge_reporter import Charges as Charges
from torchmdx.openmm.charge_reporter import charges_of as charges_of
from torchmdx.openmm.derivatives import request_derivative as request_derivative
from torchmdx.openmm.evaluator import EnergyUncertainty as EnergyUncertainty
from torchmdx.openmm.evaluator import Spread as Spread
from torchmdx.openmm.find import find as find
from torchmdx.openmm.link_atoms import LinkAtom as LinkAtom
from torchmdx.openmm.load_system import load_system as load_system
from torchmdx.openmm.mixed import create_mixed_system as create_mixed_system
from torchmdx.openmm.mixed_regions import MixedRegion as MixedRegion
from torchmdx.openmm.mixed_regions import create_mixed_regions as create_mixed_regions
from torchmdx.openmm.multiple_steps import add_difference as add_difference
from torchmdx.openmm.openmmml_in_place import register_openmmml as register_openmmml
from torchmdx.openmm.potential_force import PotentialForce as PotentialForce
from torchmdx.openmm.state_exchange import StateExchange as StateExchange
from torchmdx.openmm.transport_native import load_plugin as load_plugin
from torchmdx.openmm.transport_native import preload_plugin

__all__ = [
    "BoreschRestraint", "ChargeReporter", "Charges", "EnergyUncertainty", "LinkAtom", "MixedRegion", "PotentialForce",
    "Spread", "StateExchange",
    "add_difference", "add_potential", "charges_of", "create_mixed_regions", "create_mixed_system", "find",
    "load_plugin", "load_system", "register_openmmml", "request_derivative",
]  # fmt: skip

preload_plugin()
