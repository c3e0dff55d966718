"""Priors of a torchmd-net checkpoint: reference energies, ZBL, D2 and Coulomb, and the Coulomb term of its head."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from torchmdx.checkpoints.formats.reading import Report, UnsupportedCheckpoint
from torchmdx.checkpoints.formats.torchmdnet.container import Content
from torchmdx.checkpoints.formats.torchmdnet.settings import has_coulomb, is_second
from torchmdx.checkpoints.formats.torchmdnet.weights import Remaining
from torchmdx.models.priors.base import PriorConfig
from torchmdx.models.priors.coulomb import CoulombConfig
from torchmdx.models.priors.d2 import D2Config
from torchmdx.models.priors.splitting import DEFAULT_CUTOFF as EWALD_CUTOFF
from torchmdx.models.priors.zbl import ZBLConfig
from torchmdx.structures.units import AVOGADRO

# torchmd-net's constants, with which checkpoints were trained.
ZBL_COULOMB, BOHR_M = 2.30707755e-28, 5.29177210903e-11  # J m, m
PRIOR_COULOMB = 2.30707e-28  # J m
HEAD_COULOMB = 27.211386024367243 * 0.5291772105638411  # eV Å
REPULSION_COULOMB, ANGSTROM_TO_BOHR = 14.399645, 1.8897261258369282  # eV Å, bohr
ANGSTROM_M = 1e-10
# For a model trained without a cutoff in its Coulomb energy; used for periodic structures only.
DEFAULT_CUTOFF = 10.0


@dataclass(frozen=True)
class _Source:
    """One prior of a checkpoint: its index, settings, and the checkpoint's tensors."""

    index: int
    settings: dict[str, Any]
    state: Remaining

    def take(self, name: str) -> Tensor:
        return self.state.take(f"prior_model.{self.index}.{name}")

    def require(self, *names: str) -> None:
        missing = [name for name in names if name not in self.settings]
        if missing:
            raise ValueError(f"{self.state.origin!r}: prior_model {self.index} lacks the settings {', '.join(missing)}")

    def joules(self) -> float:
        """The checkpoint's energy unit in J. Raises UnsupportedCheckpoint unless its length unit is Å."""
        self.require("distance_scale", "energy_scale")
        scale = float(self.settings["distance_scale"])
        if abs(scale / ANGSTROM_M - 1) > 1e-6:
            raise UnsupportedCheckpoint(
                f"{self.state.origin!r}: distance_scale of prior_model {self.index} must be {ANGSTROM_M} m (Å), "
                f"got {scale}"
            )
        return float(self.settings["energy_scale"])

    def require_elements(self, numbers: Tensor) -> None:
        """Raises UnsupportedCheckpoint unless atom types are atomic numbers."""
        if not torch.equal(numbers.flatten().cpu().long(), torch.arange(numbers.numel(), device="cpu")):
            raise UnsupportedCheckpoint(
                f"{self.state.origin!r}: atomic_number of prior_model {self.index} must map every number to itself: "
                "types of atoms that are not elements are not supported"
            )


def read_priors(content: Content, state: Remaining, scale: float) -> list[PriorConfig]:
    """Priors except reference energies, in the checkpoint's energy unit. scale: its `std`.

    Raises:
        UnsupportedCheckpoint: Naming the prior, for one that torchmdx does not have.
    """
    options, report = content.options, state.report
    configs: list[PriorConfig] = []
    if is_second(options) and options.get("repulsion"):
        configs.append(_repulsion(state, float(options["cutoff_upper"])).scaled(scale))
        report.remapped.append("repulsion to the prior zbl, with its table of radii, its strength times std")
    if has_coulomb(options):
        configs.append(_head(options, state).scaled(scale))
    readers: dict[str, Callable[[_Source], PriorConfig]] = {"ZBL": _zbl, "D2": _d2, "Coulomb": _coulomb}
    for index, (name, settings) in enumerate(named_priors(options)):
        if name in ("Atomref", "LearnableAtomref"):
            continue
        if name not in readers:
            raise UnsupportedCheckpoint(f"{content.origin!r}: prior_model {name} is not supported")
        configs.append(readers[name](_Source(index, settings, state)))
        state.drop(f"prior_model.{index}.distance.box", f"prior_model.{index}.distances.box")
        report.read.append(f"prior {name}")
    return configs


