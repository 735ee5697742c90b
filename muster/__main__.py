"""Run the command line with `python -m muster`."""

from muster.cli import main

main()
