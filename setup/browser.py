"""`python -m setup.browser`: a browser for the tests that look at pages, where this machine has none."""

import os
import shutil
import subprocess
import sys

COMMANDS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
PACKAGE = "chromium-headless-shell"


def find() -> str | None:
    return next((path for name in COMMANDS if (path := shutil.which(name))), None)


def main() -> int:
    if find():
        return 0
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        print(f"setup: browser: none of {', '.join(COMMANDS)} is here: install one of them", file=sys.stderr)
        return 1
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    options = ["-y", "-q", "--no-install-recommends", "-o", "DPkg::Lock::Timeout=300"]
    for words in (["update", "-q"], ["install", *options, PACKAGE, "fonts-dejavu-core"]):
        code = subprocess.run(["apt-get", *words], env=environment, stdout=sys.stderr, check=False).returncode
        if code:
            return code
    return 0


if __name__ == "__main__":
    sys.exit(main())
