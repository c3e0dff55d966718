"""Conformance checks for potentials with any model: `check(potential)`."""

from torchmdx.evaluation.conformance.check import Check as Check
from torchmdx.evaluation.conformance.check import Conformance as Conformance
from torchmdx.evaluation.conformance.check import check as check

__all__ = ["Check", "Conformance", "check"]
