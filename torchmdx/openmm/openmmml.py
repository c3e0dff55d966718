"""The interface to openmm-ml: its potential "torchmdx", through its entry points.

Example::

    MLPotential("torchmdx")  # the default potential
    MLPotential("torchmdx", modelPath="model.safetensors").createSystem(topology, charge=1, precision="float64")

After `register_openmmml("aceff-2.0")`, `MLPotential("aceff-2.0")` is the potential of torchmdx, too.

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
OWN_EMBEDDING = "openmm-ml"
_OWN_NAMES = ("torchmdx", "torchmdnet")  # of potentials that are given by modelPath


class PotentialFactory(MLPotentialImplFactory):
    """Creates the potential from the arguments of `MLPotential`."""

    def createImpl(self, name: str, modelPath: str | Path | None = None, **args: Any) -> PotentialImpl:
        """What openmm-ml adds to a System.

        Raises FileNotFoundError for a missing file or an unknown name, and ValueError.

        Args:
            name: As registered; another one than "torchmdx" has openmm-ml's defaults, and one of a released potential,
                such as "aceff-2.0", needs no modelPath.
            modelPath: A checkpoint of torchmdx (.safetensors) or torchmd-net (.ckpt), a name as for `torchmdx.load`, or
                an ensemble's file or folder; None: the default potential.
            args: lengthScale and energyScale, which must be those of Å and eV.
        """
        from torchmdx.openmm.openmmml_options import OPTIONS, require_units

        if args.keys() - {"lengthScale", "energyScale"}:
            raise ValueError(
                f"MLPotential({name!r}) takes modelPath, lengthScale and energyScale, got {', '.join(sorted(args))}; "
                f"options of createSystem and createMixedSystem are {', '.join(OPTIONS)}"
            )
        require_units(**args)
        if modelPath is None and name not in _OWN_NAMES:
            modelPath = name
        from torchmdx.checkpoints.locate import is_run_folder, locate

        if modelPath is None or not is_run_folder(modelPath):
            locate(modelPath)  # raises for a missing file
        return PotentialImpl(modelPath, name != "torchmdx")


class PotentialImpl(MLPotentialImpl):
    """A checkpoint behind openmm-ml's interface.

    Options of createSystem and createMixedSystem are those of `openmmml_options.py`.
    Mechanical embedding is that of `create_mixed_system`, which does not put the potential into a CustomCVForce, and
    whose link atoms are no particles: System and Topology keep the atoms that they have. The embedding "openmm-ml" is
    openmm-ml's own.

    Args:
        cut_by_default: Truncate the Coulomb energy of periodic systems as openmm-ml does.
    """

    def __init__(self, path: str | Path | None, cut_by_default: bool = False) -> None:
        self.path, self.cut_by_default = path, cut_by_default
        self._asks_for_range = False

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

        for name in ("linkAtomDistances", "mlLongRange"):  # openmm-ml's embedding uses them, and passes them on
            args.pop(name, None)
        options = self._options(topology, system, args)
        indices = None if atoms is None else list(atoms)
        if system.getNumParticles():
            add_potential(system, topology, self.path, indices, force_group=forceGroup, **options)
            return
        # openmm-ml's interpolation asks for the forces of a System without particles, to copy them to another one.
        whole = openmm.System()
        for _ in topology.atoms():
            whole.addParticle(1.0)
        add_potential(whole, topology, self.path, indices, force_group=forceGroup, **options)
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

        keep, replace: as for `create_mixed_system`, and mlLongRange as its long_range. linkAtomDistances must name
        bonds that the region cuts.

        Raises ValueError as `create_mixed_system`, and for an interpolation that leaves atoms unbound at λ = 0 if
        constraints are removed: openmm-ml does not say whether it will.
        """
        from torchmdx.openmm.mixed import create_mixed_system

        if embedding == OWN_EMBEDDING:
            return self._embedded_by_openmmml(topology, system, atoms, forceGroup, interpolate, returnInfo, **args)
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
            long_range=args.pop("mlLongRange", None),
            **chosen,
            **self._options(topology, system, args),
        )

    def _embedded_by_openmmml(
        self, topology: app.Topology, system: openmm.System, atoms: list[int], group: int, interpolate: bool,
        info: bool, **args: Any,
    ) -> openmm.System | dict[str, Any]:  # fmt: skip
        from openmmml.embeddings.mechanicalembedding import MechanicalEmbedding

        asking = copy.copy(self)  # openmm-ml refuses mlLongRange for potentials that know it
        asking._asks_for_range = args.get("mlLongRange") is not None
        made: openmm.System | dict[str, Any] = MechanicalEmbedding().createMixedSystem(
            asking, topology, system, atoms, group, interpolate, info, **args
        )
        return made

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
        return ["mechanical", "electrostatic", OWN_EMBEDDING]

    def getMLLongRange(self) -> bool | None:
        """False for a potential without Coulomb energy; None for others, whose range is a matter of options."""
        return None if self._asks_for_range or self._has_coulomb() else False

    def _has_coulomb(self) -> bool:
        from torchmdx.checkpoints.save_load import load
        from torchmdx.models.coulomb_cutoff import has_coulomb

        return has_coulomb(load(self.path))

    def _options(self, topology: app.Topology, system: openmm.System, args: dict[str, Any]) -> dict[str, Any]:
        """Options of `add_potential`. Raises ValueError for an option that this potential does not have."""
        from torchmdx.openmm.openmmml_options import translated
        from torchmdx.openmm.periodic_box import choose_box

        is_periodic, _ = choose_box(system, topology, args.get("periodic"))
        asks = self.cut_by_default or args.get("useCoulombCutoff") is False
        return translated(
            args,
            is_periodic=is_periodic,
            has_coulomb=asks and self._has_coulomb(),
            cut_by_default=self.cut_by_default,
        )
