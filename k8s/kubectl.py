"""Kubectl, the only way to a Kubernetes cluster: it has the user's contexts, logins and plugins."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

JOBSET_RESOURCE = "jobsets.jobset.x-k8s.io"
JOB_RESOURCE = "jobs.batch"
TIMEOUT_S = 120.0
"""Seconds for a call; kubectl itself waits forever for a cluster that does not answer."""


class KubectlError(Exception):
    """A failed call of kubectl; the message is its error."""


class KubectlMissing(KubectlError):
    """Raised if kubectl is not installed."""


@dataclass(frozen=True)
class Kubectl:
    """The kubectl of this machine, for one namespace and context; empty means the user's current one."""

    namespace: str = ""
    context: str = ""

    @property
    def options(self) -> list[str]:
        """The options that choose context and namespace, for kubectl and for `muster kubernetes`."""
        return [
            *([f"--context={self.context}"] if self.context else []),
            *([f"--namespace={self.namespace}"] if self.namespace else []),
        ]

    def format(self, *arguments: str) -> str:
        """Return a command line for the user to type."""
        return " ".join(["kubectl", *self.options, *arguments])

    def run(self, *arguments: str, data: str = "") -> str:
        """Run kubectl and return its output, or raise a KubectlError with its message."""
        program = shutil.which("kubectl")
        if program is None:
            raise KubectlMissing("kubectl is not installed, or not in PATH")
        command = [program, *self.options, *arguments]
        try:
            done = subprocess.run(command, input=data, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
        except subprocess.TimeoutExpired:
            raise KubectlError(f"the cluster did not answer within {TIMEOUT_S:.0f} s") from None
        if done.returncode != 0:
            raise KubectlError(done.stderr.strip() or f"kubectl ended with exit code {done.returncode}")
        return done.stdout

    def has_resource(self, resource: str) -> bool:
        """Return whether the cluster has a kind of objects, such as jobsets.jobset.x-k8s.io."""
        group = resource.partition(".")[2]
        return resource in self.run("api-resources", f"--api-group={group}", "--output=name").split()

    def list_objects(self, resources: Sequence[str], selector: str) -> list[str]:
        """Return the objects with these labels as KIND/NAME."""
        arguments = ("get", ",".join(resources), f"--selector={selector}", "--ignore-not-found", "--output=name")
        return self.run(*arguments).split()
