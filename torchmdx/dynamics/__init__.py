"""Molecular dynamics on the device of the potential."""

from typing import TYPE_CHECKING

from torchmdx.runtime.public_names import public_names

if TYPE_CHECKING:
    from torchmdx.dynamics import reweighting as reweighting
    from torchmdx.dynamics.barostat import CellError as CellError
    from torchmdx.dynamics.barostat import CellRescaling as CellRescaling
    from torchmdx.dynamics.dynamics import Dynamics as Dynamics
    from torchmdx.dynamics.exchange import TemperatureExchange as TemperatureExchange
    from torchmdx.dynamics.integrators import Bussi as Bussi
    from torchmdx.dynamics.integrators import DeviceStep as DeviceStep
    from torchmdx.dynamics.integrators import HostStep as HostStep
    from torchmdx.dynamics.integrators import Integrator as Integrator
    from torchmdx.dynamics.integrators import Langevin as Langevin
    from torchmdx.dynamics.integrators import VelocityVerlet as VelocityVerlet
    from torchmdx.dynamics.integrators import register_integrator as register_integrator
    from torchmdx.dynamics.multiple_steps import DisagreementError as DisagreementError
    from torchmdx.dynamics.restraint_terms import RestraintError as RestraintError
    from torchmdx.dynamics.restraints import Angle as Angle
    from torchmdx.dynamics.restraints import Distance as Distance
    from torchmdx.dynamics.restraints import Position as Position
    from torchmdx.dynamics.restraints import Torsion as Torsion
    from torchmdx.dynamics.restraints import read_restraints as read_restraints
    from torchmdx.dynamics.run.recording import Recording as Recording
    from torchmdx.dynamics.run.recording import Unstable as Unstable
    from torchmdx.dynamics.snapshot import Snapshot as Snapshot
    from torchmdx.dynamics.trajectory_formats import AtomNames as AtomNames
    from torchmdx.dynamics.trajectory_formats import TrajectoryFormat as TrajectoryFormat
else:
    __all__, __getattr__, __dir__ = public_names(__name__)
