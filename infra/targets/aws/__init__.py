"""The AWS target: nodes are EC2 instances in private subnets."""

# Machines are in the cloud: no Docker engine, node image or training environment is needed here.
SETUP_PHASES = ("apt", "venv", "pulumi")
