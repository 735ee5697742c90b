"""The trainer finds the memory limits of its process wherever control groups are mounted."""

from __future__ import annotations

import pytest

from trainer.host import list_memory_groups

V1_PARTS = """38 31 0:35 / /sys/fs/cgroup/blkio rw,relatime - cgroup cgroup rw,blkio
35 31 0:32 / /sys/fs/cgroup/memory rw,relatime shared:9 - cgroup cgroup rw,memory
"""
UNIFIED = "29 22 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"
LOCAL_NODE = """1018 1017 0:71 / / rw,relatime - overlay overlay rw,lowerdir=/a
1115 1018 0:38 / /sys/fs/cgroup rw,relatime - cgroup2 none rw
1120 1118 0:33 ROOT /run/cgv1/devices rw,relatime - cgroup none rw,devices
1122 1118 0:32 ROOT /run/cgv1/memory rw,relatime - cgroup none rw,memory
"""


@pytest.mark.parametrize(
    ("cgroup", "mountinfo", "groups"),
    [
        pytest.param("0::/a/b\n", UNIFIED, ["/sys/fs/cgroup/a/b", "/sys/fs/cgroup/a", "/sys/fs/cgroup"], id="v2"),
        pytest.param(
            "4:memory:/a\n3:blkio:/b\n", V1_PARTS, ["/sys/fs/cgroup/memory/a", "/sys/fs/cgroup/memory"], id="v1"
        ),
        pytest.param(
            "4:memory:/slurm/job_7\n0::/system.slice\n",
            LOCAL_NODE.replace("ROOT", "/"),
            [
                *("/sys/fs/cgroup/system.slice", "/sys/fs/cgroup"),
                *("/run/cgv1/memory/slurm/job_7", "/run/cgv1/memory/slurm", "/run/cgv1/memory"),
            ],
            id="a job on a node of a local cluster",
        ),
        pytest.param(
            "4:memory:/docker/893/slurm\n",
            LOCAL_NODE.replace("ROOT", "/docker/893"),
            ["/run/cgv1/memory/slurm", "/run/cgv1/memory"],
            id="only the group of the container is mounted",
        ),
        pytest.param("4:memory:/other\n", LOCAL_NODE.replace("ROOT", "/docker/893"), [], id="not mounted"),
        pytest.param("0::/\n", "", [], id="no control groups"),
    ],
)
def test_the_groups_of_a_process_are_found_where_they_are_mounted(
    cgroup: str, mountinfo: str, groups: list[str]
) -> None:
    assert [str(group) for group in list_memory_groups(cgroup, mountinfo)] == groups
