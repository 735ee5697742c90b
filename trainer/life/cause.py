"""The class of an error that ended a rank: found from the error's type, its text, and the code that raised it.

Types are compared by name, so that neither torch nor a GPU library is imported here.
"""

from __future__ import annotations

import errno
import os
import re
import sysconfig
from collections.abc import Iterator, Mapping
from enum import Enum
from pathlib import Path
from traceback import FrameSummary, extract_tb, walk_stack
from types import FrameType

from trainer.config.errors import ConfigError

TRAINER_ROOT = Path(__file__).resolve().parents[1]
_STANDARD_LIBRARY = sysconfig.get_paths()["stdlib"]
_INSTALLED = ("/site-packages/", "/dist-packages/")
# Errors inside these packages are caused by the code that calls them.
_LIBRARIES = ("torch", "numpy", "triton", "yaml")


class Cause(Enum):
    """Why a rank failed."""

    OUT_OF_MEMORY = "out_of_memory"
    HOST_MEMORY = "host_memory"
    DATA = "data"
    NUMERICS = "numerics"
    SETTINGS = "settings"
    COMPILER = "compiler"
    USER_CODE = "user_code"
    DEVICE = "device"
    CORRUPTION = "corruption"
    DISK_FULL = "disk_full"
    STORAGE = "storage"
    FOLDER_LOST = "folder_lost"
    NETWORK = "network"
    HANG = "hang"
    LOST_PEER = "lost_peer"
    TRAINER = "trainer"

    @property
    def label(self) -> str:
        """The cause as it appears in messages and in the report."""
        return self.value.replace("_", " ")

    @property
    def fix(self) -> str:
        """What the user can do about it where this process runs; empty if the error itself says so."""
        return self.find_fix(in_pod=is_pod())

    def find_fix(self, *, in_pod: bool) -> str:
        """Return what the user can do about it, with the commands of Kubernetes or of Slurm."""
        return _FIXES_IN_PODS.get(self, _FIXES[self]) if in_pod else _FIXES[self]

    @property
    def is_permanent(self) -> bool:
        """Whether a restart would fail in the same way, so that it would only waste time."""
        return self in _PERMANENT


_FIXES = {
    Cause.OUT_OF_MEMORY: (
        "use a smaller batch.micro, parallel.recompute=full, or more ranks with parallel.strategy=fsdp"
    ),
    Cause.HOST_MEMORY: "use fewer data.workers, fewer ranks per node, or nodes with more memory",
    Cause.DATA: "check the data that the error names; token ids must be below model.vocab_size",
    Cause.NUMERICS: "lower optimizer.lr, use precision=bf16 or fp32, or check the data of these steps",
    Cause.SETTINGS: "",
    Cause.COMPILER: "set compile.mode=none to train without torch.compile",
    Cause.USER_CODE: "fix the code at this place; failures/ has the traceback",
    Cause.DEVICE: "check the GPU with nvidia-smi and dmesg on this node, and drain the node if it fails again",
    Cause.CORRUPTION: (
        "have the memory and the processors of this node tested, and keep jobs off it until then (`sbatch --exclude`)"
    ),
    Cause.DISK_FULL: (
        "free space on the filesystem that the error names (`df -h`), use a smaller checkpoint.keep, "
        "or another run.folder"
    ),
    Cause.STORAGE: "check the filesystem that the error names, or that of run.folder",
    Cause.FOLDER_LOST: (
        "nothing is lost if the other process was meant to continue the run; otherwise stop it and start this one again"
    ),
    Cause.NETWORK: "check the network between the nodes: `muster fabric` names slow or broken links",
    Cause.HANG: "read hang/report.txt, and the stack of this rank in hang/",
    Cause.LOST_PEER: (
        "check this node (`sinfo -R`), and its dmesg for a process that the kernel killed for lack of memory"
    ),
    Cause.TRAINER: "failures/ has the traceback; please report it with the settings of the run",
}
_FIXES_IN_PODS = {
    Cause.DEVICE: (
        "check the GPU with nvidia-smi and dmesg on this pod's node, and `kubectl drain` the node if it fails again"
    ),
    Cause.CORRUPTION: (
        "have the memory and the processors of this pod's node tested, and keep pods off it until then "
        "(`kubectl cordon`)"
    ),
    Cause.NETWORK: "check the network between the pods: network policies, DNS, and the fabric of --rdma",
    Cause.LOST_PEER: (
        "check this pod (`kubectl describe pod`: evicted, or killed for lack of memory) and its node "
        "(`kubectl describe node`)"
    ),
}
_PERMANENT = frozenset({Cause.DATA, Cause.NUMERICS, Cause.SETTINGS, Cause.COMPILER, Cause.USER_CODE, Cause.FOLDER_LOST})

