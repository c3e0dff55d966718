"""Settings of `torchmdx md` with either engine, validated before any file is read or written."""

from __future__ import annotations

import argparse
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any

from torchmdx.dynamics.integrators import KINDS, Integrator, VelocityVerlet
from torchmdx.dynamics.run.checks import BAROSTATS, DEFAULT_THERMOSTAT, INTERVALS, PARAMETERS, option_of, require_ranges
from torchmdx.dynamics.run.files import UNCERTAIN
from torchmdx.dynamics.run.outputs import OutputSchedule
from torchmdx.dynamics.vibrations import PERIOD_MASS, recommended_inner
from torchmdx.models.origin import Origin
from torchmdx.structures.units import PICOSECOND

DEFAULT_TEMPERATURE, DEFAULT_PRESSURE = 300.0, 1.0  # K, bar
OF_FAST = ("inner", "max_force_difference", "small_steps")


@dataclass(frozen=True)
class PotentialSettings:
    """The potential and how it is evaluated: options of the same names, as for `torchmdx.openmm.add_potential`.

    Attributes:
        models: The file or folder of a potential, or those of an ensemble.
        spread_file: None without a limit of spreads or uncertainties.
        uncertainty: Whether the log has the uncertainty of the energy; max_uncertainty implies it.
    """

    models: tuple[Path, ...]
    spread_file: Path | None
    uncertainty: bool
    precision: str
    transport: str
    device: str | None
    platform: str | None
    skin: float
    audit_every: int
    max_force_spread: float | None
    max_uncertainty: float | None
    coulomb_cutoff: float | None
    coulomb: str | None
    coulomb_accuracy: float | None

    @property
    def potential(self) -> Path | list[Path]:
        return self.models[0] if len(self.models) == 1 else list(self.models)

    @cached_property
    def origins(self) -> list[Origin]:
        """Names and hashes of the files or folders."""
        from torchmdx.checkpoints.locate import origin_at

        return [origin_at(path) for path in self.models]

    def digests(self) -> str:
        """SHA-256 of the files, of a folder that of all its files."""
        return " ".join(origin.sha256 for origin in self.origins)

    def __str__(self) -> str:
        return str(Origin.together(self.origins))

    @property
    def treatment(self) -> dict[str, Any]:
        """Of the Coulomb energy, as arguments of `torchmdx.load`."""
        return {name: getattr(self, name) for name in ("coulomb_cutoff", "coulomb", "coulomb_accuracy")}

    @property
    def doubts(self) -> dict[str, Any]:
        """What is asked of spreads and uncertainties, as arguments of `torchmdx.Dynamics` and `add_potential`."""
        return {name: getattr(self, name) for name in ("max_force_spread", "uncertainty", "max_uncertainty")}

    @classmethod
    def from_options(cls, options: argparse.Namespace) -> PotentialSettings:
        """Raises FileNotFoundError for a missing checkpoint."""
        given: dict[str, Any] = {field.name: getattr(options, field.name, None) for field in fields(cls)}
        limited = options.max_force_spread is not None or options.max_uncertainty is not None
        return cls(
            **given
            | dict(
                models=_checkpoint_files(options.model),
                spread_file=Path(options.output + UNCERTAIN) if limited else None,
                uncertainty=options.uncertainty or options.max_uncertainty is not None,
            )
        )


@dataclass(frozen=True)
class FastSettings:
    """Multiple time steps: the file of the fast potential, which takes `inner` steps per evaluation of the full one.

    Attributes:
        max_force_difference: eV/Å, None for the default limit.
    """

    model: Path
    inner: int
    max_force_difference: float | None
    small_steps: bool

    @cached_property
    def origin(self) -> Origin:
        """Name and hash of the file."""
        from torchmdx.checkpoints.locate import origin_at

        return origin_at(self.model)

    @classmethod
    def from_options(cls, options: argparse.Namespace) -> FastSettings | None:
        """None without a fast potential. Raises ValueError for values out of range, and intervals between steps."""
        from torchmdx.checkpoints.locate import locate

        if options.fast is None:
            for name in OF_FAST:
                if getattr(options, name) is not None:
                    raise ValueError(f"{option_of(name)} needs --fast, got it without")
            return None
        inner: int | None = options.inner
        if inner is None:
            inner = recommended_inner(options.timestep, options.hydrogen_mass or PERIOD_MASS)
        if inner < 1:
            raise ValueError(f"--inner must be >= 1, got {inner}")
        for name in ("steps", *INTERVALS, "exchange_every"):
            if (value := getattr(options, name)) is not None and value % inner:
                raise ValueError(f"{option_of(name)} must be a multiple of --inner {inner}, got {value}")
        return cls(locate(options.fast), inner, options.max_force_difference, bool(options.small_steps))

    def shared(self) -> dict[str, Any]:
        """What a run and its continuation must share, by names in error messages."""
        return {
            "fast model (SHA-256)": self.origin.sha256,
            "steps between evaluations of the potential": self.inner,
            "largest force difference in eV/Å": self.max_force_difference,
            "small steps": self.small_steps,
        }


