"""`make release` and `make verify-release`: build and sign a release, or verify one that was downloaded."""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

from release import archive, audit, cves
from release.components import ROOT
from release.signature import ALLOWED, SignatureError, require_listed, sign, verify


def main(arguments: list[str] | None = None) -> int:
    """Run the command and return its exit code."""
    options = _parse(arguments)
    try:
        if options.command == "build":
            return build_release(options.folder.expanduser(), options.key.expanduser(), audited=not options.no_audit)
        folder = options.folder.expanduser()
        verify(folder / archive.SUMS, options.signers.expanduser())
        names = archive.check_sums(folder)
    except (archive.ReleaseError, SignatureError, subprocess.CalledProcessError, OSError) as error:
        print(f"release: {error}", file=sys.stderr)
        return 1
    print(f"signed by a key in {options.signers}, unchanged: {', '.join(names)}")
    return 0


def build_release(folder: Path, key: Path, *, audited: bool) -> int:
    """Audit, build and sign a release; nothing is written if the key is not listed or the audit fails."""
    require_listed(key)
    if code := max(cves.main(), audit.main(required=True) if audited else 0):
        return code
    files = archive.build(ROOT, folder)
    files.append(sign(folder / archive.SUMS, key))
    for file in files:
        print(file)
    if not audited:
        print("release: the Python packages were NOT audited (--no-audit)", file=sys.stderr)
    return 0


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m release", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    build = commands.add_parser("build", help="write archive, SBOM, checksums and signature")
    build.add_argument("--key", type=Path, required=True, help="SSH key that release/allowed_signers lists")
    build.add_argument("--folder", type=Path, default=ROOT / "dist")
    build.add_argument("--no-audit", action="store_true", help="do not look for vulnerabilities of Python packages")
    check = commands.add_parser("verify", help="check the signature and the checksums of a downloaded release")
    check.add_argument("folder", type=Path)
    check.add_argument("--signers", type=Path, default=ALLOWED, help="keys that you trust")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
