"""The contract of engines: `check_engine(make, potential)`, and its parts for a test suite."""

from torchmdx.engines.conformance.check import check_engine as check_engine
from torchmdx.engines.conformance.contract import CONTRACT as CONTRACT
from torchmdx.engines.conformance.subject import Subject as Subject

__all__ = ["CONTRACT", "Subject", "check_engine"]
