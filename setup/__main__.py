"""Entry point of `python3 -m setup`. It parses under Python 3.6, so that an old Python prints a message."""

import sys

if sys.version_info < (3, 11):  # noqa: UP036
    sys.exit(
        f"setup: Python {sys.version_info[0]}.{sys.version_info[1]} is too old; muster needs 3.11 or newer.\n"
        "  fix: install a newer Python and name it, for example `make PYTHON=python3.12 setup` or `python3.12 -m setup`"
    )

from setup.command import main

sys.exit(main(sys.argv[1:]))
