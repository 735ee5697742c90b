"""The guard of a controller that the state lacks: replacing its machine can lose the queue and files of a cluster."""

from __future__ import annotations

from cluster import names
from infra.resources.error import ResourceError
from infra.resources.force import is_forced
from infra.resources.properties import Properties


def check_controller(props: Properties, machine: str, how: str, fix: str) -> None:
    """Raise ResourceError if the machine of the controller would be replaced without FORCE=1.

    The state does not have the machine: an interrupted run has created it, or the state of a cluster is lost, whose
    queue and files are on its disk. `how` says how it exists.
    """
    if props["node"] == names.CONTROLLER and not is_forced():
        what = f"machine {machine} exists {how}; if it is a cluster's controller, "
        what += "replacing it deletes the job queue, the accounting history and files of kind nfs"
        raise ResourceError(props["where"], what, f"{fix}, or accept the loss with `make up FORCE=1`")
