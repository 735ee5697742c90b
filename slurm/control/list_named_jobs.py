"""Run squeue with the names of jobs as the last column, and print one line for each job whatever its name contains.

Users choose the names: a line break in one would forge the row of another job. The controller runs this text.
"""

import secrets
import subprocess
import sys


def join_rows(text: str, mark: str) -> "list[str]":
    """Return the rows, each of which begins with the mark; characters of a name that are not printable become `?`."""
    rows = text.split(mark)[1:]
    return ["".join(c if c.isprintable() else "?" for c in row[:-1]) for row in rows]


def main(columns: str, *options: str) -> int:
    """Print the columns of squeue, then the name."""
    # Nobody can name a job after it.
    mark = secrets.token_hex(16)
    command = ["squeue", "--noheader", *options, "--format", f"{mark}{columns}|%j"]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=False)
    for row in join_rows(done.stdout.decode("utf-8", "replace"), mark):
        sys.stdout.buffer.write(f"{row}\n".encode())
    return done.returncode


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
