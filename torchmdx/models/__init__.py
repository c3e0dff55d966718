"""Energy models: networks of equivariant tensors, and the potential that makes energies of them."""
