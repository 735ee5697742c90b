"""Paths of an installation: the repository, MUSTER_HOME (state, keys, logs), MUSTER_CACHE (tools), MUSTER_STACKS."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path

PULUMI_VERSION = "3.259.0"
DEFAULT_STACK = "local"
"""The stack of commands without `--stack`: Pulumi.local.yaml."""
# Names in MUSTER_HOME that belong to all stacks, so that no stack's folder may have them.
RESERVED = (
    *("state", "remote", "state-url", "passphrase", "locks", "receipts"),
    *("stacks", "rehearsals", "images", "backups"),
)
STATE_VARIABLE = "MUSTER_STATE"
FILE_STATE = "file"
"""The value of MUSTER_STATE for a state in MUSTER_HOME."""
_STACK_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,38}")


@dataclass(frozen=True)
class Home:
    """All paths of an installation; `stack` returns those of a stack."""

    repo: Path
    root: Path
    cache: Path
    stacks: Path
    remote: str = ""
    """URL of the state that operators share; empty if the state is in `root`."""

    @classmethod
    def of(cls, env: Mapping[str, str], repo: Path | None = None) -> Home:
        repo = repo or Path(__file__).resolve().parent.parent
        root = _path(env, "MUSTER_HOME", repo / ".muster")
        url = env.get(STATE_VARIABLE) or _read_line(root / "state-url")
        return cls(
            repo=repo,
            root=root,
            cache=_path(env, "MUSTER_CACHE", Path(env.get("HOME", "/root")) / ".cache" / "muster"),
            stacks=_path(env, "MUSTER_STACKS", repo / "stacks"),
            remote="" if url == FILE_STATE else url,
        )

    def with_file_state(self) -> Home:
        """Return the same home with its state in `root`."""
        return replace(self, remote="")

    @property
    def state(self) -> Path:
        """Return the folder of Pulumi's state; of a remote state, a copy of what commands read."""
        if not self.remote:
            return self.root / "state"
        return self.root / "remote" / sha256(self.remote.encode()).hexdigest()[:12]

    @property
    def state_url(self) -> Path:
        """Return the file with the URL of a remote state, which MUSTER_STATE overrides."""
        return self.root / "state-url"

    @property
    def passphrase(self) -> Path:
        return self.root / "passphrase"

    @property
    def receipts(self) -> Path:
        return self.root / "receipts"

    @property
    def backups(self) -> Path:
        """Archives that `muster backup` writes; teardown leaves them."""
        return self.root / "backups"

    @property
    def images(self) -> Path:
        """Records of what built images contain."""
        return self.root / "images"

    @property
    def setup_log(self) -> Path:
        return self.cache / "logs" / "setup.json"

    @property
    def tools(self) -> Path:
        return self.cache / "pulumi" / PULUMI_VERSION / "bin"

    @property
    def venv(self) -> Path:
        return self.repo / ".venv"

    def stack(self, name: str) -> StackHome:
        if problem := name_problem(name):
            raise ValueError(f"stack: {problem}")
        return StackHome(self, name)

    def stack_names(self) -> list[str]:
        names = (file.name.split(".")[1] for file in self.stacks.glob("Pulumi.*.yaml"))
        return sorted(name for name in names if not name_problem(name))


@dataclass(frozen=True)
class StackHome:
    """The files of a stack. The stack file belongs to the user; everything else is under MUSTER_HOME."""

    home: Home
    name: str

    @property
    def file(self) -> Path:
        return self.home.stacks / f"Pulumi.{self.name}.yaml"

    @property
    def folder(self) -> Path:
        return self.home.root / self.name

    @property
    def project(self) -> Path:
        return self.folder / "Pulumi.yaml"

    @property
    def working_copy(self) -> Path:
        return self.folder / f"Pulumi.{self.name}.yaml"

    @property
    def inventory(self) -> Path:
        return self.folder / "inventory.json"

    @property
    def ssh_config(self) -> Path:
        return self.folder / "ssh_config"

    @property
    def rotation_mark(self) -> Path:
        """File that exists while the Slurm key is rotated: `up` need not read the state to find out."""
        return self.folder / "rotating-keys"

    @property
    def progress(self) -> Path:
        return self.folder / "progress.jsonl"

    @property
    def events(self) -> Path:
        return self.folder / "events.pipe"

    @property
    def last_up(self) -> Path:
        return self.folder / "up.json"

    @property
    def state(self) -> Path:
        return self.home.state / ".pulumi" / "stacks" / "muster" / f"{self.name}.json"

    @property
    def pulumi_history(self) -> Path:
        return self.home.state / ".pulumi" / "history" / "muster" / self.name

    @property
    def pulumi_locks(self) -> Path:
        return self.home.state / ".pulumi" / "locks" / "organization" / "muster" / self.name

    @property
    def lock(self) -> Path:
        """Return the lock file, which is outside the stack's folder: teardown removes that while it holds the lock."""
        return self.home.root / "locks" / f"{self.name}.lock"

    def log(self, command: str) -> Path:
        return self.folder / f"{command}.log"


def name_problem(name: str) -> str:
    """Return why this is not a valid name for a stack; empty if it is."""
    if not _STACK_NAME.fullmatch(name):
        allowed = "up to 39 lower-case letters, digits and dashes, not starting with a dash"
        return f"'{name}' is not a stack name; allowed: {allowed}"
    if name in RESERVED:
        return f"'{name}' is reserved by muster; allowed: any name except {', '.join(RESERVED)}"
    return ""


def private_folder(folder: Path) -> Path:
    """Create a folder that only its owner may enter, for state, keys and logs; return its path."""
    folder.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    folder.mkdir(exist_ok=True, mode=0o700)
    if folder.stat().st_mode & 0o077:
        folder.chmod(0o700)
    return folder


def _read_line(file: Path) -> str:
    try:
        return file.read_text().strip()
    except OSError:
        return ""


def _path(env: Mapping[str, str], name: str, default: Path) -> Path:
    return Path(env[name]).expanduser().resolve() if env.get(name) else default
