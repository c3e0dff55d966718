"""TensorNet and TensorNet2 in fused GPU kernels."""
