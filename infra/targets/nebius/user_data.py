"""The cloud-init user data of an instance. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping

from infra.targets.rented import user_data

# Ubuntu's cloud-init waits for devices under /dev, which the tag of a virtiofs filesystem is not: fstab has it instead.
_MOUNT = """mkdir -p {mount}
grep -q ' {mount} virtiofs ' /etc/fstab || echo '{tag} {mount} virtiofs defaults,nofail 0 0' >>/etc/fstab
mountpoint -q {mount} || mount {mount}"""
# https://docs.nebius.com/compute/virtual-machines/instance-metadata has the name, but not the address.
METADATA_NAME = "metadata.nebius.internal"
# The last script decides whether cloud-init has failed.
_CHECK_METADATA = f"""for address in $(getent ahosts {METADATA_NAME} | cut -d' ' -f1 | sort -u); do
  case " {" ".join(user_data.METADATA_ADDRESSES)} " in
    *" $address "*) ;;
    *) echo "muster: {METADATA_NAME} is at $address, which users could reach: report this as a bug" >&2; exit 1 ;;
  esac
done"""


def render_user_data(hostname: str, host_key: Mapping[str, str], authorized_key: str, mounts: Mapping[str, str]) -> str:
    """Return the user data of a node: its SSH host key, the key that may log in as root, and its mounts by tag.

    `host_key` has the parts `private` and `public`. That the machine has this key is what the first login checks.
    """
    scripts = [*(_MOUNT.format(mount=mount, tag=tag) for tag, mount in sorted(mounts.items())), _CHECK_METADATA]
    keys = {"ed25519_private": host_key["private"], "ed25519_public": host_key["public"]}
    return user_data.render_user_data(authorized_key, scripts, hostname=hostname, ssh_keys=keys)
