"""Check of Lustre clients: AWS's repository has packages for the kernels that the default images get.

No API shows the kernel of an image. Images follow Ubuntu's newest kernel within days, and the repository keeps clients
of older kernels: if the newest kernel has a client, that of every image has one.
"""

from __future__ import annotations

import gzip
import re
from collections.abc import Callable, Iterator

from bootstrap.lustre_kernels import choose_kernel, list_client_kernels, read_package_names
from cluster.spec.issue import Issue, error, warning
from infra.targets.aws.node.cloud import LUSTRE_CLIENT
from infra.targets.aws.plan import images
from infra.targets.aws.preflight.lustre_images import choose_images
from infra.targets.aws.preflight.public_files import UNREADABLE, download, needs_lustre_client
from infra.targets.aws.preflight.subject import Subject

CODENAME = "jammy"
"""Ubuntu release of the default images."""
# Ubuntu's archive has the architectures that few desktops have under another address.
_UBUNTU = {"amd64": "http://archive.ubuntu.com/ubuntu", "arm64": "http://ports.ubuntu.com/ubuntu-ports"}
_DEBIAN_NAMES = {"x86_64": "amd64", "arm64": "arm64"}
_WHERE = "storage"

Fetch = Callable[[str], str]
"""Return the text of an apt repository's index."""


def fetch_index(url: str) -> str:
    """Download and decompress a `Packages.gz`; raise one of UNREADABLE if that fails."""
    return gzip.decompress(download(url)).decode(errors="replace")


def check_lustre_clients(subject: Subject, fetch: Fetch = fetch_index) -> Iterator[Issue]:
    """Report kernels of the default images for which there is no Lustre client.

    Machines then install a kernel that has one. Without such a kernel, a new cluster starts from images that have one.
    """
    if not needs_lustre_client(subject.spec):
        return
    for architecture in sorted({kind.partition("-")[2] for kind in images.parameters(subject.spec)}):
        name = _DEBIAN_NAMES[architecture]
        try:
            clients = fetch(f"{LUSTRE_CLIENT.url}/dists/{CODENAME}/main/binary-{name}/Packages.gz")
            ubuntu = _fetch_ubuntu(clients, name, fetch)
        except UNREADABLE as failure:
            message = f"clients for the images' kernels could not be checked ({failure})"
            fix = "check the network of this machine; nodes look for a client themselves"
            yield warning("lustre_clients_unknown", _WHERE, message, fix)
        else:
            for issue in judge_clients(clients, ubuntu, architecture, exists=subject.exists):
                yield choose_images(subject, architecture, issue) if issue.level == "error" else issue


def judge_clients(clients: str, ubuntu: str, architecture: str, *, exists: bool = False) -> Iterator[Issue]:
    """Yield an issue if the newest kernel in Ubuntu's index has no client in the index of clients.

    It is never an error if the cluster exists, because its images, and so its kernels, stay the same.
    """
    make = warning if exists else error
    kernel, names = find_newest_kernel(ubuntu), _list_names(clients, ubuntu)
    if not list_client_kernels(names):
        message = f"{LUSTRE_CLIENT.url} has no Lustre client for {CODENAME} on {architecture}"
        yield make("lustre_clients_none", _WHERE, message, "use other storage, or images that have a client")
        return
    chosen = choose_kernel(kernel, names)
    if chosen == kernel:
        return
    message = f"there is no Lustre client yet for {kernel}, the newest kernel for {CODENAME} on {architecture}"
    if chosen:
        fix = f"nodes whose image has it install {chosen} and restart once; `aws.ami` with an older image avoids that"
        yield warning("lustre_kernel", _WHERE, message, fix)
    else:
        fix = "set `aws.ami` and `aws.plain_ami` to images that have a client"
        yield make("lustre_kernel", _WHERE, message, fix)


def find_newest_kernel(ubuntu: str) -> str:
    """Return the kernel that Ubuntu's package linux-image-aws installs; raise ValueError if the index has none."""
    entries = re.findall(r"^Package: linux-image-aws\n((?:.+\n)*)", ubuntu, re.MULTILINE)
    kernels = [
        kernel for entry in entries for kernel in re.findall(r"^Depends:.*?linux-image-(\d\S*-aws)\b", entry, re.M)
    ]
    if not kernels:
        raise ValueError("Ubuntu's index has no linux-image-aws")
    return str(kernels[-1])


def _fetch_ubuntu(clients: str, name: str, fetch: Fetch) -> str:
    """Return Ubuntu's index of updates; if no kernel in it has a client, all indexes, the updates last."""

    def fetch_pocket(pocket: str) -> str:
        return fetch(f"{_UBUNTU[name]}/dists/{CODENAME}{pocket}/main/binary-{name}/Packages.gz")

    updates = fetch_pocket("-updates")
    if choose_kernel(find_newest_kernel(updates), _list_names(clients, updates)):
        return updates
    return "\n".join([fetch_pocket(""), fetch_pocket("-security"), updates])


def _list_names(clients: str, ubuntu: str) -> list[str]:
    return [*read_package_names(clients), *read_package_names(ubuntu)]
