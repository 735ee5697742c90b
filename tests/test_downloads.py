"""Every place that downloads something checks it against a pin in this repository, or SECURITY.md names it."""

from __future__ import annotations

import re
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from setup import pins

REPO = Path(__file__).parents[1]
FOLDERS = ("bootstrap", "infra", "setup", "slurm")
# Packages of a distribution are not here: apt verifies them with the keys of the distribution, debootstrap too.
DOWNLOADS = (
    r"url(?:open|retrieve)\(",
    r'"docker", "pull"',
    r'-m"?,? "?pip"?,? "?install|\bpip "\$\w+" install',
    r'go, "(?:build|mod)"',
    r'"plugin",\s+"install"',
    r"\b(?:curl|wget) -",
    r"git\"?,? \"?clone",
)
# By file: for each download, what shows that it is compared with a pin before it is used.
PINNED = {
    "bootstrap/scripts/efa-installer.sh": (r'"\$actual" != "\$SHA256"',),
    "bootstrap/scripts/lustre-client.sh": (r'\[ "\$primary" = "\$FINGERPRINT" \]',),
    "bootstrap/scripts/slurm-packages.sh": (r'= "\$SHA256  -"',),
    "bootstrap/scripts/training-env.sh": (r"--require-hashes", r'\[ "\$actual" = "\$sha256" \]'),
    "infra/targets/aws/plugin.py": (r"actual != pinned",),
    "infra/targets/aws/node/early.py": (r"_check\(url, signed\.retry\(save, url\), sha256\)",),
    "setup/image.py": (r'"docker", "pull", pins\.OFFICIAL_BASE',),
    "setup/kubernetes.py": (r"-mod=readonly",),
    # Whether the release exists, and the release.
    "setup/pulumi.py": (r"machine not in pins\.PULUMI_SHA256", r"actual != pinned"),
    # The modules, and a newer Go.
    "setup/pulumi_go.py": (r"-mod=readonly", r'module\["Sum"\] != pins\.GO_SUMS'),
    "setup/venv.py": (r"--require-hashes",),
}
# By file: number of matches that bring nothing to a machine without somebody who vouches for it.
EXCEPTIONS = {
    # Packages that a user of the cluster chooses, into that user's own environment.
    "bootstrap/scripts/muster-env": 1,
    # Calls of AWS itself, signed with the machine's credentials.
    "infra/targets/aws/node/signed.py": 1,
    # Lists of versions and a key that the pre-flight judges; nothing of them is installed.
    "infra/targets/aws/preflight/public_files.py": 1,
    # A list of prices that is shown.
    "infra/targets/azure/quote.py": 1,
    # A rehearsed machine reads its user data from the simulated metadata service.
    "infra/targets/aws/rehearse/machine_files/user-data.sh": 2,
    # A rehearsed job asks the simulated metadata service, which must not answer.
    "infra/targets/aws/rehearse/policies_and_hooks.py": 1,
    # This repository itself, with `--no-deps`.
    "setup/venv.py": 1,
    # Sends messages to the address that an admin has set; the answer is not read.
    "slurm/alerts/webhook.py": 1,
}
# By file: number of downloads, and how the table of gaps in SECURITY.md names them.
BY_ORIGIN = {
    "infra/targets/aws/plugin.py": (1, "Pulumi's AWS plugin"),
}


def read_code(file: str) -> str:
    """Return the text of a file without the lines that are comments."""
    lines = (REPO / file).read_text(errors="replace").splitlines()
    return "\n".join(line for line in lines if not line.lstrip().startswith("#"))


def list_tracked(*patterns: str) -> list[str]:
    """Return the files of the repository that match, not those of environments and other checkouts inside of it."""
    answer = subprocess.run(
        ["git", "-C", REPO, "ls-files", "-z", "--", *patterns], capture_output=True, text=True, check=True
    )
    return [file for file in answer.stdout.split("\0") if file]


@pytest.mark.attack(9)
def test_every_download_is_pinned_or_named_in_security_md() -> None:
    counts = {
        file: sum(len(re.findall(pattern, read_code(file))) for pattern in DOWNLOADS) for file in list_tracked(*FOLDERS)
    }
    expected = Counter({file: len(patterns) for file, patterns in PINNED.items()})
    expected.update(EXCEPTIONS)
    expected.update({file: count for file, (count, _) in BY_ORIGIN.items()})
    assert {file: count for file, count in counts.items() if count} == expected


@pytest.mark.attack(9)
@pytest.mark.parametrize("file", PINNED)
def test_the_pin_is_compared(file: str) -> None:
    assert [pattern for pattern in PINNED[file] if not re.search(pattern, read_code(file))] == []


@pytest.mark.parametrize("file", BY_ORIGIN)
def test_security_md_names_what_is_trusted_by_its_origin(file: str) -> None:
    (row,) = [line for line in (REPO / "SECURITY.md").read_text().splitlines() if "trusted by its origin" in line]
    assert BY_ORIGIN[file][1] in row


@pytest.mark.attack(9)
def test_the_debian_image_is_pinned_by_its_digest() -> None:
    assert re.fullmatch(r"debian@sha256:[0-9a-f]{64}", pins.OFFICIAL_BASE)


@pytest.mark.attack(9)
def test_locks_have_a_hash_for_every_package() -> None:
    locks = [REPO / file for file in list_tracked("*requirements*.lock")]
    assert len(locks) >= 3
    for lock in locks:
        entries = re.split(r"\n(?=[a-z0-9])", lock.read_text())
        packages = [entry for entry in entries if re.match(r"[A-Za-z0-9._\[\]-]+==", entry)]
        assert packages, lock
        assert [entry.split()[0] for entry in packages if "--hash=sha256:" not in entry] == [], lock
