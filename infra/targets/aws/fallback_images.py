"""Images that `up` chose instead of AWS's newest: a file in the stack's folder, which the Pulumi program reads."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping

from cluster.spec import ClusterSpec
from infra.home import StackHome, private_folder
from infra.targets.aws.plan import images
from infra.targets.aws.state import read_state_record

FILE = "aws-fallback-images.json"


def read_fallbacks(stack: StackHome) -> dict[str, str]:
    """Return the images of a stack by kind of image; empty if it starts from AWS's newest ones."""
    try:
        chosen: dict[str, str] = json.loads((stack.folder / FILE).read_text())
    except FileNotFoundError:
        return {}
    return chosen


def store_fallbacks(stack: StackHome, chosen: Mapping[str, str]) -> None:
    """Store the images of a stack in place of those that an earlier `up` chose."""
    path = stack.folder / FILE
    if not chosen:
        path.unlink(missing_ok=True)
        return
    private_folder(stack.folder)
    new = path.with_suffix(f".{os.getpid()}")
    new.write_text(json.dumps(dict(chosen), indent=1, sort_keys=True) + "\n")
    new.replace(path)


def list_unnamed_images(stack: StackHome, spec: ClusterSpec | None) -> dict[str, str]:
    """Return the images that machines of a stack start from without being named by the spec, by kind of image.

    The state has them once the cluster exists, also on the machines of other operators.
    """
    record = read_state_record(stack.state)
    chosen = read_fallbacks(stack) | dict(record.images if record else {})
    open_kinds = images.parameters(spec) if spec else chosen
    return {kind: image for kind, image in chosen.items() if kind in open_kinds}
