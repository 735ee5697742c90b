"""Run one node of a training job on Kubernetes: its ranks, a save before the pod ends, and the exit code.

python -m trainer.pod CONFIG [key.sub=value ...]

Every pod of the job runs this for its node; `muster kubernetes render` sets the variables that `Node.read` reads. The
manifests map the exit codes: 0 finished, 1 broken, 2 invalid input and 77 stopped end the job; any other code starts
its pods again, and they resume from the newest checkpoint. Imports no torch.
"""

from __future__ import annotations

import errno
import json
import os
import resource
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainer.checkpoint.folder import CHECKPOINTS_FOLDER, list_published
from trainer.checkpoint.lock_owner import name_self
from trainer.checkpoint.run_lock import FolderInUse, RunLock
from trainer.life.outcome import FILE_VARIABLE, Code
from trainer.life.stop import StopReason
from trainer.pod_signals import TermListener, list_children, warn_ranks

MAX_RANK_RESTARTS = 3
"""How often torchrun starts the ranks again inside the pods after one of them died."""
MAX_STALLED_RESTARTS = 3
"""How often the pods start again without a newer checkpoint; preemptions and pods that never met do not count."""
_FINAL_CODES = {code.name.lower(): code for code in (Code.FINISHED, Code.STOPPED, Code.BROKEN, Code.BAD_INPUT)}
# Stop files that the cluster wrote apply to one start of the pods; a person's stays until it is obeyed.
_CLUSTER_REQUESTS = frozenset(reason.text for reason in StopReason if reason.requeue) | {StopReason.CANCELLED.text}
# What `_wait_for_ranks` requests, as the reason of an outcome, and what the trainer adds if it saves no checkpoints.
_PREEMPTIONS = (StopReason.PREEMPTED.text, StopReason.WARNED.text)
_NOT_REQUEUED = "; not requeued: "
# Errors of a claim that no restart mends; others, such as of a server that does not answer, may be over by then.
_PERMANENT_ERRORS = frozenset((errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTSUP, errno.ENOSYS, errno.ENOTDIR))
# The first pod creates it when its ranks begin.
_BEGAN = ".ranks-began"
_NEVER_BEGAN = "the ranks did not begin"
_POLL_S = 0.5
# Ranks are gone for a moment while torchrun starts them again.
_RANKS_GONE_S = 10.0


class PodError(Exception):
    """An error that ends the pod with an exit code; the message is for the log."""

    def __init__(self, message: str, code: Code) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True, kw_only=True)
class Node:
    """The part of this pod in its job."""

    index: int
    nodes: int
    ranks: int
    head: str
    """Name of the pod with index 0, which holds the rendezvous."""
    port: int
    address: str
    job: str
    """Id of the job, the same after its pods were started again."""
    attempt: str
    """Id of this start of the pods, if Kubernetes has one."""
    folder: Path
    join_timeout_s: int

    @classmethod
    def read(cls, env: Mapping[str, str]) -> Node:
        """Return the node that the variables describe, or raise a PodError that names the first missing one."""
        # A variable is empty if the pod does not have the label that it refers to.
        env = {name: value for name, value in env.items() if value}
        try:
            node = cls(
                index=int(env["JOB_COMPLETION_INDEX"]),
                nodes=int(env["MUSTER_NODES"]),
                ranks=int(env["MUSTER_RANKS"]),
                head=env["MUSTER_HEAD"],
                port=int(env["MUSTER_PORT"]),
                address=env["MUSTER_POD_IP"],
                job=env["MUSTER_JOB"],
                attempt=env["MUSTER_ATTEMPT"],
                folder=Path(env["MUSTER_RUN_FOLDER"]),
                join_timeout_s=int(env["MUSTER_JOIN_TIMEOUT_S"]),
            )
        except KeyError as missing:
            raise PodError(
                f"{missing.args[0]} is not set, or empty; `muster kubernetes render` sets it", Code.BAD_INPUT
            ) from None
        except ValueError as error:
            raise PodError(f"a variable is not a number: {error}", Code.BAD_INPUT) from None
        return node

    @property
    def is_head(self) -> bool:
        """Whether this pod holds the rendezvous, and prepares the run folder."""
        return self.index == 0


