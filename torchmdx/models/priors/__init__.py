"""Known physics that is added to the network: terms of the energy with settings and without weights."""
