"""Known physics beside the network: terms of the energy that have settings, and no weights."""
