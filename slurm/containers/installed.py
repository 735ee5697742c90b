"""Where bootstrap installs the program and its settings on compute nodes."""

PROGRAM = "/etc/muster/container.pyz"
SETTINGS = "/etc/muster/containers.json"
