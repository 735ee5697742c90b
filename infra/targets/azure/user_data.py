"""The cloud-init user data of a machine, which a whole scale set shares. Pure functions."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping

from infra.targets.rented import user_data

_EXPORT = "lustrefs"
_MOUNT = """mkdir -p {mount}
source={server}@tcp:/{export}
grep -q " {mount} lustre " /etc/fstab || echo "$source {mount} lustre noatime,flock,_netdev,nofail 0 0" >>/etc/fstab
mountpoint -q {mount} || mount {mount}"""


def render_user_data(authorized_key: str, mounts: Mapping[str, str]) -> str:
    """Return the user data: the key that may log in as root, and the Lustre filesystems by mount and their servers.

    It has no host key, because all machines of a scale set get the same user data: each generates its own. Bootstrap
    sets the host name, so cloud-init must leave it alone at later boots.
    """
    scripts = [_MOUNT.format(mount=mount, server=server, export=_EXPORT) for mount, server in sorted(mounts.items())]
    text = user_data.render_user_data(authorized_key, scripts, preserve_hostname=True)
    return b64encode(text.encode()).decode()
