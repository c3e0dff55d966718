"""Implementation of `torchmdx md --engine openmm`: the loop in OpenMM."""
