"""What can go wrong on a node, said as one paragraph: which node, which step, the log line, what to do."""

from __future__ import annotations


class BootstrapError(Exception):
    """A node that could not be made what it should be. `log` is where to read more, `fix` what to do next."""

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
