"""Run a program in the mount namespace with the lowest id, in which Slurm can give each job a namespace of its own.

Slurm holds the namespace of a job by mounting it, and the kernel refuses to mount a namespace whose id is lower than
the caller's. Since Linux 6.18 each CPU hands out ids from a range of its own, so that a container can have a higher id
than the namespaces that are created later on another CPU. A CPU's next range is always above all others.
"""

# The image's Python is 3.13, mypy checks for 3.11, which has neither os.unshare nor os.setns.
# mypy: disable-error-code="attr-defined"

import errno
import fcntl
import os
import sys

# Since Linux 6.12: reads the id of a mount namespace, a 64-bit integer.
NS_GET_MNTNS_ID = 0x8008B705


def enter_lowest() -> None:
    """Enter the lowest of the present namespace and a new one of each CPU."""
    for cpu in os.sched_getaffinity(0):
        _enter_if_lower(cpu)


def _enter_if_lower(cpu: int) -> None:
    """Create a namespace on a CPU, in a child that lives until this process has looked at it or entered it."""
    created, report = os.pipe()
    wait, leave = os.pipe()
    child = os.fork()
    if child == 0:
        # The child must not return: it would start the program a second time.
        try:
            os.close(leave)
            os.sched_setaffinity(0, {cpu})
            os.unshare(os.CLONE_NEWNS)
            os.write(report, b".")
            os.read(wait, 1)
            os._exit(0)
        finally:
            os._exit(1)
    os.close(report)
    os.close(wait)
    try:
        if not os.read(created, 1):
            raise OSError(errno.EPERM, f"CPU {cpu} has created no mount namespace")
        with open("/proc/self/ns/mnt", "rb") as own, open(f"/proc/{child}/ns/mnt", "rb") as other:
            if _read_id(other.fileno()) < _read_id(own.fileno()):
                os.setns(other.fileno(), os.CLONE_NEWNS)
    finally:
        os.close(created)
        os.close(leave)
        os.waitpid(child, 0)


def _read_id(namespace: int) -> int:
    return int.from_bytes(fcntl.ioctl(namespace, NS_GET_MNTNS_ID, bytes(8)), sys.byteorder)


if __name__ == "__main__":
    try:
        enter_lowest()
    except OSError as error:
        # An older kernel does not know the request, and counts ids for all CPUs together.
        if error.errno != errno.ENOTTY:
            print(f"mount-namespace: Slurm may be unable to start jobs here: {error}", file=sys.stderr)
    os.execv(sys.argv[1], sys.argv[1:])  # noqa: S606  # the caller names the program
