"""Every error code of AWS at every call of muster's commands, on moto and without machines."""
