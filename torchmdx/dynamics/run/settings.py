"""Settings of `torchmdx md` with either engine, validated before any file is read or written."""

from __future__ import annotations

import argparse
import math
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any

from torchmdx.dynamics.integrators import KINDS, Integrator, VelocityVerlet
from torchmdx.dynamics.run.files import UNCERTAIN
from torchmdx.dynamics.run.outputs import OutputSchedule
from torchmdx.dynamics.vibrations import PERIOD_MASS, recommended_inner
from torchmdx.models.origin import Origin
from torchmdx.structures.units import PICOSECOND

BAROSTATS = ("isotropic", "anisotropic")
DEFAULT_THERMOSTAT = "langevin"
PARAMETERS = {"friction": "1/ps", "relaxation": "ps"}  # options for parameters of thermostats
DEFAULT_TEMPERATURE, DEFAULT_PRESSURE = 300.0, 1.0  # K, bar
LARGEST_SEED = 2**32 - 1


@dataclass(frozen=True)
class PotentialSettings:
    """The potential and how it is evaluated, as for `torchmdx.openmm.add_potential`; skin in Å.

    Attributes:
        models: The file or folder of a potential, or those of an ensemble.
        max_force_spread: eV/Å, max_uncertainty: eV, of a single potential; None for no limit.
        uncertainty: Whether the log has the uncertainty of the energy; max_uncertainty implies it.
        coulomb_cutoff: Å, coulomb, coulomb_accuracy: None for those of the potential.
    """

    models: tuple[Path, ...]
    precision: str
    transport: str
    device: str | None
    platform: str | None
    skin: float
    audit_every: int
    max_force_spread: float | None
    max_uncertainty: float | None
    uncertainty: bool
    spread_file: Path | None
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

    @classmethod
    def from_options(cls, options: argparse.Namespace) -> PotentialSettings:
        """Raises ValueError for values out of range, FileNotFoundError for a missing checkpoint."""
        limit: float | None = options.max_force_spread
        if limit is not None:
            limit = _number("--max-force-spread", limit, "eV/Å")
        uncertain: float | None = options.max_uncertainty
        if uncertain is not None:
            uncertain = _number("--max-uncertainty", uncertain, "eV")
        cutoff: float | None = options.coulomb_cutoff
        if cutoff is not None:
            cutoff = _number("--coulomb-cutoff", cutoff, "Å")
        if options.audit_every < 0:
            raise ValueError(f"--audit-every must be >= 0 evaluations, got {options.audit_every}")
        return cls(
            models=_checkpoint_files(options.model),
            precision=options.precision,
            transport=options.transport,
            device=options.device,
            platform=options.platform,
            skin=_number("--skin", options.skin, "Å", zero=True),
            audit_every=options.audit_every,
            max_force_spread=limit,
            max_uncertainty=uncertain,
            uncertainty=options.uncertainty or uncertain is not None,
            spread_file=None if limit is None and uncertain is None else Path(options.output + UNCERTAIN),
            coulomb_cutoff=cutoff,
            coulomb=options.coulomb,
            coulomb_accuracy=options.coulomb_accuracy,
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
            for name in ("inner", "max_force_difference", "small_steps"):
                if getattr(options, name) is not None:
                    raise ValueError(f"--{name.replace('_', '-')} needs --fast, got it without")
            return None
        inner: int | None = options.inner
        if inner is None:
            heavy = options.hydrogen_mass
            mass = PERIOD_MASS if heavy is None else _number("--hydrogen-mass", heavy, "amu")
            inner = recommended_inner(_number("--timestep", options.timestep, "fs"), mass)
        if inner < 1:
            raise ValueError(f"--inner must be >= 1, got {inner}")
        for name in ("steps", "save_every", "log_every", "checkpoint_every", "exchange_every"):
            if (value := getattr(options, name)) is not None and value % inner:
                raise ValueError(f"--{name.replace('_', '-')} must be a multiple of --inner {inner}, got {value}")
        limit: float | None = options.max_force_difference
        if limit is not None:
            limit = _number("--max-force-difference", limit, "eV/Å")
        return cls(locate(options.fast), inner, limit, bool(options.small_steps))

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

    @classmethod
    def from_options(cls, options: argparse.Namespace) -> RunSettings:
        """Raises ValueError for values out of range and for options that the ensemble does not use."""
        ensemble, at_rest = options.ensemble, options.ensemble == "nve"
        timestep = _number("--timestep", options.timestep, "fs")
        temperature = DEFAULT_TEMPERATURE if options.temperature is None else options.temperature
        temperature = _number("--temperature", temperature, "K", zero=at_rest)
        if at_rest:
            for name in ("thermostat", *PARAMETERS):
                _refuse(f"--{name}", getattr(options, name), "nvt or npt", ensemble)
        if ensemble != "npt":
            _refuse("--pressure", options.pressure, "npt", ensemble)
            _refuse("--barostat", options.barostat, "npt", ensemble)
        if options.seed is not None and not 0 <= options.seed <= LARGEST_SEED:
            raise ValueError(f"--seed must be between 0 and {LARGEST_SEED}, got {options.seed}")
        heavy = options.hydrogen_mass
        pressure = DEFAULT_PRESSURE if options.pressure is None else options.pressure
        if not math.isfinite(pressure):  # negative for a stretched liquid
            raise ValueError(f"--pressure must be a finite number of bar, got {pressure}")
        fast = FastSettings.from_options(options)
        return cls(
            potential=PotentialSettings.from_options(options),
            schedule=_schedule(options),
            ensemble=ensemble,
            integrator=VelocityVerlet() if at_rest else _thermostat(options),
            timestep=timestep,
            num_steps=_num_steps(options.steps, options.time, timestep, 1 if fast is None else fast.inner),
            temperature=temperature,
            pressure=pressure if ensemble == "npt" else None,
            barostat=(options.barostat or BAROSTATS[0]) if ensemble == "npt" else None,
            seed=options.seed,
            hydrogen_mass=None if heavy is None else _number("--hydrogen-mass", heavy, "amu"),
            fast=fast,
        )


def refuse_with_restart(options: argparse.Namespace) -> None:
    """Raises ValueError for options of the start of a run, with --restart."""
    for name in ("overwrite", "minimize", "velocities"):
        if options.restart and getattr(options, name):
            raise ValueError(f"--restart continues a run, got it with --{name}")


def _checkpoint_files(given: list[str] | None) -> tuple[Path, ...]:
    """The files of one or several checkpoints, or of the members in the directory of a training run."""
    from torchmdx.checkpoints.locate import is_run_folder, locate, split_head, with_head
    from torchmdx.checkpoints.run_folder import whole_in

    if not given:
        return (locate(),)
    if len(given) == 1 and is_run_folder(given[0]):
        folder, head = split_head(given[0])
        return tuple(Path(str(with_head(file, head))) for file in whole_in(Path(str(folder))))
    return tuple(locate(path) for path in given)


def _number(name: str, value: float, unit: str, *, zero: bool = False) -> float:
    if not math.isfinite(value) or value < 0 or (value == 0 and not zero):
        raise ValueError(f"{name} must be finite and {'>=' if zero else '>'} 0 {unit}, got {value}")
    return value


def _interval(name: str, value: int) -> int:
    if value < 1:
        raise ValueError(f"{name} must be >= 1 step, got {value}")
    return value


def _thermostat(options: argparse.Namespace) -> Integrator:
    """The integrator of a thermostat. Raises ValueError for an unknown one, and for parameters of another one."""
    known = {name: kind for name, kind in KINDS.items() if not kind.constant_energy}
    chosen = options.thermostat or DEFAULT_THERMOSTAT
    if chosen not in known:
        raise ValueError(f"--thermostat must be one of {', '.join(known)}, got {chosen!r}")
    having = {name: {field.name for field in fields(kind)} for name, kind in known.items()}  # type: ignore[arg-type]
    given: dict[str, float] = {}
    for name, unit in PARAMETERS.items():
        if (value := getattr(options, name)) is None:
            continue
        if name not in having[chosen]:
            owners = " or ".join(owner for owner in having if name in having[owner])
            raise ValueError(f"--{name} needs --thermostat {owners}, got --{name} {value} with {chosen}")
        given[name] = _number(f"--{name}", value, unit)
    return known[chosen](**given)


def _refuse(name: str, value: Any, allowed: str, ensemble: str) -> None:
    if value is not None:
        raise ValueError(f"{name} needs --ensemble {allowed}, got {name} {value} with --ensemble {ensemble}")


def _schedule(options: argparse.Namespace) -> OutputSchedule:
    """Raises ValueError for intervals below one step."""
    for name in ("save_every", "log_every", "checkpoint_every"):
        if (value := getattr(options, name)) is not None:
            _interval(f"--{name.replace('_', '-')}", value)
    return OutputSchedule(options.save_every, options.log_every, options.checkpoint_every)


def _num_steps(steps: int | None, time: float | None, timestep: float, inner: int) -> int:
    if time is None:
        assert steps is not None  # the parser requires one of the two
        return _interval("--steps", steps)
    num_steps = inner * round(_number("--time", time, "ps") * PICOSECOND / (inner * timestep))
    if num_steps < 1:
        outer = f"--timestep of {timestep} fs" if inner == 1 else f"outer step of {inner * timestep} fs"
        raise ValueError(f"--time must be at least one {outer}, got {time} ps")
    return num_steps
