"""One rank of the ready gate: join all other ranks over the fabric and report each stage that is reached.

    srun --ntasks-per-node=1 python -m trainer.gate MASTER_HOST MASTER_ADDRESS TIMEOUT [gpu]

With `gpu`, torch must also find a GPU and compile a function for it: most presets train with torch.compile.

Each stage is a line, `muster-gate {...}`, so the last line of a rank that hangs or dies shows its host and stage. The
line has `"unanswered": true` if the master's node does not answer this one: such a rank is cut off, not merely slow.
"""

from __future__ import annotations

import gc
import json
import os
import socket
import sys
import time

PREFIX = "muster-gate"
# Below the range from which the kernel assigns ports to outgoing connections, so that none is taken by chance.
PORTS = range(20000, 30000)
COMPILE_TIMEOUT_S = 120.0
MIN_TIMEOUT_S = 5.0
# The kernel of a node that can be reached answers at once, however busy its processes are, even if nothing listens. The
# limit includes that a packet is lost twice: the kernel sends it again after 1 and 3 s.
ANSWER_TIMEOUT_S = 5.0
RETRY_S = 0.2


def main() -> int:
    """Run the gate on this rank and return the exit status."""
    master_host, master, end = sys.argv[1], sys.argv[2], time.monotonic() + float(sys.argv[3])
    rank, world_size = int(os.environ["SLURM_PROCID"]), int(os.environ["SLURM_NTASKS"])
    host = os.environ["SLURMD_NODENAME"]
    port = choose_port(int(os.environ["SLURM_JOB_ID"]))
    is_master = host == master_host
    report(host, rank, "started")
    # Before the import: on a busy machine, the job may end before a node that is cut off has imported torch.
    answers = is_master or probe(master, port) != "unanswered"
    if not answers:
        report(host, rank, "started", unanswered=True)
    # Importing torch creates a million permanent objects; garbage collection would take a tenth of the import's time.
    gc.disable()
    from trainer import world  # noqa: PLC0415  # so that "started" is reported before the slow import

    report(host, rank, "imported", **({} if answers else {"unanswered": True}))
    if "gpu" in sys.argv[4:]:
        timeout_s = min(COMPILE_TIMEOUT_S, remaining(end, time.monotonic()) / 2)
        if not compile_for_gpu(host, rank, timeout_s):
            return 1
    try:
        if not is_master:
            wait_for_store(host, rank, (master_host, master, port), end)
        store = world.open_store(master, port, is_master, remaining(end, time.monotonic()))
        report(host, rank, "connected")
        member = world.describe_member(rank, world_size, 0, master)
        world.join(store, member, remaining(end, time.monotonic()))
        report(host, rank, "joined", address=member.address, device=member.device)
        report(host, rank, "passed", sum=world.check_sum(member))
        world.leave(store, is_master, world_size)
    except world.WorldError as error:
        report(host, rank, "failed", error=first_line(error), missing=[rank for rank, _ in error.missing])
        return 1
    except RuntimeError as error:
        report(host, rank, "failed", error=first_line(error))
        return 1
    return 0


def wait_for_store(host: str, rank: int, store: tuple[str, str, int], end: float) -> None:
    """Wait until the master (host, address, port) serves its store; report whether its node answers meanwhile.

    Return at `end` even if the store is not served, and raise RuntimeError if the node does not answer by then.
    """
    master_host, address, port = store
    waits_until = time.monotonic() + remaining(end, time.monotonic())
    before = "accepted"
    while (now := probe(address, port)) != "accepted":
        if now != before:
            report(host, rank, "waiting", **({"unanswered": True} if now == "unanswered" else {}))
            before = now
        if time.monotonic() > waits_until:
            break
        time.sleep(RETRY_S)
    if now == "unanswered":
        raise RuntimeError(f"no answer from {master_host} ({address}:{port})")


def probe(address: str, port: int) -> str:
    """Return what a connection gets: accepted, refused (nothing listens there yet) or unanswered."""
    try:
        socket.create_connection((address, port), timeout=ANSWER_TIMEOUT_S).close()
    except ConnectionRefusedError:
        return "refused"
    except OSError:
        return "unanswered"
    return "accepted"


def compile_for_gpu(host: str, rank: int, timeout_s: float) -> bool:
    """Compile a function for this node's GPU; report and return whether that worked."""
    from trainer import compile_check, world  # noqa: PLC0415  # see main

    report(host, rank, "compiling")
    try:
        device = world.detect_device(0)
        if device == "cpu":
            raise compile_check.CompileError("torch finds no GPU; `nvidia-smi` on the node shows more")
        compile_check.check_compile(device, timeout_s)
    except (compile_check.CompileError, world.DeviceError) as error:
        report(host, rank, "failed", error=first_line(error))
        return False
    report(host, rank, "compiled")
    return True


def remaining(end: float, now: float) -> float:
    """Return the seconds that a wait may take, at least MIN_TIMEOUT_S.

    The job is killed soon after `end`: whatever was slow before must leave time to report which rank did not join.
    """
    return max(MIN_TIMEOUT_S, end - now)


def choose_port(job_id: int) -> int:
    """Return the port of the store; jobs on the same node get different ones."""
    return PORTS[job_id % len(PORTS)]


def report(host: str, rank: int, stage: str, **fields: object) -> None:
    """Print a stage as one line.

    It is a single write. If output is unbuffered, print makes several, and ranks that share a pipe would mix lines.
    """
    sys.stdout.write(f"{PREFIX} {json.dumps({'host': host, 'rank': rank, 'stage': stage, **fields})}\n")
    sys.stdout.flush()


def first_line(error: Exception) -> str:
    """Return the first line of an error's message, or its type if there is no message."""
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    # An orderly shutdown of torch takes 0.4 s of CPU per node and proves nothing.
    os._exit(code)
