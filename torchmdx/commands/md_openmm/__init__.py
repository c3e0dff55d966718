"""Implementation of `torchmdx md --engine openmm`."""
