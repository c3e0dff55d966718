"""Implementation of `torchmdx md`: molecular dynamics in OpenMM with output files and restarts."""
