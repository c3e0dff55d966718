"""Conformance checks for potentials with any model: `check(potential)`."""

from torchmdx.conformance.check import Check as Check
from torchmdx.conformance.check import Conformance as Conformance
from torchmdx.conformance.check import check as check

__all__ = ["Check", "Conformance", "check"]
