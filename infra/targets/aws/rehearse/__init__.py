"""A rehearsal: the AWS path as a whole on this machine, with containers as instances and a simulated AWS."""