def main(arguments: Sequence[str], env: Mapping[str, str] = os.environ) -> int:
    """Run the node and return the exit code of the pod."""
    term = TermListener().listen()
    try:
        if not arguments:
            raise PodError("no config: python -m trainer.pod CONFIG [key.sub=value ...]", Code.BAD_INPUT)
        return run_node(Node.read(env), arguments, env, term)
    except PodError as error:
        print(f"pod: FAILED: {error}", file=sys.stderr, flush=True)
        return int(error.code)
    except OSError as error:
        # Shared storage may recover; a traceback would end with the code of a broken run, which does not start again.
        print(f"pod: FAILED: {error}; the pods start again", file=sys.stderr, flush=True)
        return int(Code.REQUEUE)


def run_node(node: Node, arguments: Sequence[str], env: Mapping[str, str], term: TermListener) -> int:
    """Train on this node until the run or the pod ends, and return the exit code."""
    check_locked_memory(env, resource.getrlimit(resource.RLIMIT_MEMLOCK)[0])
    if (code := find_final_code(node)) is not None:
        _say(f"the run of this job has ended already ({code.name.lower()}): {node.folder / 'outcome.json'}")
        return int(code)
    if node.is_head:
        prepare_folder(node)
    elif not _wait_for_head(node, term):
        return int(Code.REQUEUE)
    _say(f"node {node.index} of {node.nodes}, {node.ranks} ranks, rendezvous at {node.head}:{node.port}, {node.folder}")
    torchrun = subprocess.Popen(build_command(node, arguments), env={**env, **build_variables(node, env)})
    _wait_for_ranks(torchrun, node, term)
    return conclude(node)


def check_locked_memory(env: Mapping[str, str], limit: int) -> None:
    """Raise a PodError if the fabric needs locked memory and the container runtime limits it.

    A container cannot raise the limit itself, and NCCL would fail after minutes with an error that does not name it.
    """
    if env.get("NCCL_NET", "Socket") != "Socket" and limit != resource.RLIM_INFINITY:
        message = f"locked memory is limited to {limit} bytes, but {env['NCCL_NET']} needs it unlimited"
        fix = "set LimitMEMLOCK=infinity in the unit of the node's container runtime, or leave out --rdma"
        raise PodError(f"{message}; {fix}", Code.BAD_INPUT)


def find_final_code(node: Node) -> Code | None:
    """Return how the run of this job has ended, None if it goes on.

    A pod that Kubernetes replaces after the others have ended would wait for them in vain.
    """
    # In this order: the first pod sets the outcome of an earlier job aside before it writes the id of this one.
    if _read_text(node.folder / "job") != node.job:
        return None
    with suppress(OSError):
        os.utime(node.folder)  # NFS clients remember names for up to a minute; those of a touched folder are read again
    return _choose_final_code(_read_outcome(node.folder))


def prepare_folder(node: Node) -> None:
    """Remove what the last start left for its own pods; raise a PodError if the folder cannot be used.

    The lock keeps a second job from changing the folder of a living run. The ranks take the lock again.
    """
    try:
        lock = RunLock.take(node.folder, name_self(launcher=node.attempt), say=_say)
    except FolderInUse as error:
        raise PodError(f"{node.folder} is {error}", Code.REQUEUE) from None
    except OSError as error:
        if error.errno not in _PERMANENT_ERRORS:
            raise
        fix = "the claim must be writable for the pod's user and group"
        raise PodError(f"cannot write to {node.folder}: {error.strerror}; {fix}", Code.BAD_INPUT) from None
    try:
        is_restart = _read_text(node.folder / "job") == node.job
        if is_restart:
            _count_restart(node)
        _set_outcome_aside(node.folder)
        (node.folder / _BEGAN).unlink(missing_ok=True)
        if _read_cluster_request(node.folder):
            (node.folder / "stop").unlink(missing_ok=True)
        if not is_restart:
            # Last: with this id, an outcome that is still there would be taken for that of this job.
            (node.folder / "job").write_text(f"{node.job}\n", encoding="utf-8")
    finally:
        lock.release()


