"""Bad values of a training job: each message names the option, the value and the fix."""

from __future__ import annotations

from dataclasses import replace

import pytest

from k8s.job import TrainingJob, check_job

GOOD = TrainingJob(name="llama", image="registry.example.org/trainer:1", arguments=("tiny-llama",), claim="runs")
BAD: list[tuple[dict[str, object], str]] = [
    ({"name": "Llama"}, "--name: 'Llama' cannot name the pods; use at most 40 of a-z, 0-9 and '-'"),
    ({"name": "a" * 41}, "cannot name the pods"),
    ({"name": "a-"}, "cannot name the pods"),
    ({"name": ""}, "--name: '' cannot name the pods"),
    ({"form": "statefulset"}, "--form: 'statefulset' is not a form; use one of: jobset, job"),
    ({"image": ""}, "--image: '' is not an image; build trainer/Dockerfile"),
    ({"image": "a b"}, "--image: 'a b' is not an image"),
    ({"tensorboard_image": "a b"}, "--tensorboard-image: 'a b' is not an image"),
    ({"namespace": "My_Space"}, "--namespace: 'My_Space' is not a name"),
    ({"claim": "Runs"}, "--claim: 'Runs' is not a name"),
    ({"data_claim": "/data"}, "--data-claim: '/data' is not a name"),
    ({"priority_class": "very high"}, "--priority-class: 'very high' is not a name"),
    ({"pull_secret": "_"}, "--pull-secret: '_' is not a name"),
    ({"nodes": 0}, "--nodes: 0 is not allowed; use 1 to 10000"),
    ({"gpus": -1}, "--gpus: -1 is not allowed; use 0 to 64"),
    ({"ranks": 5000}, "--ranks: 5000 is not allowed; use 0 to 1024"),
    ({"gpus": 8, "ranks": 4}, "--ranks: 4 ranks cannot share 8 GPUs; leave out --ranks"),
    ({"user": 0}, "--user: 0 is not allowed; use 1 to 2147483647"),
    ({"grace_s": 30}, "--grace-s: 30 is not allowed; use 31 to 7200"),
    ({"max_restarts": -1}, "--max-restarts: -1 is not allowed"),
    ({"join_timeout_s": 1}, "--join-timeout-s: 1 is not allowed; use 30 to 86400"),
    ({"cpus": "many"}, "--cpus: 'many' is not a quantity; write a Kubernetes quantity"),
    ({"memory": "64 GB"}, "--memory: '64 GB' is not a quantity"),
    ({"gpu_resource": "gpu"}, "--gpu-resource: 'gpu' is not the resource of a device plugin"),
    ({"gpus": 8, "rdma": {"hca": 1}}, "--rdma: 'hca' is not the resource of a device plugin"),
    ({"gpus": 8, "rdma": {"rdma/hca": 0}}, "--rdma: rdma/hca=0 requests nothing"),
    ({"rdma": {"rdma/hca": 1}}, "--rdma: has no effect without GPUs: ranks on CPUs use TCP; request --gpus"),
    (
        {"gpus": 8, "rdma": {"vpc.amazonaws.com/efa": 32, "rdma/hca": 1}},
        "--rdma: NCCL uses one fabric, but vpc.amazonaws.com/efa, rdma/hca are of different ones",
    ),
    ({"claim": ""}, "--claim: checkpoints need storage that all pods share; name a ReadWriteMany claim"),
    ({"storage": "1Ti"}, "--storage: has no effect on the existing claim 'runs'"),
    ({"storage_class": "efs"}, "--storage-class: has no effect on the existing claim 'runs'"),
    ({"claim": "", "storage": "lots"}, "--storage: 'lots' is not a quantity"),
    ({"topology": "a b"}, "--topology: 'a b' is not a label"),
    ({"exclusive": True}, "--exclusive: needs the domain that no other JobSet may use; name the label"),
    (
        {"exclusive": True, "topology": "rack", "form": "job"},
        "--exclusive: is not available with --form job; use --form jobset",
    ),
    ({"node_selector": {"a b": "c"}}, "--node-selector: 'a b=c' is not a label; write LABEL=VALUE"),
    ({"tolerations": ("a b",)}, "--toleration: 'a b' is not a taint; write KEY or KEY=VALUE"),
]


def test_a_good_job_has_no_problems() -> None:
    assert check_job(GOOD) == []


@pytest.mark.parametrize(("values", "message"), BAD, ids=[str(values) for values, _ in BAD])
def test_bad_values_are_named(values: dict[str, object], message: str) -> None:
    (problem,) = check_job(replace(GOOD, **values))
    assert message in str(problem)


def test_all_problems_are_reported_at_once() -> None:
    assert len(check_job(replace(GOOD, name="A", nodes=0, cpus="x", exclusive=True))) == 4
