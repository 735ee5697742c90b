"""Nebius's API on this machine: a gRPC server with the services and messages of their SDK, that keeps resources.

Operations take some polls, names are unique, what is in use cannot be deleted, immutable fields cannot be changed, and
errors have the codes and details of the API. What instances are, for example containers, decides `machines`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from ipaddress import IPv4Network
from itertools import count
from threading import RLock
from typing import Any, Protocol

import grpc
from nebius.base.protos.dynamic import REGISTRY

from tests.infra.targets.nebius.immutable_fields import find_changes

Message = dict[str, Any]
Code = grpc.StatusCode
COMPUTE, VPC = "nebius.compute.v1", "nebius.vpc.v1"
SERVICES = {
    "Instance": COMPUTE,
    "Disk": COMPUTE,
    "GpuCluster": COMPUTE,
    "Filesystem": COMPUTE,
    "Network": VPC,
    "Subnet": VPC,
    "SecurityGroup": VPC,
    "SecurityRule": VPC,
}
READY = {"Instance": "RUNNING", "GpuCluster": None}
# Fields of specs that name another resource, by the kind that has them.
REFERENCES: dict[str, tuple[Callable[[Message], list[str]], ...]] = {
    "Subnet": (lambda spec: [spec["networkId"]],),
    "SecurityGroup": (lambda spec: [spec["networkId"]],),
    "SecurityRule": (lambda spec: [i for i in [spec.get("ingress", {}).get("sourceSecurityGroupId")] if i],),
    "Instance": (
        lambda spec: [interface["subnetId"] for interface in spec["networkInterfaces"]],
        lambda spec: [g["id"] for interface in spec["networkInterfaces"] for g in interface["securityGroups"]],
        lambda spec: [entry["existingFilesystem"]["id"] for entry in spec.get("filesystems", [])],
        lambda spec: [spec["gpuCluster"]["id"]] if "gpuCluster" in spec else [],
    ),
}


class Machines(Protocol):
    """What instances are."""

    def start(self, instance: Message) -> tuple[str, str]:
        """Start the machine of an instance; return its private and its public address."""
        ...

    def stop(self, instance: Message) -> None:
        """Remove it."""
        ...


class NoMachines:
    """Instances that are only entries."""

    def __init__(self) -> None:
        self._private = IPv4Network("10.88.0.0/20").hosts()
        self._public = IPv4Network("198.51.100.0/24").hosts()

    def start(self, instance: Message) -> tuple[str, str]:
        return str(next(self._private)), str(next(self._public))

    def stop(self, instance: Message) -> None:
        pass


@dataclass
class Fault:
    """An error for one method of one kind; details as in `nebius.common.v1.ServiceError`, in JSON."""

    method: str
    kind: str
    code: grpc.StatusCode
    message: str
    details: Message = field(default_factory=dict)
    in_operation: bool = False
    """Whether the call is accepted and its operation fails."""
    times: int = 1


@dataclass
class _Operation:
    id: str
    resource: str
    polls: int
    finish: Callable[[], None]
    fault: Fault | None = None
    machine: Future[tuple[str, str]] | None = None
    """The addresses of the machine that starts."""
    done: bool = False


class FakeCloud:
    """The resources of a project, and the operations on them."""

    def __init__(self, machines: Machines | None = None) -> None:
        self.resources: dict[str, Message] = {}
        self.kinds: dict[str, str] = {}
        self.calls: list[str] = []
        self.faults: list[Fault] = []
        self.polls = 1
        """How often an operation has to be asked before it is done."""
        self.answers: dict[str, Message | Callable[[Message], Message]] = {}
        """Answers of methods that only read, by `Service/Method`."""
        self.port = 0
        self._machines = machines or NoMachines()
        self._operations: dict[str, _Operation] = {}
        self._numbers = count(1)
        self._lock = RLock()
        self._starting = ThreadPoolExecutor(8)

    def close(self) -> None:
        """Wait for machines that are starting; those that have not begun never start."""
        self._starting.shutdown(wait=True, cancel_futures=True)

    def of_kind(self, kind: str) -> list[Message]:
        """Return all resources of a kind."""
        return [self.resources[id_] for id_, name in self.kinds.items() if name == kind]

    def fail(self, method: str, kind: str, code: grpc.StatusCode, message: str = "", **options: Any) -> None:
        """Let the next call of a method on a kind fail."""
        self.faults.append(Fault(method, kind, code, message, **options))

    def handle(self, service: str, method: str, request: Message) -> Message:
        """Return the answer to a call; raise _Refusal."""
        _package, _, name = service.rpartition(".")
        with self._lock:
            if name == "OperationService":
                return self._poll(request["id"])
            kind = name.removesuffix("Service")
            self.calls.append(f"{method} {kind}")
            if f"{kind}/{method}" in self.answers:
                answer = self.answers[f"{kind}/{method}"]
                return answer(request) if callable(answer) else answer
            fault = self._take_fault(method, kind)
            if fault and not fault.in_operation:
                raise _Refusal(fault.code, fault.message, fault.details)
            return getattr(self, f"_{method.lower()}")(kind, request, fault)

    def _create(self, kind: str, request: Message, fault: Fault | None) -> Message:
        metadata, spec = request["metadata"], request.get("spec", {})
        if any(
            self.kinds[id_] == kind and other["metadata"]["parentId"] == metadata["parentId"]
            for id_, other in self.resources.items()
            if other["metadata"]["name"] == metadata["name"]
        ):
            raise _Refusal(Code.ALREADY_EXISTS, f"{kind} with name {metadata['name']} already exists")
        for reference in self._references(kind, spec):
            if reference not in self.resources:
                raise _Refusal(Code.NOT_FOUND, f"resource {reference} not found")
        id_ = f"{kind.lower()}-e00{next(self._numbers):04d}"
        resource = {
            "metadata": {**metadata, "id": id_, "createdAt": _now()},
            "spec": spec,
            "status": {} if kind == "GpuCluster" else {"state": "CREATING"},
        }

        def finish() -> None:
            self._finish(kind, id_, machine.result() if machine else ("", ""))

        machine = None
        if fault is None:
            self.resources[id_], self.kinds[id_] = resource, kind
            if kind == "Instance":
                self._create_boot_disk(resource)
            # Machines start side by side, and the server answers meanwhile.
            machine = self._starting.submit(self._machines.start, resource) if kind == "Instance" else None
        return self._begin(id_, finish, fault, machine)

    def _create_boot_disk(self, instance: Message) -> None:
        id_, disk = f"disk-e00{next(self._numbers):04d}", instance["spec"]["bootDisk"]["managedDisk"]
        metadata = {**instance["metadata"], "id": id_, "name": disk["name"], "labels": disk.get("labels", {})}
        self.kinds[id_] = "Disk"
        self.resources[id_] = {"metadata": metadata, "spec": disk["spec"], "status": {"state": "READY"}}

    def _boot_disks(self, spec: Message) -> list[str]:
        """Return the ids of the disks that an instance has by their names."""
        name = spec["bootDisk"]["managedDisk"]["name"]
        return [disk["metadata"]["id"] for disk in self.of_kind("Disk") if disk["metadata"]["name"] == name]

    def _finish(self, kind: str, id_: str, addresses: tuple[str, str]) -> None:
        resource = self.resources[id_]
        if kind == "GpuCluster":
            return
        resource["status"]["state"] = READY.get(kind, "READY")
        if kind == "Filesystem":
            resource["status"]["sizeBytes"] = str(int(resource["spec"]["sizeGibibytes"]) * 2**30)
        if kind == "Instance":
            private, public = addresses
            interface: Message = {"name": "eth0", "ipAddress": {"address": f"{private}/32"}}
            if "publicIpAddress" in resource["spec"]["networkInterfaces"][0]:
                interface["publicIpAddress"] = {"address": f"{public}/32", "static": True}
            resource["status"]["networkInterfaces"] = [interface]
            if "gpuCluster" in resource["spec"]:
                resource["status"]["infinibandTopologyPath"] = {"path": ["root-1", "pod-1", "leaf-1"]}

    def _get(self, kind: str, request: Message, _fault: Fault | None) -> Message:
        return self._require(kind, request["id"])

    def _list(self, kind: str, request: Message, _fault: Fault | None) -> Message:
        if kind == "SecurityRule":
            self._require("SecurityGroup", request["parentId"])
        members = [r for r in self.of_kind(kind) if r["metadata"]["parentId"] == request.get("parentId", "")]
        # Pages of two, so that every caller has to read on.
        start = int(request.get("pageToken") or 0)
        page: Message = {"items": members[start : start + 2]}
        return page | ({"nextPageToken": str(start + 2)} if start + 2 < len(members) else {})

    def _update(self, kind: str, request: Message, fault: Fault | None) -> Message:
        resource = self._require(kind, request["metadata"]["id"])
        changes = find_changes(f"{SERVICES[kind]}.{kind}Spec", resource["spec"], request.get("spec", {}))
        if violations := [{"field": name, "message": "field is immutable"} for name in changes]:
            raise _Refusal(Code.INVALID_ARGUMENT, "bad request", {"badRequest": {"violations": violations}})
        resource["metadata"]["labels"] = request["metadata"].get("labels", {})
        resource["spec"] = request.get("spec", {})
        for disk in self._boot_disks(resource["spec"]) if kind == "Instance" else ():
            labels = resource["spec"]["bootDisk"]["managedDisk"].get("labels", {})
            self.resources[disk]["metadata"]["labels"] = labels
        return self._begin(resource["metadata"]["id"], lambda: None, fault)

    def _start(self, kind: str, request: Message, fault: Fault | None) -> Message:
        resource = self._require(kind, request["id"])

        def finish() -> None:
            resource["status"]["state"] = "RUNNING"

        return self._begin(request["id"], finish, fault)

    def _delete(self, kind: str, request: Message, fault: Fault | None) -> Message:
        if self._is_busy(request["id"]):
            raise _Refusal(Code.ABORTED, f"another operation on {request['id']} is running")
        resource = self._require(kind, request["id"])
        users = [
            other["metadata"]["name"]
            for id_, other in self.resources.items()
            if request["id"] in self._references(self.kinds[id_], other["spec"]) or _is_child(other, request["id"])
        ]
        if users and not (kind == "SecurityGroup" and set(users) <= self._own_rules(request["id"])):
            raise _Refusal(Code.FAILED_PRECONDITION, f"{kind} {request['id']} is used by {', '.join(users)}")

        def finish() -> None:
            if kind == "Instance":
                self._machines.stop(resource)
                for disk in self._boot_disks(resource["spec"]):
                    del self.resources[disk], self.kinds[disk]
            for rule in [i for i, r in self.resources.items() if _is_child(r, request["id"])]:
                del self.resources[rule], self.kinds[rule]
            del self.resources[request["id"]], self.kinds[request["id"]]

        return self._begin(request["id"], finish, fault)

    def _is_busy(self, resource: str) -> bool:
        """Return whether an operation on a resource still runs; time passes with each question."""
        for operation in [entry for entry in self._operations.values() if entry.resource == resource]:
            self._poll(operation.id)
        return any(not entry.done for entry in self._operations.values() if entry.resource == resource)

    def _own_rules(self, group: str) -> set[str]:
        return {r["metadata"]["name"] for r in self.resources.values() if _is_child(r, group)}

    def _references(self, kind: str, spec: Message) -> list[str]:
        disks = self._boot_disks(spec) if kind == "Instance" else []
        return [*disks, *(id_ for read in REFERENCES.get(kind, ()) for id_ in read(spec))]

    def _require(self, kind: str, id_: str) -> Message:
        if self.kinds.get(id_) != kind:
            raise _Refusal(Code.NOT_FOUND, f"{kind} {id_} not found")
        return self.resources[id_]

    def _take_fault(self, method: str, kind: str) -> Fault | None:
        for fault in self.faults:
            if (fault.method, fault.kind) == (method, kind):
                fault.times -= 1
                if fault.times <= 0:
                    self.faults.remove(fault)
                return fault
        return None

    def _begin(
        self,
        resource: str,
        finish: Callable[[], None],
        fault: Fault | None,
        machine: Future[tuple[str, str]] | None = None,
    ) -> Message:
        id_ = f"operation-e00{next(self._numbers):04d}"
        operation = _Operation(id_, resource, self.polls, finish, fault, machine)
        self._operations[operation.id] = operation
        return self._describe(operation)

    def _poll(self, id_: str) -> Message:
        operation = self._operations[id_]
        operation.polls -= 1
        starting = operation.machine is not None and not operation.machine.done()
        if operation.polls <= 0 and not operation.done and not starting:
            operation.done = True
            if operation.fault is None:
                operation.finish()
        return self._describe(operation)

    def _describe(self, operation: _Operation) -> Message:
        described: Message = {"id": operation.id, "resourceId": operation.resource, "createdAt": _now()}
        if not operation.done:
            return described
        status: Message = {"code": 0}
        if operation.fault:
            status = _status(operation.fault.code, operation.fault.message, operation.fault.details)
        return described | {"finishedAt": _now(), "status": status}


class _Refusal(Exception):
    def __init__(self, code: grpc.StatusCode, message: str, details: Message | None = None) -> None:
        super().__init__(message)
        self.status = _status(code, message, details or {})
        self.code = code


class _Handler(grpc.GenericRpcHandler):
    def __init__(self, cloud: FakeCloud) -> None:
        self._cloud = cloud

    def service(self, call: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
        service, method = call.method.lstrip("/").split("/")
        described = REGISTRY.service_descriptor(service).FindMethodByName(method)
        answer_class = REGISTRY.message_class(described.output_type.full_name)

        def handle(request: Any, context: grpc.ServicerContext) -> Any:
            try:
                answer = self._cloud.handle(service, method, json.loads(request.to_json()))
            except _Refusal as refusal:
                status = REGISTRY.message_class("google.rpc.Status").from_json(json.dumps(refusal.status))
                context.set_trailing_metadata((("grpc-status-details-bin", status.SerializeToString()),))
                context.abort(refusal.code, str(refusal))
            return answer_class.from_json(json.dumps(answer))

        return grpc.unary_unary_rpc_method_handler(
            handle,
            request_deserializer=REGISTRY.message_class(described.input_type.full_name).FromString,
            response_serializer=lambda message: message.SerializeToString(),
        )


@contextmanager
def serve_cloud(cloud: FakeCloud) -> Iterator[FakeCloud]:
    """Serve on a port of the loopback interface for the block."""
    server = grpc.server(ThreadPoolExecutor(16), handlers=(_Handler(cloud),))
    cloud.port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield cloud
    finally:
        server.stop(None).wait()
        cloud.close()


def _is_child(resource: Message, parent: str) -> bool:
    return bool(resource["metadata"]["parentId"] == parent)


def _status(code: grpc.StatusCode, message: str, details: Message) -> Message:
    status: Message = {"code": code.value[0], "message": message}
    if details:
        packed = {"@type": "type.googleapis.com/nebius.common.v1.ServiceError", "service": "compute", **details}
        status["details"] = [packed]
    return status


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
