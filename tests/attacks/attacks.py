"""The eleven attacks that a review of the cluster described, and what must stop each of them. Data only.

A test says which attack it plays by `@pytest.mark.attack(number)`; a table of SECURITY.md is generated from both.
"""

from __future__ import annotations

from dataclasses import dataclass

from tests.fault_matrix.rows import ANYWHERE, CLOUD, CLUSTER, PROCESSES, Place


@dataclass(frozen=True)
class Attack:
    """An attack, and what is shown about it."""

    severity: str
    attack: str
    stopped_by: str
    needs: tuple[Place, ...]
    """Places of which one must have a test: a test of functions alone does not show that a user gets nowhere."""


ATTACKS: dict[int, Attack] = {
    1: Attack(
        "critical",
        "a job user speaks NFS to EFS, directly or through the TLS tunnel of a node, as uid 0; or replaces packages on "
        "the shared filesystem that nodes install as root",
        "firewall rules that let only root connect; the filesystem's policy, which requires TLS and mount targets; "
        "checksums of packages",
        PROCESSES,
    ),
    2: Attack(
        "high",
        "a user connects to torch's rendezvous in the job of another, which unpickles what it receives",
        "firewall rules between users on every node; a rendezvous id and port that cannot be guessed; no pickles "
        "between ranks of the trainer",
        CLUSTER,
    ),
    3: Attack(
        "high",
        "a user logs in to nodes or the controller without a job, reads temporary files and jobs of others, or leaves "
        "processes behind",
        "`pam_slurm_adopt`, `AllowUsers`, private folders of jobs, `PrivateData`, the epilog",
        CLUSTER,
    ),
    4: Attack(
        "high",
        "somebody uses a published vulnerability of Slurm or of a package that is installed",
        "versions are compared with a table of vulnerabilities; `muster upgrade` and `muster image refresh` replace "
        "them on a running cluster",
        ANYWHERE,
    ),
    5: Attack(
        "high",
        "root of one node uses its role or the Slurm key elsewhere, or submits jobs as root",
        "roles work only inside the VPC and read only their own machine's host key; `DisableRootJobs`; `muster rotate "
        "keys`; a host key per node",
        CLUSTER,
    ),
    6: Attack(
        "medium",
        "a broken-into machine forges the report of another, writes garbage, or points a command at another machine",
        "rights by role; unreadable reports stop no command; machines are found by their tags, not by reports",
        CLOUD,
    ),
    7: Attack(
        "medium",
        "a stolen controller role launches other machines, or machines with other rights",
        "conditions of its policy on type, template, image, network, role and tags",
        CLOUD,
    ),
    8: Attack(
        "medium",
        "an author of a stack file runs programs as root by keys of `slurm.extra`",
        "keys that run programs, load code or change who is trusted are refused",
        ANYWHERE,
    ),
    9: Attack(
        "medium",
        "the origin of a download serves another file, with checksums to match",
        "checksums, digests and fingerprints in this repository; what has none is named below",
        ANYWHERE,
    ),
    10: Attack(
        "medium",
        "an error that mentions cgroups makes `up` lift the limits of all jobs",
        "limits are lifted only by `slurm.cgroups: none`",
        ANYWHERE,
    ),
    11: Attack(
        "low",
        "a run's metrics contain HTML for the browser of whoever reads the report; a person's drain that mentions "
        "muster is undone",
        "what a run wrote is escaped; only reasons that begin like muster's and that Slurm's user set are undone",
        PROCESSES,
    ),
}
