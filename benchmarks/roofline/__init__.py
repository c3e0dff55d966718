"""Lower bounds of the time of a step at peak throughput: operations, memory and caches of a device."""
