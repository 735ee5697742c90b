"""Run squeue with the names of jobs as the last column, and print one line for each job whatever its name contains.

Users choose the names: a line break in one would forge the row of another job. The controller runs this text. With a
limit, the rows that exceed it are counted in a last line such as `+250`: Systems Manager returns 24,000 characters.
"""

import secrets
import subprocess
import sys

MAX_ROW_CHARS = 300
"""Length of a row if the output has a limit: users choose how long the names of their jobs are."""


def join_rows(text: str, mark: str) -> "list[str]":
    """Return the rows, each of which begins with the mark; characters of a name that are not printable become `?`."""
    rows = text.split(mark)[1:]
    return ["".join(c if c.isprintable() else "?" for c in row[:-1]) for row in rows]


def cut_rows(rows: "list[str]", max_chars: int) -> "list[str]":
    """Return the first rows, each cut off, and the number of the others; at least one, so that no queue looks empty."""
    cut = [row[:MAX_ROW_CHARS] for row in rows]
    total = 0
    for count, row in enumerate(cut):
        total += len(row) + 1
        if count and total > max_chars:
            return [*cut[:count], f"+{len(cut) - count}"]
    return cut


def main(max_chars: str, columns: str, *options: str) -> int:
    """Print the columns of squeue, then the name; all rows if the limit is 0."""
    # Nobody can name a job after it.
    mark = secrets.token_hex(16)
    command = ["squeue", "--noheader", *options, "--format", f"{mark}{columns}|%j"]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=False)
    rows = join_rows(done.stdout.decode("utf-8", "replace"), mark)
    for row in cut_rows(rows, int(max_chars)) if int(max_chars) else rows:
        sys.stdout.buffer.write(f"{row}\n".encode())
    return done.returncode


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
