"""The error of a node that could not be set up."""

from __future__ import annotations


class BootstrapError(Exception):
    """A failure on one node: the step, the log line that shows it, where to read more, and how to fix it."""

    def __init__(self, node: str, step: str, line: str, log: str = "", fix: str = "") -> None:
        super().__init__(node, step, line, log, fix)
        self.node = node
        self.step = step
        self.line = line
        self.log = log
        self.fix = fix

    def __str__(self) -> str:
        parts = [f"node {self.node}, step {self.step}: {self.line.rstrip('.')}."]
        if self.log:
            parts.append(f"Log: {self.log}.")
        if self.fix:
            parts.append(f"Fix: {self.fix}.")
        return " ".join(parts)
