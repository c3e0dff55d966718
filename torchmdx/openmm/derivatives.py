"""Derivatives of the energy with respect to global parameters, such as the λ of an interpolation."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import openmm

from torchmdx.openmm.native.saved_force import request_native_derivative, saved_force


def request_derivative(system: openmm.System, parameter: str) -> None:
    """Makes Contexts of the System give the exact dE/dparameter (kJ/mol), of the MM terms and of the potential.

    It is in `getEnergyParameterDerivatives` of a State of `getState(parameterDerivatives=True)`. Every force that has
    the parameter is asked with addEnergyParameterDerivative, unless it was asked before, because OpenMM counts a force
    twice that is asked twice; so are forces of the native transport, which lack that method in Python.

    Raises ValueError, and changes nothing, if no force has the parameter, or one has it but cannot give its derivative.
    """
    forces = [force for force in system.getForces() if parameter in parameters_of(force)]
    if not forces:
        known = sorted({name for force in system.getForces() for name in parameters_of(force)})
        raise ValueError(f"no force of the system has the parameter {parameter!r}; its parameters are {known}")
    for force in forces:
        _require_derivative(force, parameter)
    for force in forces:
        if saved_force(force) is not None:
            request_native_derivative(force, parameter)
        elif not _is_requested(force, parameter):
            force.addEnergyParameterDerivative(parameter)


def parameters_of(force: Any) -> set[str]:
    """Names of the global parameters that the energy of a force depends on."""
    if isinstance(force, openmm.PythonForce):
        return set(force.getGlobalParameters())
    if isinstance(force, openmm.CustomCVForce):
        names = {name for inner in _variables_of(force) for name in parameters_of(inner)}
        return names | _own_parameters_of(force)
    if (saved := saved_force(force)) is not None:
        return {saved.scale_parameter} - {""}
    return _own_parameters_of(force) if hasattr(force, "getNumGlobalParameters") else set()


def _own_parameters_of(force: Any) -> set[str]:
    return {force.getGlobalParameterName(index) for index in range(force.getNumGlobalParameters())}


def _variables_of(force: openmm.CustomCVForce) -> Iterator[openmm.Force]:
    return (force.getCollectiveVariable(index) for index in range(force.getNumCollectiveVariables()))


def _is_requested(force: Any, parameter: str) -> bool:
    count = force.getNumEnergyParameterDerivatives()
    return parameter in [force.getEnergyParameterDerivativeName(index) for index in range(count)]


def _require_derivative(force: openmm.Force, parameter: str) -> None:
    if isinstance(force, openmm.CustomCVForce) and any(parameter in parameters_of(f) for f in _variables_of(force)):
        raise ValueError(
            f"{described(force)} has the parameter {parameter!r} in a collective variable, whose derivative OpenMM "
            "does not include"
        )
    if saved_force(force) is None and not hasattr(force, "addEnergyParameterDerivative"):
        raise ValueError(
            f"{described(force)} depends on the parameter {parameter!r}, of which OpenMM provides no derivative"
        )


def described(force: openmm.Force) -> str:
    """A force in a message: its class, and its name if it has one of its own."""
    kind = type(force).__name__
    return kind if force.getName() in (kind, "") else f"{kind} {force.getName()!r}"
