"""Front door: openmm-ml's potential "torchmdx", through its entry points.

    MLPotential("torchmdx")                                   # the default potential
    MLPotential("torchmdx", modelPath="model.safetensors").createSystem(topology, charge=1, precision="float64")

openmm-ml imports this module whenever it is imported itself, so torch and most of torchmdx are imported on first use.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import openmm
from openmmml.mlpotential import MLPotentialImpl, MLPotentialImplFactory

if TYPE_CHECKING:
    from openmm import app

INTERPOLATE = "lambda_interpolate"  # openmm-ml's name for it
OPTIONS = (
    "charge", "transport", "mode", "precision", "device", "skin", "audit_every", "periodic", "max_force_spread",
    "spread_file", "energy_offset", "coulomb_cutoff", "coulomb", "name",
)  # fmt: skip
_PRECISIONS = {"single": "float32", "double": "float64"}  # names that other potentials of openmm-ml use


class PotentialFactory(MLPotentialImplFactory):
    """Creates the potential from the arguments of `MLPotential`."""

    def createImpl(self, name: str, modelPath: str | Path | None = None, **args: Any) -> PotentialImpl:
        """What openmm-ml adds to a System.

        modelPath: a checkpoint of torchmdx (.safetensors) or torchmd-net (.ckpt), a name as for `torchmdx.load`, or an
        ensemble's file or folder; None: the default potential. Raises FileNotFoundError for a missing file or an
        unknown name.
        """
        if args:
            raise ValueError(
                f"MLPotential({name!r}) takes modelPath alone, got {', '.join(sorted(args))}; "
                f"options of createSystem and createMixedSystem are {', '.join(OPTIONS)}"
            )
        from torchmdx.checkpoints.locate import is_run_folder, locate

        if modelPath is None or not is_run_folder(modelPath):
            locate(modelPath)  # raises for a missing file
        return PotentialImpl(modelPath)


class PotentialImpl(MLPotentialImpl):
    """A checkpoint behind openmm-ml's interface.

    Options of createSystem and createMixedSystem are those of `torchmdx.openmm.add_potential`, named in OPTIONS.
    Mechanical embedding is that of `create_mixed_system`, which does not put the potential into a CustomCVForce, and
    whose link atoms are no particles: System and Topology keep the atoms that they have.
    """

    def __init__(self, path: str | Path | None) -> None:
        self.path = path

    def addForces(
        self,
        topology: app.Topology,
        system: openmm.System,
        atoms: Iterable[int] | None,
        forceGroup: int,
        **args: Any,
    ) -> None:
        """Adds the potential to a system. Raises ValueError for an option it does not have."""
        from torchmdx.openmm.add import add_potential

        args.pop("linkAtomDistances", None)  # openmm-ml's embedding uses it, and passes it on
        indices = None if atoms is None else list(atoms)
        if system.getNumParticles():
            add_potential(system, topology, self.path, indices, force_group=forceGroup, **_options(args))
            return
        # openmm-ml's interpolation asks for the forces of a System without particles, to copy them to another one.
        whole = openmm.System()
        for _ in topology.atoms():
            whole.addParticle(1.0)
        add_potential(whole, topology, self.path, indices, force_group=forceGroup, **_options(args))
        for force in whole.getForces():
            system.addForce(copy.deepcopy(force))

    def createMixedSystem(
        self,
        topology: app.Topology,
        system: openmm.System,
        atoms: list[int],
        forceGroup: int,
        interpolate: bool,
        embedding: str,
        returnInfo: bool = False,
        **args: Any,
    ) -> openmm.System | dict[str, Any]:
        """Mechanical or electrostatic embedding. Keeps constraints, which openmm-ml removes afterwards if requested.

        keep, replace: as for `create_mixed_system`. linkAtomDistances must name bonds that the region cuts.

        Raises ValueError as `create_mixed_system`, and for an interpolation that leaves atoms unbound at λ = 0 if
        constraints are removed: openmm-ml does not say whether it will.
        """
        from torchmdx.openmm.mixed import create_mixed_system

        chosen: dict[str, Any] = {name: args.pop(name) for name in ("keep", "replace") if name in args}
        chosen["link_atoms"] = args.pop("linkAtomDistances", None) or embedding == "mechanical"
        if interpolate:
            self._require_bound(topology, system, atoms, chosen)
        return create_mixed_system(
            system,
            topology,
            atoms,
            self.path,
            interpolate=INTERPOLATE if interpolate else None,
            remove_constraints=False,
            force_group=forceGroup,
            embedding=embedding,
            **chosen,
            **_options(args),
        )

    def _require_bound(
        self, topology: app.Topology, system: openmm.System, atoms: list[int], chosen: dict[str, Any]
    ) -> None:
        """Raises ValueError if the region would lack bonds at λ = 0 without its constraints."""
        from torchmdx.openmm.mixed import require_replaced_constraints

        try:
            require_replaced_constraints(system, topology, atoms, **chosen)
        except ValueError as error:
            raise ValueError(
                f"{error}. openmm-ml does not pass its option removeConstraints to potentials: to keep constraints, "
                "use torchmdx.openmm.create_mixed_system"
            ) from None

    def getSupportedEmbeddings(self) -> list[str]:
        """The embeddings of `createMixedSystem`; "mechanical" takes the place of openmm-ml's of the same name."""
        return ["mechanical", "electrostatic"]

    def getMLLongRange(self) -> bool:
        """False: interactions end at the cutoff."""
        return False


def _options(args: dict[str, Any]) -> dict[str, Any]:
    unknown = sorted(args.keys() - set(OPTIONS))
    if unknown:
        raise ValueError(f"options of this potential are {', '.join(OPTIONS)}, got {', '.join(unknown)}")
    options = {name: value for name, value in args.items() if name != "precision" or value is not None}
    if options.get("device") is not None:
        options["device"] = str(options["device"])  # other potentials of openmm-ml accept a torch.device
    if "precision" in options:
        options["precision"] = _PRECISIONS.get(options["precision"], options["precision"])
    return options
