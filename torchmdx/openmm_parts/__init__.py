"""What the OpenMM front door is made of."""