_DISK_FULL_TEXT = "No space left on device|Disk quota exceeded"
# The first pattern that matches decides. Each is searched in "type: text" of the error.
_PATTERNS = [
    # The text of this error is that of another rank, which has the cause.
    (Cause.LOST_PEER, r"\bPeerError"),
    # Whatever the filesystem's error was: a timeout of it is not one of the network between ranks.
    (Cause.STORAGE, r"\b(UnreadableCheckpoint|TruncatedFile)"),
    # Of a model that is not one of the trainer's: theirs have no such tensors.
    (Cause.USER_CODE, r"\bUnsupportedDtype"),
    (Cause.FOLDER_LOST, r"\bFolderLost"),
    (Cause.DEVICE, r"\bDeviceError"),
    (Cause.OUT_OF_MEMORY, r"OutOfMemoryError|CU(BLAS|DNN|SOLVER|SPARSE)_STATUS_ALLOC_FAILED|[Cc]uda.*out of memory"),
    (Cause.HOST_MEMORY, r"\bMemoryError|can't allocate memory|[Cc]annot allocate memory"),
    # On a GPU, an index outside a table is an assertion. It is nearly always a token or a class that does not exist.
    (Cause.DATA, r"index out of range in self|Target -?\d+ is out of bounds|device-side assert"),
    (Cause.NUMERICS, r"FloatingPointError|returned nan values"),
    (Cause.HANG, r"Timed out waiting \d+ms|collective operation timeout|Watchdog caught collective"),
    (
        Cause.LOST_PEER,
        r"(RuntimeError|Dist\w*Error): .*(closed by peer|reset by peer|Broken pipe|Socket closed|failed to recv)"
        r"|ncclRemoteError|remote process (has )?exited|NCCL communicator was aborted",
    ),
    (Cause.NETWORK, r"WorldError|ncclSystemError|ncclInternalError|unhandled system error|Dist(Network|Store)Error"),
    (
        Cause.DEVICE,
        r"CUDA (driver )?error|AcceleratorError|unhandled cuda error|uncorrectable ECC|cuDNN error|CUBLAS_STATUS_",
    ),
    # Before the compiler's errors: it passes on the texts of the programs that it runs, which write to /tmp.
    (Cause.DISK_FULL, _DISK_FULL_TEXT),
    (Cause.STORAGE, r"Stale file handle|Read-only file system"),
    (Cause.COMPILER, r"^(torch\._(dynamo|inductor|functorch)|triton)\.|BackendCompilerFailed|InductorError"),
]
# Where a ConfigError is about samples: a setting that names them, or an argument of `trainer.api`.
_DATA_PLACES = re.compile(r"data(\..*)?|evaluation\.path|targets|batches")
_DISK_FULL_ERRORS = frozenset({errno.ENOSPC, errno.EDQUOT})
_STORAGE_ERRORS = frozenset({errno.EROFS, errno.EIO, errno.ESTALE, errno.EFBIG})
_NETWORK_ERRORS = frozenset({errno.ENETUNREACH, errno.ENETDOWN, errno.EHOSTUNREACH, errno.EHOSTDOWN})


def is_pod(environment: Mapping[str, str] = os.environ) -> bool:
    """Return whether a process with these variables runs on Kubernetes, which sets this one in every pod."""
    return "KUBERNETES_SERVICE_HOST" in environment