def read_references(content: Content, state: Remaining, zeros: Tensor, total_energy: bool) -> Tensor:
    """Energies per element of Atomref priors; disabled ones count only if `total_energy`."""
    energies = zeros.clone()
    for index, (name, settings) in enumerate(named_priors(content.options)):
        if name not in ("Atomref", "LearnableAtomref"):
            continue
        state.drop(f"prior_model.{index}.initial_atomref")
        values = state.take(f"prior_model.{index}.atomref.weight").double().flatten()
        enabled = bool(settings.get("enable", True))
        if enabled or total_energy:
            count = min(len(values), len(energies))
            energies[:count] += values[:count]
            state.report.read.append(f"prior {name}: reference energies" + ("" if enabled else ", enabled on request"))
        else:
            state.report.ignored.append(
                f"prior {name}: disabled in the file (remove_ref_energy), so energies are relative to free atoms; "
                "request total energies to include them"
            )
    return energies


def named_priors(options: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """(name, settings) of every prior; options can have one of three forms."""
    given = options.get("prior_model") or []
    named: list[tuple[str, dict[str, Any]]] = []
    for prior in given if isinstance(given, list) else [given]:
        if isinstance(prior, dict):
            named += [(name, settings or {}) for name, settings in prior.items()]
        else:
            named.append((str(prior), {}))
    settings = options.get("prior_args")
    if settings is not None:
        listed = settings if isinstance(settings, list) else [settings]
        named = [(name, values or {}) for (name, _), values in zip(named, listed, strict=False)]
    return named


def _zbl(source: _Source) -> ZBLConfig:
    source.require("cutoff_distance")
    source.require_elements(source.take("atomic_number"))
    return ZBLConfig(
        cutoff=float(source.settings["cutoff_distance"]),
        length=0.8854 * BOHR_M / ANGSTROM_M,
        strength=ZBL_COULOMB / source.joules() / ANGSTROM_M,
    )


def _d2(source: _Source) -> D2Config:
    source.require("cutoff_distance")
    source.require_elements(source.take("Z_map"))
    # J/mol nm⁶ and nm.
    c6, radii = source.take("C_6").double(), source.take("R_r").double()
    nanometres = ANGSTROM_M * 1e9
    return D2Config(
        cutoff=float(source.settings["cutoff_distance"]),
        c6=tuple((c6 / (source.joules() * AVOGADRO) / nanometres**6).nan_to_num().tolist()),
        radii=tuple((radii / nanometres).nan_to_num(1.0).tolist()),
    )


def _coulomb(source: _Source) -> CoulombConfig:
    """Coulomb energy of charges given with each structure. torchmd-net's switch and distances are in nm."""
    source.require("lower_switch_distance", "upper_switch_distance")
    joules, nanometres = source.joules(), ANGSTROM_M * 1e9
    lower, upper = (float(source.settings[f"{end}_switch_distance"]) for end in ("lower", "upper"))
    report = source.state.report
    report.remapped.append(
        "prior Coulomb to the prior coulomb of given charges, at torchmd-net's strength, which is ten times that of "
        "the Coulomb law where lengths are Å"
    )
    return CoulombConfig(
        charges="given",
        cutoff=DEFAULT_CUTOFF,
        switch=(lower / nanometres, upper / nanometres),
        strength=PRIOR_COULOMB / joules / ANGSTROM_M / nanometres,
    )


def _repulsion(state: Remaining, cutoff: float) -> ZBLConfig:
    """The optional repulsion of a TensorNet2: ZBL, cut off at the sum of covalent radii."""
    table = state.take("representation_model.repulsion.cutoff_ab").double()
    state.drop("representation_model.repulsion.z_pow", "representation_model.repulsion.z_outer")
    return ZBLConfig(
        cutoff=cutoff,
        radii=tuple((table.diagonal() / 2).tolist()),
        length=0.4543 / ANGSTROM_TO_BOHR,
        exponent=0.3,
        strength=REPULSION_COULOMB,
    )


def _head(options: dict[str, Any], state: Remaining) -> CoulombConfig:
    """The Coulomb term of ScalarPlusWeightedCoulomb."""
    weights = tuple(state.take("output_model.qweights").double().tolist())
    cutoff = options.get("coulomb_cutoff")
    report: Report = state.report
    report.remapped.append("Coulomb term of the output model to the prior coulomb, its strength times std")
    if cutoff is None:
        report.read.append(
            "Coulomb energy of all pairs; periodic structures, which the file cannot do, are summed over all images"
        )
    else:
        report.read.append(f"Coulomb energy cut off at {cutoff} Å with a reaction field, with or without a cell")
    return CoulombConfig(
        cutoff=EWALD_CUTOFF if cutoff is None else float(cutoff),
        periodic="auto" if cutoff is None else "reaction_field",
        cut_in_vacuum=cutoff is not None,
        dielectric=78.3,
        weights=weights,
        strength=HEAD_COULOMB,
    )
