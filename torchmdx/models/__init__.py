"""The reference models in plain torch, to be read in this order:

    cutoff -> tensors -> radial -> embedding -> interaction -> tensornet -> potential

tensornet2 and charge_equilibration extend TensorNet by partial charges; priors/ are energy terms without weights.
"""