def classify(error: BaseException) -> Cause:
    """Return the class of an error; the errors that it was raised from count too."""
    for part in _chain(error):
        if isinstance(part, ConfigError):
            is_data = any(_DATA_PLACES.fullmatch(problem.where) for problem in part.problems)
            return Cause.DATA if is_data else Cause.SETTINGS
        # Also in the user's code: a server that does not answer may answer after a restart.
        if isinstance(part, OSError) and (system_cause := classify_system_error(part)):
            return system_cause
        text = f"{type(part).__module__}.{_describe_types(part)}: {part}"
        for cause, pattern in _PATTERNS:
            if re.search(pattern, text, re.DOTALL):
                return cause
    frame = find_frame(error)
    return Cause.USER_CODE if frame is None else _classify_file(frame.filename)


def classify_system_error(error: OSError) -> Cause | None:
    """Return the cause if the filesystem or the network failed; None if the error is about the file itself."""
    if error.errno in _DISK_FULL_ERRORS:
        return Cause.DISK_FULL
    if error.errno in _STORAGE_ERRORS:
        return Cause.STORAGE
    if isinstance(error, (ConnectionError, TimeoutError)) or error.errno in _NETWORK_ERRORS:
        return Cause.NETWORK
    return None


def classify_failed_save(reason: str) -> Cause:
    """Return why a checkpoint could not be written, from the text of its writer."""
    return Cause.DISK_FULL if re.search(_DISK_FULL_TEXT, reason) else Cause.STORAGE


def find_place(error: BaseException) -> str:
    """Return the file, line and function that the error comes from, as `model.py:12 in forward`."""
    frame = find_frame(error)
    if frame is None:
        return ""
    path = Path(frame.filename)
    name = path.relative_to(TRAINER_ROOT.parent) if path.is_relative_to(TRAINER_ROOT) else path
    return f"{name}:{frame.lineno} in {frame.name}"


def find_user_place(innermost: FrameType | None) -> str:
    """Return the file, line and function outside the trainer that a thread is in, or an empty string.

    In the trainer and in torch, a thread that makes no progress may be waiting for another rank. Sources are not read,
    because a filesystem that hangs may be the reason.
    """
    for frame, line in walk_stack(innermost) if innermost else ():
        path = Path(frame.f_code.co_filename)
        if not _is_standard_library(str(path)):
            may_wait = path.is_relative_to(TRAINER_ROOT) or _is_library(str(path))
            return "" if may_wait else f"{path}:{line} in {frame.f_code.co_name}"
    return ""


def find_frame(error: BaseException) -> FrameSummary | None:
    """Return the innermost frame outside Python and torch; the frames inside them only show which call failed."""
    frames = extract_tb(error.__traceback__)
    outside = [frame for frame in frames if not _is_library(frame.filename)]
    return next(reversed(outside or frames), None)


def _chain(error: BaseException) -> Iterator[BaseException]:
    part: BaseException | None = error
    while part is not None:
        yield part
        part = part.__cause__


def _describe_types(error: BaseException) -> str:
    """Return the names of the error's class and its bases, the most specific last: `RuntimeError OutOfMemoryError`."""
    names = [kind.__name__ for kind in type(error).__mro__ if kind not in (object, BaseException, Exception)]
    return " ".join(reversed(names))


def _classify_file(filename: str) -> Cause:
    path = Path(filename)
    if not path.is_relative_to(TRAINER_ROOT):
        return Cause.USER_CODE
    return Cause.DATA if path.is_relative_to(TRAINER_ROOT / "data") else Cause.TRAINER


def _is_library(filename: str) -> bool:
    for folder in _INSTALLED:
        if folder in filename:
            return filename.rpartition(folder)[2].startswith(tuple(f"{name}/" for name in _LIBRARIES))
    return _is_standard_library(filename)


def _is_standard_library(filename: str) -> bool:
    is_installed = any(folder in filename for folder in _INSTALLED)
    return not is_installed and filename.startswith((_STANDARD_LIBRARY, "<"))
