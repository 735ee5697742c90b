"""Files of public servers that machines need, and that the pre-flight reads before there are machines."""

from __future__ import annotations

import http.client
import os
import urllib.request
import zlib

from cluster.spec import ClusterSpec
from infra.targets.aws.plan import images

_TIMEOUT_S = 8.0
# A download or an archive that ends too early is not an OSError.
UNREADABLE = (OSError, EOFError, zlib.error, http.client.HTTPException)


def needs_lustre_client(spec: ClusterSpec) -> bool:
    """Return whether machines install the Lustre client: images that a spec names are expected to have it."""
    return bool(images.parameters(spec)) and any(storage.kind == "fsx-lustre" for storage in spec.storage.values())


def download(url: str) -> bytes:
    """Return the content of a file; raise one of UNREADABLE if that fails."""
    if endpoint := os.environ.get("AWS_ENDPOINT_URL"):
        raise OSError(f"AWS is replaced by {endpoint}")
    with urllib.request.urlopen(url, timeout=_TIMEOUT_S) as answer:  # noqa: S310  # the addresses are ours
        content: bytes = answer.read()
    return content
