"""Replica exchange over values of global parameters, such as the λ of a decoupling, in one Context."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import openmm
from numpy.typing import NDArray
from openmm import unit

from torchmdx.openmm.derivatives import parameters_of

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


class StateExchange:
    """Replicas of one system, each in another of K states of the same temperature, that swap states.

    A state is a set of global parameters. An iteration moves every replica by `steps` steps of the Context's
    integrator, computes the energy of every replica in every state, and attempts K² swaps of two replicas drawn at
    random, each accepted with Metropolis' probability: min(1, exp(u_i(x_a) + u_j(x_b) - u_j(x_a) - u_i(x_b))) for
    replica a in state i and b in j. Replicas take turns in the Context, so memory does not grow with their number.
    Energies in the other states evaluate only the force groups that depend on the parameters: put a potential that does
    not into another group.

    Example::

        exchange = StateExchange(context, [{"lambda_sterics": x} for x in (1.0, 0.5, 0.0)], temperature=300, steps=50)
        exchange.run(20)
        exchange.reduced_energies, exchange.counts  # for `torchmdx.dynamics.reweighting.free_energies`

    Args:
        context: Positions, velocities and box are the start of every replica. After a run it is in the last state.
        temperature: K, or with a unit; that of the integrator.
        steps: Of dynamics between exchanges.
        seed: Of the exchanges. The dynamics has the integrator's.

    Attributes:
        replicas: State of OpenMM of each replica, with positions, velocities and box.
        now ([K]): Index of the state of each replica.

    Raises:
        ValueError: For less than two states, states of different parameters, parameters that the Context lacks, and
            another temperature than the integrator's.
    """

    def __init__(
        self,
        context: openmm.Context,
        states: Sequence[Mapping[str, float]],
        *,
        temperature: Any,
        steps: int,
        seed: int = 0,
    ) -> None:
        self._context, self._states = context, [dict(state) for state in states]
        kelvin = temperature.value_in_unit(unit.kelvin) if unit.is_quantity(temperature) else float(temperature)
        _require(context, self._states, kelvin, steps)
        self.steps = steps
        self._thermal = (unit.MOLAR_GAS_CONSTANT_R * kelvin * unit.kelvin).value_in_unit(unit.kilojoule_per_mole)
        self._groups = _groups(context.getSystem(), set(self._states[0]))
        self._random = np.random.default_rng(seed)
        self.replicas = [self._taken() for _ in self._states]
        self.now: Integers = np.arange(len(self._states))
        self._energies: list[Floats] = []
        self._visited: list[Integers] = []
        self._chances: list[Floats] = []

    def run(self, iterations: int, *, equilibration: int = 0) -> None:
        """Continues; the iterations of the equilibration come first and are not kept. Raises ValueError below 1."""
        if iterations < 1 or equilibration < 0:
            raise ValueError(f"iterations must be >= 1 and equilibration >= 0, got {iterations} and {equilibration}")
        for iteration in range(-equilibration, iterations):
            energies = np.array([self._move(replica) for replica in range(len(self._states))])
            if iteration >= 0:
                self._energies.append(energies)
                self._visited.append(self.now.copy())
                self._chances.append(_chances(energies, self.now))
            self._swap(energies)

    @property
    def reduced_energies(self) -> Floats:
        """u_k [K, samples] of all samples in every state, for MBAR; their common part is left out."""
        kept = np.array(self._energies).reshape(-1, len(self._states))
        made: Floats = (kept - kept.min(1, keepdims=True)).T
        return made

    @property
    def counts(self) -> Integers:
        """Number of samples of each state [K]."""
        return np.full(len(self._states), len(self._energies))

    @property
    def visited(self) -> Integers:
        """State of each replica in each iteration [iterations, K]."""
        return np.array(self._visited).reshape(-1, len(self._states))

    @property
    def acceptance(self) -> Floats:
        """Mean probability of a swap between each state and the next [K-1]; NaN before the first iteration."""
        if not self._chances:
            return np.full(len(self._states) - 1, np.nan)
        return np.mean(self._chances, axis=0)

    def _taken(self) -> openmm.State:
        return self._context.getState(positions=True, velocities=True)

    def _move(self, replica: int) -> Floats:
        """Moves a replica in its state. Returns its energy in every state [K], in units of kT."""
        context, state = self._context, self.replicas[replica]
        self._choose(self.now[replica])
        context.setPeriodicBoxVectors(*state.getPeriodicBoxVectors())
        context.setPositions(state.getPositions(asNumpy=True))
        context.setVelocities(state.getVelocities(asNumpy=True))
        context.getIntegrator().step(self.steps)
        self.replicas[replica] = self._taken()
        energies = np.empty(len(self._states))
        for index in range(len(self._states)):
            self._choose(index)
            energy = context.getState(energy=True, groups=self._groups).getPotentialEnergy()
            energies[index] = energy.value_in_unit(unit.kilojoule_per_mole) / self._thermal
        if not np.isfinite(energies).all():
            raise FloatingPointError(
                f"energies of replica {replica} in state {self.now[replica]} are not finite: {energies.tolist()}"
            )
        return energies

    def _choose(self, index: int) -> None:
        for name, value in self._states[index].items():
            self._context.setParameter(name, value)

    def _swap(self, energies: Floats) -> None:
        count = len(self.now)
        for _ in range(count**2):
            a, b = self._random.choice(count, 2, replace=False)
            i, j = self.now[a], self.now[b]
            gain = energies[a, i] + energies[b, j] - energies[a, j] - energies[b, i]
            if gain >= 0 or self._random.random() < np.exp(gain):
                self.now[a], self.now[b] = j, i


def _chances(energies: Floats, now: Integers) -> Floats:
    """Probability of a swap between each state and the next [K-1]. energies [K,K]: of replicas in states."""
    of_state = energies[np.argsort(now)]  # [state, state]
    own = np.diag(of_state)
    gain = own[:-1] + own[1:] - np.diag(of_state, 1) - np.diag(of_state, -1)
    return np.exp(np.minimum(gain, 0.0))


def _groups(system: openmm.System, names: set[str]) -> set[int]:
    """Force groups with a force that depends on a parameter."""
    found = set()
    for force in system.getForces():
        if names & parameters_of(force):
            found.add(force.getForceGroup())
            if isinstance(force, openmm.NonbondedForce) and force.getReciprocalSpaceForceGroup() >= 0:
                found.add(force.getReciprocalSpaceForceGroup())
    return found


def _require(context: openmm.Context, states: Sequence[Mapping[str, float]], kelvin: float, steps: int) -> None:
    if len(states) < 2:
        raise ValueError(f"an exchange needs at least 2 states, got {len(states)}")
    names = set(states[0])
    for number, state in enumerate(states):
        if set(state) != names or not names:
            raise ValueError(
                f"all states must set the same parameters, {sorted(names)}, got {sorted(state)} in {number}"
            )
    dependent = {name for force in context.getSystem().getForces() for name in parameters_of(force)}
    for name in sorted(names - dependent):
        raise ValueError(
            f"no force depends on the parameter {name!r} of the states; parameters are {sorted(dependent)}"
        )
    if steps < 1:
        raise ValueError(f"steps must be >= 1, got {steps}")
    if not (np.isfinite(kelvin) and kelvin > 0):
        raise ValueError(f"temperature must be > 0 K and finite, got {kelvin}")
    integrator = context.getIntegrator()
    if hasattr(integrator, "getTemperature"):
        own = integrator.getTemperature().value_in_unit(unit.kelvin)
        if abs(own - kelvin) > 1e-6 * kelvin:
            raise ValueError(f"temperature must be that of the integrator, {own:g} K, got {kelvin:g} K")