@dataclass(frozen=True)
class RunSettings:
    """What runs and what is written: timestep fs, temperature K, pressure bar, None if not applicable.

    With a fast potential the timestep and all numbers of steps are those of the inner steps.

    Attributes:
        seed: Of velocities, thermostat and barostat; None chooses one at random.
        hydrogen_mass: amu, None for that of the element.
    """

    potential: PotentialSettings
    schedule: OutputSchedule
    ensemble: str
    integrator: Integrator
    timestep: float
    num_steps: int
    temperature: float
    pressure: float | None
    barostat: str | None
    seed: int | None
    hydrogen_mass: float | None = None
    fast: FastSettings | None = None

    @property
    def inner(self) -> int:
        """Steps between evaluations of the potential."""
        return 1 if self.fast is None else self.fast.inner

    @property
    def friction(self) -> float | None:
        """1/ps; None without Langevin dynamics."""
        return getattr(self.integrator, "friction", None)

    def shared(self) -> dict[str, Any]:
        """What a run with either engine and its continuation must share, by names in error messages."""
        treatment = self.potential.treatment
        return {
            "model (SHA-256)": self.potential.digests(),
            "seed": self.seed,
            "hydrogen mass in amu": self.hydrogen_mass,
            "Coulomb cutoff in Å": treatment["coulomb_cutoff"],
            "Coulomb energy": treatment["coulomb"],
            "Coulomb accuracy": treatment["coulomb_accuracy"],
        }

    @classmethod
    def from_options(cls, options: argparse.Namespace) -> RunSettings:
        """Raises ValueError for values out of range and for options that the ensemble does not use."""
        ensemble, at_rest = options.ensemble, options.ensemble == "nve"
        require_ranges(options)
        fast = FastSettings.from_options(options)
        under_pressure = ensemble == "npt"
        return cls(
            potential=PotentialSettings.from_options(options),
            schedule=OutputSchedule(*(getattr(options, name) for name in INTERVALS)),
            ensemble=ensemble,
            integrator=VelocityVerlet() if at_rest else _thermostat(options),
            timestep=options.timestep,
            num_steps=_num_steps(options, 1 if fast is None else fast.inner),
            temperature=DEFAULT_TEMPERATURE if options.temperature is None else options.temperature,
            pressure=(DEFAULT_PRESSURE if options.pressure is None else options.pressure) if under_pressure else None,
            barostat=(options.barostat or BAROSTATS[0]) if under_pressure else None,
            seed=options.seed,
            hydrogen_mass=options.hydrogen_mass,
            fast=fast,
        )


def _checkpoint_files(given: list[str] | None) -> tuple[Path, ...]:
    """The files of one or several checkpoints, or of the members in the directory of a training run."""
    from torchmdx.checkpoints.locate import files_at, locate

    if given and len(given) > 1:
        return tuple(locate(path) for path in given)
    return files_at(given[0] if given else None)


def _thermostat(options: argparse.Namespace) -> Integrator:
    """The integrator of a thermostat. Raises ValueError for an unknown one, and for parameters of another one."""
    known = {name: kind for name, kind in KINDS.items() if not kind.constant_energy}
    chosen = options.thermostat or DEFAULT_THERMOSTAT
    if chosen not in known:
        raise ValueError(f"--thermostat must be one of {', '.join(known)}, got {chosen!r}")
    having = {name: {field.name for field in fields(kind)} for name, kind in known.items()}  # type: ignore[arg-type]
    given = {name: value for name in PARAMETERS if (value := getattr(options, name)) is not None}
    for name, value in given.items():
        if name not in having[chosen]:
            owners = " or ".join(owner for owner in having if name in having[owner])
            raise ValueError(f"--{name} needs --thermostat {owners}, got --{name} {value} with {chosen}")
    return known[chosen](**given)


def _num_steps(options: argparse.Namespace, inner: int) -> int:
    if options.time is None:
        return int(options.steps)  # the parser requires one of the two
    outer = inner * options.timestep
    if (num_outer := round(options.time * PICOSECOND / outer)) < 1:
        step = f"--timestep of {outer} fs" if inner == 1 else f"outer step of {outer} fs"
        raise ValueError(f"--time must be at least one {step}, got {options.time} ps")
    return inner * num_outer