def build_command(node: Node, arguments: Sequence[str]) -> list[str]:
    """Return torchrun's command line for this node."""
    # The head's name may not resolve yet when its pod starts.
    head = node.address if node.is_head else node.head
    # A lost node leaves the rendezvous after 3 x 3 s.
    rendezvous = f"is_host={str(node.is_head).lower()},join_timeout={node.join_timeout_s}"
    rendezvous += f",read_timeout={node.join_timeout_s},last_call_timeout=5,keep_alive_interval=3"
    rendezvous += ",keep_alive_max_attempt=3"
    return [
        *(sys.executable, "-m", "torch.distributed.run"),
        *(f"--nnodes={node.nodes}", f"--nproc-per-node={node.ranks}", f"--max-restarts={MAX_RANK_RESTARTS}"),
        *("--monitor-interval=0.5", "--rdzv-backend=c10d", f"--rdzv-endpoint={head}:{node.port}"),
        *(f"--rdzv-conf={rendezvous}", f"--rdzv-id={node.attempt}", f"--local-addr={node.address}"),
        *("-m", "trainer", *arguments, f"run.folder={node.folder}"),
    ]


def build_variables(node: Node, env: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that torchrun and the ranks need, as slurm/jobs/train.sbatch sets them."""
    defaults = {"OMP_NUM_THREADS": "1", "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "120", "TORCH_CPP_LOG_LEVEL": "FATAL"}
    return {
        **{name: value for name, value in defaults.items() if name not in env},
        FILE_VARIABLE: str(node.folder / "outcome.json"),
        "PYTHONUNBUFFERED": "1",
        # Each start of the ranks gets its own store: a shared one keeps the keys of dead ranks.
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
    }


def conclude(node: Node) -> int:
    """Print how this start of the pods ended, and return the exit code."""
    outcome = _read_outcome(node.folder)
    final = _choose_final_code(outcome)
    code = Code.REQUEUE if final is None else final  # 0 is a code
    reason = _read_reason(node.folder, outcome)
    _say(f"{code.name.lower()} at step {outcome.get('step', 'unknown')}: {reason}")
    before = node.folder / ".outcome-before.json"
    if code is Code.BAD_INPUT and node.is_head and before.exists():
        # A start that is refused leaves the run as it was.
        before.replace(node.folder / "outcome.json")
    return int(code)


def _wait_for_head(node: Node, term: TermListener) -> bool:
    """Wait until the name of the head pod resolves; return False if it does not in time, or if the pod has to end."""
    deadline = time.monotonic() + node.join_timeout_s
    while not term.is_terminated:
        with suppress(OSError):
            return bool(socket.getaddrinfo(node.head, node.port))
        if time.monotonic() > deadline:
            _say(f"{node.head} does not resolve after {node.join_timeout_s} s: is the first pod running, and DNS?")
            return False
        term.wait(_POLL_S)
    return False


def _wait_for_ranks(torchrun: subprocess.Popen[bytes], node: Node, term: TermListener) -> None:
    """Wait until torchrun has ended; after SIGTERM, let all ranks of the job save and end.

    If this pod has no ranks that could obey, because torchrun waits for other pods, then torchrun is ended.
    """
    requested, ranks_seen, have_begun = False, 0.0, not node.is_head
    while torchrun.poll() is None:
        if not have_begun and list_children(torchrun.pid):
            have_begun = True
            with suppress(OSError):
                (node.folder / _BEGAN).touch()
        if not term.is_terminated:
            term.wait(_POLL_S)
            continue
        if not requested:
            requested, ranks_seen = True, time.monotonic()
            _request_save(node.folder)
            warn_ranks(torchrun.pid)
        is_decided = _read_outcome(node.folder).get("outcome") in {code.name.lower() for code in Code}
        if is_decided or list_children(torchrun.pid):
            ranks_seen = time.monotonic()
        elif time.monotonic() - ranks_seen > _RANKS_GONE_S:
            torchrun.terminate()
        time.sleep(_POLL_S)


def _request_save(folder: Path) -> None:
    _say("SIGTERM: all ranks of the job save and end; its pods start again, unless the job was deleted")
    stop = folder / "stop"
    if stop.exists():
        return  # a person's request has priority
    try:
        part = folder / f".stop.{os.getpid()}.{socket.gethostname()}"
        part.write_text(f"{StopReason.PREEMPTED.text}\n", encoding="utf-8")
        part.replace(stop)
    except OSError as error:
        _say(f"cannot write {stop}: {error.strerror}")


def _count_restart(node: Node) -> None:
    """Record that the pods start again, in the format of train.sbatch; raise a PodError if they make no progress."""
    published = list_published(node.folder / CHECKPOINTS_FOLDER)
    step = f"{published[0].step:08d}" if published else "none"
    reason = _read_reason(node.folder, _read_outcome(node.folder))
    lines = [line for line in _read_text(node.folder / "requeues").splitlines() if line.startswith(f"{node.job} ")]
    stalled = [line for line in lines if f" step={step} " in line and _is_to_blame(line.split(" ", 4)[-1])]
    if len(stalled) >= MAX_STALLED_RESTARTS and _is_to_blame(reason):
        message = f"{reason}; not started again: no newer checkpoint than {step} in {len(stalled)} restarts"
        raise PodError(message, Code.BROKEN)
    stamp = time.strftime("%Y-%m-%dT%H:%M:%S")
    with (node.folder / "requeues").open("a", encoding="utf-8") as file:
        file.write(f"{node.job} step={step} requeue={len(lines) + 1} {stamp} {reason}\n")
    _say(f"restart {len(lines) + 1}, newest checkpoint: {step}; {reason}")


def _read_reason(folder: Path, outcome: Mapping[str, Any]) -> str:
    """Return why a start of the pods ended."""
    reason, request = str(outcome.get("reason", "")), _read_cluster_request(folder)
    if not reason:
        return request or ("a rank or a node was lost" if (folder / _BEGAN).exists() else _NEVER_BEGAN)
    if _choose_final_code(outcome) is not None:
        return reason
    reason = reason.partition(_NOT_REQUEUED)[0]
    # A JobSet also ends the other pods after a failure; only a request that came before the failure led to it.
    is_cause = request and not reason.startswith(request) and _is_older(folder / "stop", folder / "outcome.json")
    return f"{request}: {reason}" if is_cause else reason


def _is_to_blame(reason: str) -> bool:
    """Return whether a restart for this reason counts: not if the cluster ended the pods, or they never met."""
    return not reason.startswith((*_PREEMPTIONS, _NEVER_BEGAN))


def _is_older(path: Path, other: Path) -> bool:
    with suppress(OSError):
        return path.stat().st_mtime_ns < other.stat().st_mtime_ns
    return False


def _choose_final_code(outcome: Mapping[str, Any]) -> Code | None:
    """Return the code of an outcome after which the pods do not start again, None for any other."""
    # If a run without checkpoints obeys the signal before the stop file, the trainer stops it: under Slurm, the signal
    # may mean the time limit, which the run would reach again.
    if str(outcome.get("reason", "")).partition(_NOT_REQUEUED)[0].lower() in _PREEMPTIONS:
        return None
    return _FINAL_CODES.get(outcome.get("outcome", ""))


def _set_outcome_aside(folder: Path) -> None:
    """Keep the outcome of an ended run until the trainer accepts this start, which deletes it; remove any other.

    That of a refused start is removed: it is not the run's.
    """
    outcome = folder / "outcome.json"
    if _choose_final_code(_read_outcome(folder)) not in (None, Code.BAD_INPUT):
        outcome.replace(folder / ".outcome-before.json")
    else:
        outcome.unlink(missing_ok=True)


def _read_outcome(folder: Path) -> dict[str, Any]:
    try:
        content = json.loads(_read_text(folder / "outcome.json"))
    except ValueError:
        return {}
    return content if isinstance(content, dict) else {}


def _read_cluster_request(folder: Path) -> str:
    """Return the text of a stop file that the cluster wrote, empty if there is none or a person's."""
    text = _read_text(folder / "stop").lower()
    return text if text in _CLUSTER_REQUESTS else ""


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def _say(text: str) -> None:
    print(f"pod: {text}", flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
