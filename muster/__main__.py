"""`python -m muster`: the same as the command `muster`."""

from muster.cli import main

main()
