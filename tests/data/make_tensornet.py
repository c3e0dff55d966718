"""Writes tensornet.safetensors beside this file: a small TensorNet with random weights, for tests and the demo."""

from pathlib import Path

import torch

import torchmdx


def main() -> None:
    torch.manual_seed(2026)
    config = torchmdx.TensorNetConfig(num_channels=16, num_layers=2, num_radial=8, cutoff=4.5, max_z=20)
    potential = torchmdx.Potential(config)
    with torch.no_grad():  # filters of a trained model are larger than those PyTorch starts from
        for layer in potential.network.layers:
            layer.filters[4].weight.mul_(4)
    torchmdx.save(potential, Path(__file__).with_name("tensornet.safetensors"))


if __name__ == "__main__":
    main()
