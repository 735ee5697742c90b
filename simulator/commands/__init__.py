"""The commands of the simulator, one module each."""
