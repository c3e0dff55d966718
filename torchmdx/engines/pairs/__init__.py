"""TensorNet and TensorNet2 on pairs of atoms, for training and for steps without fused kernels."""
