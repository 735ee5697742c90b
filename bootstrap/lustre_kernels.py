"""Which kernel a machine must run for Lustre: a client package is built for exactly one kernel.

Images get new kernels before the package repository has clients for them, so the running kernel may have none.

    apt-cache pkgnames | python -m bootstrap.lustre_kernels RUNNING_KERNEL

prints the kernel to use, or fails.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable

CLIENT = "lustre-client-modules-"
IMAGE = "linux-image-"
_KERNEL = r"\d+\.\d+\.\d+-\d+-[a-z]+"
MAX_SHOWN = 3


def read_package_names(index: str) -> list[str]:
    """Return the names of the packages in an apt repository's `Packages` file."""
    return re.findall(r"^Package: (\S+)$", index, re.MULTILINE)


def list_client_kernels(packages: Iterable[str]) -> list[str]:
    """Return the kernels that have a client among these packages, oldest first."""
    return sorted(_strip(CLIENT, packages), key=_version)


def choose_kernel(running: str, packages: Iterable[str]) -> str:
    """Return the running kernel if it has a client, else the newest one to install; empty if there is none.

    Kernels of the running one's flavour qualify. Those of its own series come first, because the image's other modules
    are known to work with it.
    """
    names = set(packages)
    clients = list_client_kernels(names)
    if running in clients:
        return running
    flavour, installable = running.rpartition("-")[2], _strip(IMAGE, names)
    usable = [kernel for kernel in clients if kernel.endswith(f"-{flavour}") and kernel in installable]
    same_series = [kernel for kernel in usable if kernel.partition("-")[0] == running.partition("-")[0]]
    return next(reversed(same_series or usable), "")


def main(running: str) -> int:
    """Print the kernel to use for the package names on standard input, and return the exit code."""
    names = sys.stdin.read().split()
    if kernel := choose_kernel(running, names):
        print(kernel)
        return 0
    newest = ", ".join(list_client_kernels(names)[-MAX_SHOWN:]) or "no kernel"
    print(f"no Lustre client for kernel {running}, nor one to install; there are clients for {newest}", file=sys.stderr)
    return 1


def _strip(prefix: str, packages: Iterable[str]) -> set[str]:
    matches = (re.fullmatch(f"{prefix}({_KERNEL})", name) for name in packages)
    return {match[1] for match in matches if match}


def _version(kernel: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", kernel)]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
