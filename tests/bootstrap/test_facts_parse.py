"""Parsing the output of collect.sh into Facts, including the states of Slurm's nodes."""

from __future__ import annotations

import subprocess
from pathlib import Path

from bootstrap.facts.model import Disk, FileFact, Home, UserFact
from bootstrap.facts.parse import parse_facts

TEXT = """\
stat\t/etc/slurm/slurm.key\t600\tslurm:slurm
sha256\tabc\t/etc/slurm/slurm.key
marker\tslurmd\tfeed
marker\tempty\t
enabled\tslurmd\tyes
enabled\tsackd\tno
active\tslurmd\tfailed
active\tssh\tactive
active\tsackd\tinactive
package\tslurmd\t24.11.5-4\tinstalled
package\tsudo\t1.9\tconfig-files
user\talice\t2001\tmuster\t/shared/home/alice\t/bin/bash
user\tdebian\t1000\t\t/home/debian\t/bin/sh
cgroup\tv1
job_network\topen: not supported
hostname\tgpu-1
container\tyes
hosts\tmerged
environment\tcomplete
bundle\t0123
home\talice\t2001\tyes
node\tNodeName=gpu-1 Arch=x86_64 State=IDLE ThreadsPerCore=1
assoc\ttoy|muster|
assoc\ttoy|muster|alice
admin\talice|Administrator
admin\tbob|None
distribution\tubuntu 22.04
kernel\t6.8.0-1021-aws
mount\t/\text4\t/dev/sda1
mount\t/shared\tlustre\t10.0.0.1@tcp:/fs
disk\t/dev/nvme1n1\tAWS1\tAmazon EC2 NVMe Instance Storage
clock\t1700000000.5
"""


def test_every_kind_of_line_is_parsed() -> None:
    facts = parse_facts(TEXT)
    assert facts.files == {"/etc/slurm/slurm.key": FileFact("abc", 0o600, "slurm:slurm")}
    assert facts.markers == {"slurmd": "feed", "empty": ""}
    assert facts.enabled == {"slurmd"}
    assert facts.active == {"ssh"}
    assert facts.loaded == {"slurmd", "ssh"}
    assert facts.packages == {"slurmd": "24.11.5-4"}
    assert facts.users["alice"] == UserFact(2001, "muster", "/shared/home/alice", "/bin/bash")
    assert facts.users["debian"].comment == ""
    assert facts.homes == {"alice": Home(2001, True)}
    assert (facts.cgroup, facts.hostname, facts.container, facts.hosts_merged) == ("v1", "gpu-1", True, True)
    assert (facts.environment_complete, facts.bundle, facts.clock) == (True, "0123", 1700000000.5)
    assert facts.associations == {("toy", "muster", ""), ("toy", "muster", "alice")}
    assert facts.admins == {"alice"}
    assert facts.job_network == "open: not supported"
    assert (facts.distribution, facts.kernel) == ("ubuntu 22.04", "6.8.0-1021-aws")
    assert facts.mounts == {"/": "ext4", "/shared": "lustre"}
    assert facts.mount_sources == {"/": "/dev/sda1", "/shared": "10.0.0.1@tcp:/fs"}
    assert facts.disks == (Disk("/dev/nvme1n1", "AWS1", "Amazon EC2 NVMe Instance Storage"),)
    assert facts.slurm_nodes is not None
    assert facts.slurm_nodes["gpu-1"].usable


def test_minimal_output_is_parsed() -> None:
    facts = parse_facts("cgroup\tnone\nclock\t1\n")
    assert facts.slurm_nodes is None
    assert facts.files == {}
    assert facts.mounts == {}


def test_scripts_pass_shellcheck() -> None:
    room = Path(__file__).parents[2] / "bootstrap"
    done = subprocess.run(
        ["shellcheck", *map(str, room.rglob("*.sh")), str(room / "scripts/muster-env")], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout
