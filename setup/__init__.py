"""Make a machine ready for muster: Python environment, Pulumi, Docker, node image, training environment."""
