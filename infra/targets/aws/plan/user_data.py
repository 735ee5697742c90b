"""User data: the script with which a bare machine becomes what the bundle says. It may be run again."""

from __future__ import annotations

import shlex
from pathlib import Path

from cluster.inventory import parameters

SCRIPT = (Path(__file__).parent / "user_data.sh").read_text(encoding="utf-8")
# Carried along, because they are needed to fetch everything else; they need nothing but Python itself.
EARLY = tuple(f"infra/targets/aws/node/{name}.py" for name in ("imds", "signed", "early"))
ROOT = Path(__file__).parents[4]
LIMIT = 16 * 1024
"""AWS takes no more, before base64."""


def user_data(*, bucket: str, digest: str, sha256: str, region: str, role: str, cluster: str) -> str:  # noqa: PLR0913
    """Plain text; whoever hands it to AWS encodes it."""
    settings = {
        "cluster": cluster,
        "role": role,
        "region": region,
        "bucket": bucket,
        "key": parameters.bundle(sha256),
        "digest": digest,
        "sha256": sha256,
        "tag": parameters.NODE_TAG,
        "nodes": parameters.nodes(cluster),
    }
    lines = "\n".join(f"{name}={shlex.quote(value)}" for name, value in settings.items())
    files = "\n\n".join(_file(name) for name in EARLY)
    text = SCRIPT.replace("@SETTINGS@", lines).replace("@FILES@", files)
    if len(text.encode()) > LIMIT:
        raise ValueError(f"user data has {len(text.encode())} bytes, AWS takes {LIMIT}: shorten {', '.join(EARLY)}")
    return text


def _file(name: str) -> str:
    content = (ROOT / name).read_text(encoding="utf-8")
    return f"cat >\"$early/{name}\" <<'MUSTER_FILE'\n{content}MUSTER_FILE"
