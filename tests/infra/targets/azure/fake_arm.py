"""Azure's Resource Manager on this machine: an HTTP server that keeps resources, with operations that take time.

Creating and deleting answers with the header Azure-AsyncOperation, actions with Location; while an operation changes a
resource, others are refused (409 AnotherOperationInProgress), what is in use cannot be deleted, lists have pages, and
errors have Azure's codes and forms. What a machine is in the end decides `machines`, for example a container.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from itertools import count
from threading import Condition, RLock
from typing import Any
from urllib.parse import parse_qs, urlsplit
from uuid import uuid4

from tests.infra.targets.azure.arm_ids import (
    ADDRESS,
    FILESYSTEM,
    GROUP,
    ID,
    IN_USE,
    INTERFACE,
    MACHINE,
    SCALE_SET,
    is_at,
    list_references,
    read_model,
    read_type,
)
from tests.infra.targets.azure.arm_machines import Machines, NoMachines, make_instance, set_power
from tests.infra.targets.azure.arm_operations import (
    FAULT_WAIT_S,
    Fault,
    Message,
    Operation,
    Refusal,
    format_now,
    take_fault,
)

PAGE = 3


class FakeArm:
    """The resources of a subscription, and the operations on them."""

    def __init__(self, machines: Machines | None = None) -> None:
        self.resources: dict[str, Message] = {}
        """By id in lower case."""
        self.instances: dict[str, dict[str, Message]] = {}
        """By id of the scale set and number."""
        self.calls: list[str] = []
        self.bodies: list[tuple[str, str, Message]] = []
        """Method, type (and action), and body of every request with one."""
        self.faults: list[Fault] = []
        self.polls = 1
        """How often an operation has to be asked before it is done."""
        self.answers: dict[str, Message | Callable[[str, Message], Message]] = {}
        """Answers by the end of a path, for what is only read."""
        self.on_start: Callable[[Message], None] = lambda _machine: None
        self.gives_addresses = True
        """Whether filesystems and interfaces get addresses."""
        self.port = 0
        self._machines = machines or NoMachines()
        self._addresses: dict[str, str] = {}
        """Private addresses by id of the interface or instance in lower case."""
        self._booted: set[str] = set()
        self._operations: dict[str, Operation] = {}
        self._numbers = count(1)
        self._next_instance: dict[str, int] = {}
        """By id of the scale set in lower case."""
        self._lock = RLock()
        self._called = Condition(self._lock)
        self._starting = ThreadPoolExecutor(8)

    def close(self) -> None:
        """Wait for machines that are starting; those that have not begun never start."""
        self._starting.shutdown(wait=True, cancel_futures=True)

    def of_type(self, type_: str) -> list[Message]:
        """Return all resources of a type."""
        return [r for r in self.resources.values() if r["type"].casefold() == type_.casefold()]

    def fail(self, method: str, path: str, status: int, code: str, message: str = "refused", **options: Any) -> None:
        """Let the next call of a method on a path fail."""
        details = options.pop("details", None)
        error = {"code": code, "message": message} | ({"details": details} if details else {})
        self.faults.append(Fault(method, path.casefold(), status, error, **options))

    def handle(self, method: str, url: str, body: Message) -> tuple[int, dict[str, str], Message | None]:
        """Return status, headers and body of the answer to a request."""
        parts = urlsplit(url)
        query = {key.casefold(): values[0] for key, values in parse_qs(parts.query).items()}
        path = parts.path
        with self._lock:
            if path.startswith("/operations/"):
                return self._poll(path.rpartition("/")[2], results="result" in query)
            self.calls.append(f"{method} {path}")
            self._called.notify_all()
            fault = take_fault(self.faults, method, path)
            if fault and fault.after:
                # Other requests are answered meanwhile.
                self._called.wait_for(partial(fault.is_due, self.calls), FAULT_WAIT_S)
            if fault and not fault.in_operation:
                return fault.status, fault.headers, {"error": fault.error}
            for ending, answer in self.answers.items():
                if path.casefold().endswith(ending.casefold()):
                    return 200, {}, answer(url, body) if callable(answer) else answer
            try:
                return self._route(method, path, query, body, fault)
            except Refusal as refusal:
                return refusal.status, {}, {"error": {"code": refusal.code, "message": str(refusal)}}

    def _route(
        self, method: str, path: str, query: dict[str, str], body: Message, fault: Fault | None
    ) -> tuple[int, dict[str, str], Message | None]:
        if method == "GET" and (listed := self._list(path, query)) is not None:
            return 200, {}, self._page(listed, path, query)
        match = ID.match(path)
        if match is None:
            raise Refusal(404, "NotFound", f"nothing is at {path}")
        type_ = (match["type"] or GROUP).casefold()
        base = path[: len(path) - len(match["rest"] or "")] if match["type"] else path
        if body:
            self.bodies.append((method, type_ + (f"/{path.rpartition('/')[2]}" if match["rest"] else ""), body))
        if method != "GET":
            self._check_free(base)
        if match["rest"]:
            return self._act(method, base, match["rest"], body, fault)
        return {"GET": self._get, "PUT": self._put, "PATCH": self._patch, "DELETE": self._delete}[method](
            base, type_, body, fault
        )

    def _get(self, id_: str, _type: str, _body: Message, _fault: Fault | None) -> tuple[int, dict[str, str], Message]:
        return 200, {}, self._require(id_)

    def _put(
        self, id_: str, type_: str, body: Message, fault: Fault | None
    ) -> tuple[int, dict[str, str], Message | None]:
        for reference in list_references(body):
            if reference.casefold().partition("/subnets/")[0] not in self.resources:
                raise Refusal(400, "InvalidResourceReference", f"resource {reference} is not found")
        if type_ != GROUP and self._group_of(id_) not in self.resources:
            raise Refusal(404, "ResourceGroupNotFound", f"the resource group of {id_} could not be found")
        existing = self.resources.get(id_.casefold())
        resource = {
            **body,
            "id": id_,
            "name": id_.rpartition("/")[2],
            "type": read_type(id_),
            "properties": {**body.get("properties", {}), "provisioningState": "Creating"},
            "createdTime": (existing or {}).get("createdTime", format_now()),
        }
        if "vmId" in (existing or {}).get("properties", {}):
            resource["properties"]["vmId"] = existing["properties"]["vmId"]
        if type_ == SCALE_SET and existing and read_model(existing) != read_model(resource):
            for instance in self.instances[id_.casefold()].values():
                instance["properties"]["latestModelApplied"] = False
        self.resources[id_.casefold()] = resource
        if type_ == GROUP:
            resource["properties"]["provisioningState"] = "Succeeded"
            return 201, {}, resource
        starting = self._start(id_, type_, resource) if fault is None else []
        if fault is not None and type_ == SCALE_SET:
            self.instances.setdefault(id_.casefold(), {})

        def finish() -> Message:
            resource["properties"]["provisioningState"] = "Succeeded"
            self._complete(id_, type_, resource)
            return resource

        return self._begin(201, id_, finish, fault, starting, body=resource)

    def _patch(
        self, id_: str, type_: str, body: Message, fault: Fault | None
    ) -> tuple[int, dict[str, str], Message | None]:
        resource = self._require(id_)
        resource |= {key: value for key, value in body.items() if key in ("tags", "sku")}
        starting = self._start(id_, type_, resource) if fault is None and type_ == SCALE_SET else []

        def finish() -> Message:
            self._complete(id_, type_, resource)
            return resource

        return self._begin(200, id_, finish, fault, starting, body=resource)

    def _delete(
        self, id_: str, type_: str, _body: Message, fault: Fault | None
    ) -> tuple[int, dict[str, str], Message | None]:
        if id_.casefold() not in self.resources:
            return 204, {}, None
        users = [
            other["name"]
            for key, other in self.resources.items()
            if key != id_.casefold() and any(is_at(reference, id_) for reference in list_references(other))
        ]
        if users:
            raise Refusal(400, IN_USE.get(type_, "Conflict"), f"{id_} is in use by {', '.join(users)}")

        def finish() -> None:
            if type_ == INTERFACE:
                self._machines.stop(id_)
            self._booted.discard(id_.casefold())
            for number in list(self.instances.get(id_.casefold(), {})):
                self._machines.stop(f"{id_}/virtualMachines/{number}")
            self.instances.pop(id_.casefold(), None)
            self._next_instance.pop(id_.casefold(), None)
            # With a resource group everything in it goes.
            for key in [key for key in self.resources if key == id_.casefold() or key.startswith(f"{id_}/".casefold())]:
                del self.resources[key]

        return self._begin(202, id_, finish, fault)

    def _act(
        self, method: str, id_: str, action_path: str, body: Message, fault: Fault | None
    ) -> tuple[int, dict[str, str], Message | None]:
        """Carry out an action on a machine, a scale set or an instance."""
        resource, action = self._require(id_), action_path.rpartition("/")[2].casefold()
        if method != "POST":
            raise Refusal(405, "MethodNotAllowed", f"{method} {action_path}")
        if action == "runcommand":
            target = (
                self._find_interface(resource)
                if resource["type"].casefold() == MACHINE
                else id_ + action_path[: -len(action) - 1]
            )
            printed = self._starting.submit(self._machines.run, target, "\n".join(body["script"]))

            def finish_run() -> Message:
                status = f"Enable succeeded: \n[stdout]\n{printed.result()}\n[stderr]\n"
                return {"value": [{"code": "ProvisioningState/succeeded", "message": status}]}

            return self._begin(202, target, finish_run, fault, [printed], action=True)  # type: ignore[list-item]
        if action == "start" and "instanceIds" not in body:
            self.on_start(resource)
            return self._begin(202, id_, lambda: set_power(resource, "running"), fault, action=True)
        chosen = {number: self.instances[id_.casefold()][number] for number in body["instanceIds"]}

        def finish() -> None:
            for number, instance in chosen.items():
                if action == "start":
                    set_power(instance, "running")
                elif action == "delete":
                    self._machines.stop(instance["id"])
                    del self.instances[id_.casefold()][number]
                    resource["sku"]["capacity"] -= 1

        return self._begin(202, id_, finish, fault, action=True)

    def _start(self, id_: str, type_: str, resource: Message) -> list[Future[None]]:
        """Start the machine of a resource, or those that a scale set lacks; they start side by side."""
        properties = resource["properties"]
        if type_ == INTERFACE and id_.casefold() not in self._addresses:
            return [self._starting.submit(self._place, id_, id_.rpartition("-")[2])]
        if type_ == MACHINE and id_.casefold() not in self._booted:
            self._booted.add(id_.casefold())
            user_data = properties["osProfile"].get("customData", "")
            return [self._starting.submit(self._machines.boot, self._find_interface(resource), user_data)]
        if type_ != SCALE_SET:
            return []
        instances = self.instances.setdefault(id_.casefold(), {})
        profile, starting = properties["virtualMachineProfile"]["osProfile"], []
        for _missing in range(int(resource["sku"]["capacity"]) - len(instances)):
            # Numbers have gaps, and start at 0 again when a scale set is created again.
            number = str(self._next_instance.get(id_.casefold(), 0))
            self._next_instance[id_.casefold()] = int(number) + 2
            instance_id = f"{id_}/virtualMachines/{number}"
            instances[number] = make_instance(instance_id, number)
            host = f"{profile['computerNamePrefix']}{int(number):06d}"
            starting.append(self._start_one(instance_id, host, profile.get("customData", "")))
        return starting

    def _start_one(self, id_: str, host: str, user_data: str) -> Future[None]:
        def start() -> None:
            self._place(id_, host)
            self._machines.boot(id_, user_data)

        return self._starting.submit(start)

    def _place(self, id_: str, host: str) -> None:
        self._addresses[id_.casefold()] = self._machines.place(id_, host)

    def _find_interface(self, machine: Message) -> str:
        return str(machine["properties"]["networkProfile"]["networkInterfaces"][0]["id"])

    def _complete(self, id_: str, type_: str, resource: Message) -> None:
        """Fill in what Azure adds once an operation has ended."""
        properties = resource["properties"]
        if type_ == MACHINE:
            properties.setdefault("vmId", str(uuid4()))
            if "instanceView" not in properties:
                set_power(resource, "running")
        elif type_ == SCALE_SET:
            for instance in self.instances[id_.casefold()].values():
                instance["properties"]["provisioningState"] = "Succeeded"
                if "instanceView" not in instance["properties"]:
                    set_power(instance, "running")
        elif type_ == INTERFACE:
            address = self._addresses[id_.casefold()] if self.gives_addresses else ""
            properties["ipConfigurations"][0]["properties"]["privateIPAddress"] = address
        elif type_ == ADDRESS:
            properties.setdefault("ipAddress", f"198.51.100.{200 + next(self._numbers) % 50}")
        elif type_ == FILESYSTEM:
            address = "10.88.8.4" if self.gives_addresses else ""
            properties["clientInfo"] = {"mgsAddress": address, "lustreVersion": "2.15.6"}

    def _list(self, path: str, query: dict[str, str]) -> list[Message] | None:
        """Return what is listed at a path; None if it is no list."""
        lowered = path.casefold().rstrip("/")
        parent, _, last = lowered.rpartition("/")
        if parent in self.instances and last in ("virtualmachines", "networkinterfaces", "publicipaddresses"):
            instances = list(self.instances[parent].values())
            return (
                instances
                if last == "virtualmachines"
                else [self._address_entry(instance, last) for instance in instances]
            )
        if last not in ("resources", "resourcegroups") or (last == "resourcegroups" and parent.count("/") != 2):
            return None
        resources = [r for r in self.resources.values() if r["id"].casefold().startswith(f"{parent}/")]
        resources = [r for r in resources if (r["type"].casefold() == GROUP) == (last == "resourcegroups")]
        tag = re.fullmatch(r"tagName eq '([^']*)' and tagValue eq '([^']*)'", query.get("$filter", ""))
        if tag:
            resources = [r for r in resources if (r.get("tags") or {}).get(tag[1]) == tag[2]]
        # A list has no properties, as Azure's has none.
        return [{key: value for key, value in r.items() if key != "properties"} for r in resources]

    def _address_entry(self, instance: Message, what: str) -> Message:
        private = self._addresses.get(instance["id"].casefold(), "")
        id_ = f"{instance['id']}/networkInterfaces/primary"
        if what == "networkinterfaces":
            configured = {"properties": {"privateIPAddress": private, "primary": True}}
            return {"id": id_, "properties": {"ipConfigurations": [configured]}}
        public = f"198.51.100.{private.rpartition('.')[2]}"
        return {"id": f"{id_}/ipConfigurations/primary/publicIPAddresses/public", "properties": {"ipAddress": public}}

    def _page(self, listed: list[Message], path: str, query: dict[str, str]) -> Message:
        """Return a page of a list; pages are small, so that every caller has to read on."""
        start = int(query.get("$skiptoken", 0))
        page: Message = {"value": listed[start : start + PAGE]}
        if start + PAGE < len(listed):
            others = "&".join(f"{key}={value}" for key, value in query.items() if key != "$skiptoken").replace(
                " ", "%20"
            )
            page["nextLink"] = f"http://127.0.0.1:{self.port}{path}?{others}&$skiptoken={start + PAGE}"
        return page

    def _check_free(self, id_: str) -> None:
        busy = {operation.busy for operation in self._operations.values() if not operation.done}
        if id_.casefold() in busy:
            raise Refusal(409, "AnotherOperationInProgress", f"another operation on {id_} is in progress")

    def _begin(
        self,
        status: int,
        id_: str,
        finish: Callable[[], Message | None],
        fault: Fault | None,
        machines: list[Future[None]] | None = None,
        *,
        body: Message | None = None,
        action: bool = False,
    ) -> tuple[int, dict[str, str], Message | None]:
        number = f"op-{next(self._numbers)}"
        busy = "" if action and "runcommand" in id_.casefold() else id_.casefold()
        error = fault.error if fault else None
        self._operations[number] = Operation(self.polls, finish, busy, error, machines or [])
        url = f"http://127.0.0.1:{self.port}/operations/{number}?api-version=2026-04-01"
        headers = {"Azure-AsyncOperation": url, "Retry-After": "0"}
        if action:
            headers["Location"] = f"{url}&result=1"
        return status, headers, body

    def _poll(self, number: str, *, results: bool) -> tuple[int, dict[str, str], Message | None]:
        operation = self._operations[number]
        operation.polls -= 1
        if operation.polls <= 0 and not operation.done and all(machine.done() for machine in operation.machines):
            operation.done = True
            if operation.error is None:
                for machine in operation.machines:
                    machine.result()
                operation.result = operation.finish()
            elif operation.busy in self.resources:
                self.resources[operation.busy]["properties"]["provisioningState"] = "Failed"
        return operation.answer(results=results)

    def _require(self, id_: str) -> Message:
        if id_.casefold() not in self.resources:
            raise Refusal(404, "ResourceNotFound", f"the resource {id_} was not found")
        return self.resources[id_.casefold()]

    def _group_of(self, id_: str) -> str:
        return id_.casefold().partition("/providers/")[0]
