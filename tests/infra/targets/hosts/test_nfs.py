"""Storages that one of the hosts serves: rules of the description, and what the pre-flight requires."""

from __future__ import annotations

from typing import Any

from cluster.inventory import ServedFilesystem
from infra.targets.hosts.assign import assign_hosts
from infra.targets.hosts.nfs import list_served
from infra.targets.hosts.preflight.across import build_probe
from infra.targets.hosts.preflight.facts import Mount, Peer
from infra.targets.hosts.preflight.judge import judge_host
from infra.targets.hosts.preflight.nfs import check_nfs
from infra.targets.hosts.validate import validate_hosts
from tests.infra.targets.hosts.specs import changed, load, section_of, subject

SERVED = changed("storage", "shared", "kind", value="nfs")


def with_nfs(**fields: str) -> dict[str, Any]:
    return SERVED | {"hosts": SERVED["hosts"] | {"nfs": fields}}


def find_issues(data: dict[str, Any]) -> list[tuple[str, str]]:
    return [(issue.where, issue.message) for issue in validate_hosts(load(data)) if issue.level == "error"]


def judge(host: str, data: dict[str, Any] = SERVED, **facts: Any) -> list[tuple[str, str]]:
    return [(problem.code, problem.message) for problem in check_nfs(subject(host, data, **facts))]


def test_the_controller_serves_by_default() -> None:
    spec = load(SERVED)
    served = ServedFilesystem(mount="/shared", node="controller", folder="/srv/muster/shared")
    assert list_served(spec, section_of(spec)) == (served,)
    spec = load(with_nfs(server="rack1-2", folder="/data"))
    served = ServedFilesystem(mount="/shared", node="gpu-2", folder="/data/shared")
    assert list_served(spec, section_of(spec)) == (served,)
    assert list_served(load(), section_of(load())) == ()


def test_a_valid_description_has_no_issues() -> None:
    assert find_issues(SERVED) == find_issues(with_nfs(server="rack1-1", folder="/data")) == []


def test_a_server_without_a_filesystem_is_refused() -> None:
    data = changed("hosts", "nfs", value={"server": "head"})
    assert find_issues(data) == [("hosts.nfs", "has no effect: no storage is of kind 'nfs'")]


def test_a_server_that_is_no_node_is_refused() -> None:
    message = "'nas' is not a host with a role; allowed: head, rack1-1, rack1-2"
    assert find_issues(with_nfs(server="nas")) == [("hosts.nfs.server", message)]


def test_a_folder_on_the_shared_filesystem_itself_is_refused() -> None:
    message = "'/shared/data' is inside the mount of storage 'shared' ('/shared')"
    assert find_issues(with_nfs(folder="/shared/data")) == [("hosts.nfs.folder", message)]


def test_hosts_that_can_serve_and_mount_have_no_problem() -> None:
    assert judge("head", mounts={}, free_mb={"/": 100_000, "/srv/muster": 100_000}) == []
    assert judge("rack1-1", mounts={}, nfs=True) == []
    # Nothing has to be mounted there already.
    assert [problem.code for problem in judge_host(subject("rack1-1", SERVED, mounts={}))] == []


def test_what_stands_in_the_way_is_named() -> None:
    assert judge("head", mounts={}, free_mb={"/srv/muster": 700}) == [
        ("host_disk", "/srv/muster has 0.7 GB free; allowed: 20 GB or more")
    ]
    assert judge("head", mounts={}, active=frozenset({"nfs-ganesha"})) == [
        ("host_nfs_server", "nfs-ganesha runs already, and muster would replace its configuration")
    ]
    assert judge("rack1-1", mounts={}) == [
        ("host_nfs_client", "its kernel cannot mount NFS (there is no module nfsv4)")
    ]
    mounts = {"/shared": Mount("nas:/export", "nfs4", read_only=False)}
    assert judge("rack1-1", mounts=mounts, nfs=True) == [
        ("host_mount", "nas:/export is mounted at /shared; allowed: nothing, because muster mounts it")
    ]


def test_the_others_try_the_servers_port_and_it_reads_its_free_space() -> None:
    spec = load(SERVED)
    section, assigned = section_of(spec), assign_hosts(section_of(spec))
    assert Peer("head", "10.0.0.10", 2049) in build_probe(spec, section, assigned, "rack1-1").peers
    probe = build_probe(spec, section, assigned, "head")
    assert probe.folders == ("/srv/muster",)
    assert all(peer.port != 2049 for peer in probe.peers)
