"""What `torchmdx demo` shows: molecular dynamics of alanine dipeptide with the potential that torchmdx comes with."""
