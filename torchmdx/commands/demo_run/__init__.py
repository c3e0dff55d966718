"""Implementation of `torchmdx demo`: molecular dynamics of alanine dipeptide."""
