"""Every place that downloads something checks it against a pin in this repository, or SECURITY.md names it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

REPO = Path(__file__).parents[1]
FOLDERS = ("bootstrap", "setup", "infra/targets/aws/node", "infra/targets/aws/plugin.py")
# Packages of a distribution are not here: apt verifies them with the keys of the distribution, debootstrap too.
DOWNLOADS = {
    "urllib": r"url(?:open|retrieve)\(",
    "docker pull": r'"docker", "pull"',
    "pip": r'pip"?,? "?install',
    "go": r'go, "(?:build|mod)"|"mod", "download"',
    "pulumi plugin": r'"plugin",\s+"install"',
    "curl or wget": r"\b(?:curl|wget) -",
    "git": r"git\"?,? \"?clone",
}
# By file: what shows that each download is compared with a pin before it is used.
PINNED = {
    "bootstrap/scripts/efa-installer.sh": (r'"\$actual" != "\$SHA256"',),
    "bootstrap/scripts/slurm-packages.sh": (r'= "\$SHA256  -"',),
    "bootstrap/scripts/training-env.sh": (r"--require-hashes", r'\[ "\$actual" = "\$sha256" \]'),
    "infra/targets/aws/node/early.py": (r"_check\(url, signed\.retry\(save, url\), sha256\)",),
    "setup/pulumi_go.py": (r"-mod=readonly",),
    "setup/venv.py": (r"--require-hashes",),
}
# Calls of AWS itself, signed with the machine's credentials.
REQUESTS = ("infra/targets/aws/node/imds.py", "infra/targets/aws/node/signed.py")
# By file: how the table of gaps in SECURITY.md names it.
BY_ORIGIN = {
    "bootstrap/scripts/lustre-client.sh": "the key of the FSx package repository",
    "infra/targets/aws/plugin.py": "its AWS plugin",
    "setup/image.py": "the Debian base image",
    "setup/pulumi.py": "Pulumi's release",
}


def list_downloads() -> dict[str, list[str]]:
    """Return the kinds of downloads by file."""
    downloads = {}
    for folder in FOLDERS:
        root = REPO / folder
        for path in [root] if root.is_file() else sorted(root.rglob("*")):
            if path.suffix not in (".py", ".sh") and path.name != "Dockerfile":
                continue
            text = "\n".join(line for line in path.read_text().splitlines() if not line.lstrip().startswith("#"))
            if kinds := [kind for kind, pattern in DOWNLOADS.items() if re.search(pattern, text, re.MULTILINE)]:
                downloads[str(path.relative_to(REPO))] = kinds
    return downloads


def test_every_download_is_pinned_or_named_in_security_md() -> None:
    assert set(list_downloads()) - set(REQUESTS) == set(PINNED) | set(BY_ORIGIN)


@pytest.mark.parametrize("file", PINNED)
def test_the_pin_is_compared(file: str) -> None:
    text = (REPO / file).read_text()
    assert [pattern for pattern in PINNED[file] if not re.search(pattern, text)] == []


@pytest.mark.parametrize("file", BY_ORIGIN)
def test_security_md_names_what_is_trusted_by_its_origin(file: str) -> None:
    (row,) = [line for line in (REPO / "SECURITY.md").read_text().splitlines() if "trusted by their origin" in line]
    assert BY_ORIGIN[file] in row


def test_locks_have_a_hash_for_every_package() -> None:
    locks = [path for path in REPO.rglob("requirements*.lock") if ".venv" not in path.parts]
    assert len(locks) >= 3
    for lock in locks:
        entries = re.split(r"\n(?=[a-z0-9])", lock.read_text())
        packages = [entry for entry in entries if re.match(r"[A-Za-z0-9._\[\]-]+==", entry)]
        assert packages, lock
        assert [entry.split()[0] for entry in packages if "--hash=sha256:" not in entry] == [], lock
