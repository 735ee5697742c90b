"""Judge what nodes have seen of a shared filesystem (scripts/storage-check.sh). Pure functions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

SIZE_MB = 16
"""What each node writes, all at the same time."""
MIN_TOTAL_MBPS = 5.0
"""A disk or a network that works is faster, even one that is busy: a checkpoint of 1 GB would take minutes."""
MAX_CLOCK_OFFSET_S = 1.0
"""As for the clocks of nodes: make, rsync and caches compare times of files with that of the node."""
SEEN_S = 15
"""How long files of other nodes may take to appear, and then the last rename; NFS looks again after a few seconds."""
Answers = Mapping[str, "Answer"]


@dataclass(frozen=True)
class Answer:
    """What the script has printed on one node, in one round: the values of each fact, by its name."""

    facts: Mapping[str, tuple[tuple[str, ...], ...]]

    def first(self, name: str) -> tuple[str, ...]:
        """Return the values of the first fact of this name; empty if there is none."""
        return next(iter(self.facts.get(name, ())), ())

    def numbers(self, name: str) -> tuple[float, ...]:
        """Return the values of the first fact of this name as numbers."""
        return tuple(map(float, self.first(name)))


@dataclass(frozen=True)
class StorageFault:
    """Something that is wrong with a shared filesystem on one node."""

    node: str
    line: str
    fix: str


def parse_answer(text: str) -> Answer:
    """Return what the script has printed."""
    facts: dict[str, tuple[tuple[str, ...], ...]] = {}
    for line in text.splitlines():
        name, *values = line.split("\t")
        facts[name] = (*facts.get(name, ()), tuple(values))
    return Answer(facts)


def judge_written(mount: str, written: Answers) -> Iterator[StorageFault]:
    """Yield what is wrong after the first round."""
    for node, answer in written.items():
        yield from _judge_errors(mount, node, answer, "written")
    if any("written" not in answer.facts for answer in written.values()):
        return
    for node, answer in written.items():
        yield from _judge_owner(mount, node, answer)
        yield from _judge_clock(mount, node, answer)
    yield from _judge_speed(mount, written)


def judge_watched(mount: str, written: Answers, watched: Answers) -> Iterator[StorageFault]:
    """Yield what is wrong after the second round."""
    for node, answer in watched.items():
        yield from _judge_errors(mount, node, answer, "watched")
        unseen = [other for other, *_ in answer.facts.get("unseen", ())]
        if unseen:
            others = ", ".join(unseen)
            line = (
                f"{mount} from {_find_source(written, node)} does not show within {SEEN_S} s what {others} wrote to "
                f"{mount} from {_find_source(written, unseen[0])}"
            )
            yield StorageFault(node, line, f"mount the same filesystem at {mount} on all nodes")
            continue
        yield from _judge_renames(mount, node, answer)


def measure_total(written: Answers) -> float:
    """Return how many MB per second all nodes have written together, until fsync had returned on the slowest."""
    return SIZE_MB * len(written) / max(_measure_seconds(answer) for answer in written.values())


def _judge_errors(mount: str, node: str, answer: Answer, end: str) -> Iterator[StorageFault]:
    error = answer.first("error")
    if error:
        what, message = error[0], error[-1]
        fix = f"write to {mount} as root there; on its server, look for a full disk, quotas, `ro` and `root_squash`"
        yield StorageFault(node, f"{mount} ({_name_source(answer)}): cannot {what}: {message}", fix)
    elif end not in answer.facts:
        yield StorageFault(node, f"{mount}: the check ended early", f"as root on {node}, write to {mount}")


def _judge_owner(mount: str, node: str, answer: Answer) -> Iterator[StorageFault]:
    owner = answer.first("owner")
    if owner != ("1",):
        line = f"{mount} ({_name_source(answer)}): a file given to user 1 belongs to user {owner[0]}"
        yield StorageFault(node, line, "export it with `no_root_squash`, and without a translation of users")


def _judge_clock(mount: str, node: str, answer: Answer) -> Iterator[StorageFault]:
    before, stamped, after = answer.numbers("clock")
    offset = max(stamped - after, 0.0) - max(before - stamped, 0.0)
    if abs(offset) > MAX_CLOCK_OFFSET_S:
        direction = "ahead of" if offset > 0 else "behind"
        line = (
            f"{mount} ({_name_source(answer)}): the server's clock is {abs(offset):.1f} s {direction} this node's; "
            f"allowed: {MAX_CLOCK_OFFSET_S:g} s"
        )
        yield StorageFault(node, line, "let the server and all nodes use the same time servers (`timedatectl`, chrony)")


def _judge_speed(mount: str, written: Answers) -> Iterator[StorageFault]:
    total = measure_total(written)
    if total < MIN_TOTAL_MBPS:
        node = max(written, key=lambda name: _measure_seconds(written[name]))
        line = (
            f"{mount} ({_name_source(written[node])}): {total:.2g} MB/s written with fsync by all nodes together; "
            f"allowed: {MIN_TOTAL_MBPS:g} MB/s or more"
        )
        yield StorageFault(node, line, "look at the disk and the network of its server, and at what else uses them")


def _judge_renames(mount: str, node: str, answer: Answer) -> Iterator[StorageFault]:
    if "old" in answer.facts:
        line = f"{mount}: a file that another node has replaced is still the old one after {SEEN_S} s"
        yield StorageFault(node, line, "mount it without options that cache names or attributes for longer")
        return
    torn, missing = answer.numbers("renames") or (0, 0)
    if torn or missing:
        line = (
            f"{mount}: while another node replaced a file by renaming, it was missing {missing:.0f} times and "
            f"incomplete {torn:.0f} times; allowed: the old or the new one"
        )
        yield StorageFault(node, line, "use a filesystem whose rename is atomic, such as NFS, Lustre or GPFS")


def _measure_seconds(answer: Answer) -> float:
    began, ended = answer.numbers("wrote")
    return max(ended - began, 0.001)


def _name_source(answer: Answer) -> str:
    return (answer.first("source") or ("unknown",))[0]


def _find_source(written: Answers, node: str) -> str:
    return _name_source(written[node]) if node in written else "unknown"
