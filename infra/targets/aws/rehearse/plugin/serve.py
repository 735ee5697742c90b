"""The plugin's side of Pulumi's protocol: validates and compares properties, and calls the table's functions."""

from __future__ import annotations

import gc
import json
import os
import sys
from concurrent import futures
from typing import Any, NamedTuple

import grpc
from botocore.exceptions import BotoCoreError, ClientError
from google.protobuf import empty_pb2, struct_pb2
from google.protobuf.json_format import MessageToDict
from pulumi.runtime.proto import plugin_pb2, status_pb2
from pulumi.runtime.proto import provider_pb2 as pb
from pulumi.runtime.proto import provider_pb2_grpc as pb_grpc

from infra.targets.aws.rehearse.plugin.kind import Aws, Kind, Props, Tags
from infra.targets.aws.rehearse.plugin.registry import KINDS

VERSION = "7.51.1"
UNKNOWN = "04da6b54-80e4-46f7-96ec-b56ff0331ba9"
PARTLY_CREATED = "__partlyCreated"
"""Output of a resource that exists but is not complete. It stays in the state when Pulumi reads the resource again."""
_ERRORS = (ClientError, BotoCoreError)
# Settings that the program's provider may have.
_SETTINGS = ("region", "defaultTags", "version", "maxRetries", "s3UsePathStyle", *(f"skip{x}" for x in (
    "CredentialsValidation", "MetadataApiCheck", "RegionValidation")))  # fmt: skip


class Provider(pb_grpc.ResourceProviderServicer):
    """The provider; its method names are those of the protocol."""

    def __init__(self) -> None:
        self.defaults: Tags = {}
        self.aws = Aws("")

    def GetPluginInfo(self, _request: Any, _context: Any) -> Any:
        return plugin_pb2.PluginInfo(version=VERSION)

    def Handshake(self, _request: Any, _context: Any) -> Any:
        return pb.ProviderHandshakeResponse(accept_secrets=False, accept_resources=False, accept_outputs=False)

    def Attach(self, _request: Any, _context: Any) -> Any:
        return empty_pb2.Empty()

    def Cancel(self, _request: Any, _context: Any) -> Any:
        return empty_pb2.Empty()

    def GetSchema(self, _request: Any, _context: Any) -> Any:
        return pb.GetSchemaResponse(schema="{}")

    def CheckConfig(self, request: Any, _context: Any) -> Any:
        unknown = set(to_properties(request.news)) - set(_SETTINGS)
        failures = [pb.CheckFailure(property=name, reason="no setting of this provider") for name in sorted(unknown)]
        return pb.CheckResponse(inputs=request.news, failures=failures)

    def DiffConfig(self, request: Any, _context: Any) -> Any:
        olds, news = to_properties(request.olds), to_properties(request.news)
        changed = sorted(key for key in {*olds, *news} if olds.get(key) != news.get(key))
        replaces = ["region"] if "region" in changed else []
        return pb.DiffResponse(changes=_change_kind(changed), diffs=changed, replaces=replaces)

    def Configure(self, request: Any, context: Any) -> Any:
        settings = {key: _parse(value) for key, value in to_properties(request.args).items()}
        if not os.environ.get("AWS_ENDPOINT_URL"):
            context.abort(
                grpc.StatusCode.FAILED_PRECONDITION,
                "AWS_ENDPOINT_URL: not set; this plugin is for rehearsals and tests",
            )
        self.aws = Aws(settings["region"], int(settings.get("maxRetries") or 0))
        self.defaults = (settings.get("defaultTags") or {}).get("tags") or {}
        return pb.ConfigureResponse(acceptSecrets=False, supportsPreview=True)

    def Check(self, request: Any, _context: Any) -> Any:
        news, kind = to_properties(request.news), KINDS.get(_token(request.urn))
        if kind is None:
            reason = f"{_token(request.urn)}: the test plugin has no such type"
            return pb.CheckResponse(inputs=request.news, failures=[pb.CheckFailure(property="", reason=reason)])
        failures = [
            *((name, f"no such property of {kind.token}") for name in sorted(_unknown(kind, news))),
            *((name, f"{kind.token} needs it") for name in sorted(kind.required - set(news))),
        ]
        check_failures = [pb.CheckFailure(property=name, reason=reason) for name, reason in failures]
        return pb.CheckResponse(inputs=request.news, failures=check_failures)

    def Diff(self, request: Any, _context: Any) -> Any:
        kind, olds = KINDS[_token(request.urn)], to_properties(request.olds)
        changed = self._changed(kind, request)
        replaces = sorted(changed & kind.replacing)
        return pb.DiffResponse(
            changes=_change_kind(changed or olds.get(PARTLY_CREATED)),
            diffs=sorted(changed),
            replaces=replaces,
            # Two resources cannot have the same name.
            deleteBeforeReplace=bool(replaces) and bool({"name", "bucket"} & kind.properties),
        )

    def Create(self, request: Any, context: Any) -> Any:
        kind, props = KINDS[_token(request.urn)], to_properties(request.properties)
        if request.preview:
            return pb.CreateResponse(properties=to_message(props | dict.fromkeys(kind.outputs, UNKNOWN)))
        with _reporting_errors(context, request.urn):
            id_, computed = kind.create(self.aws, props, self._tags(props))
            try:
                computed |= kind.complete(self.aws, id_, props, self._tags(props))
            except _ERRORS as error:
                outputs = self._outputs(kind, id_, props, computed) | {PARTLY_CREATED: True}
                _abort_partly_created(context, id_, outputs, _describe(request.urn, error))
        return pb.CreateResponse(id=id_, properties=to_message(self._outputs(kind, id_, props, computed)))

    def Read(self, request: Any, context: Any) -> Any:
        kind, props, inputs = (
            KINDS[_token(request.urn)],
            to_properties(request.properties),
            to_properties(request.inputs),
        )
        with _reporting_errors(context, request.urn):
            seen = kind.read(self.aws, request.id, props)
        if seen is None:
            return pb.ReadResponse()
        drifted = {key: seen[key] for key in inputs if key in seen and seen[key] != inputs[key]}
        return pb.ReadResponse(id=request.id, properties=to_message(props | seen), inputs=to_message(inputs | drifted))

    def Update(self, request: Any, context: Any) -> Any:
        kind, olds, news = KINDS[_token(request.urn)], to_properties(request.olds), to_properties(request.news)
        computed = {key: olds[key] for key in kind.outputs if key in olds}
        if request.preview:
            # What completes a resource may read more of its outputs.
            computed = dict.fromkeys(kind.outputs, UNKNOWN) | computed
        else:
            with _reporting_errors(context, request.urn):
                if olds.get(PARTLY_CREATED):
                    computed |= kind.complete(self.aws, request.id, news, self._tags(news))
                if self._changed(kind, request):
                    computed |= kind.update(self.aws, request.id, news, self._tags(news))
        return pb.UpdateResponse(properties=to_message(self._outputs(kind, request.id, news, computed)))

    def Delete(self, request: Any, context: Any) -> Any:
        with _reporting_errors(context, request.urn):
            KINDS[_token(request.urn)].delete(self.aws, request.id, to_properties(request.properties))
        return empty_pb2.Empty()

    def Invoke(self, request: Any, context: Any) -> Any:
        context.abort(grpc.StatusCode.UNIMPLEMENTED, f"{request.tok}: the program asks nothing of the provider")

    def _changed(self, kind: Kind, request: Any) -> set[str]:
        """Return the properties that differ between the state and the program."""
        olds, news = to_properties(request.olds), to_properties(request.news)
        before = to_properties(request.old_inputs) or olds
        changed = {key for key in kind.properties if before.get(key) != news.get(key)}
        if kind.tagged and olds.get("tagsAll") != self._tags(news):
            changed.add("tags")
        return changed

    def _tags(self, props: Props) -> Tags:
        return self.defaults | (props.get("tags") or {})

    def _outputs(self, kind: Kind, id_: str, props: Props, computed: Props) -> Props:
        tags = {"tagsAll": self._tags(props)} if kind.tagged else {}
        return props | computed | tags | {"id": id_}


class _reporting_errors:
    """Report errors of AWS as the real provider does, with the resource's name; used in `with` statements."""

    def __init__(self, context: Any, urn: str) -> None:
        self.context, self.urn = context, urn

    def __enter__(self) -> None:
        pass

    def __exit__(self, _type: Any, error: BaseException | None, _trace: Any) -> None:
        if isinstance(error, _ERRORS):
            self.context.abort(grpc.StatusCode.UNKNOWN, _describe(self.urn, error))


def _describe(urn: str, error: BaseException) -> str:
    return f"{urn.rpartition('::')[2]}: {error}"


class _Status(NamedTuple):
    """A status of gRPC with details."""

    code: grpc.StatusCode
    details: str
    trailing_metadata: tuple[tuple[str, bytes], ...]


def _abort_partly_created(context: Any, id_: str, outputs: Props, reason: str) -> None:
    """Report that a resource exists but is not complete, as the real provider does: it stays in Pulumi's state."""
    failure = pb.ErrorResourceInitFailed(id=id_, properties=to_message(outputs), reasons=[reason])
    status = status_pb2.Status(code=grpc.StatusCode.UNKNOWN.value[0], message=reason)
    status.details.add().Pack(failure)
    metadata = (("grpc-status-details-bin", status.SerializeToString()),)
    context.abort_with_status(_Status(grpc.StatusCode.UNKNOWN, reason, metadata))


def to_properties(struct: Any) -> Props:
    """Return the properties of a message, with whole numbers as int, because all numbers arrive as floats."""
    return {key: _to_int(value) for key, value in MessageToDict(struct).items()}


def to_message(props: Props) -> Any:
    """Return properties as a message of the protocol."""
    struct = struct_pb2.Struct()
    struct.update(props)
    return struct


def _to_int(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _to_int(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_to_int(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _unknown(kind: Kind, news: Props) -> set[str]:
    """Return the properties, and names within them, that are not in the table."""
    unknown = {key for key in news if key not in kind.properties and not key.startswith("__")}
    for key, names in kind.nested.items():
        unknown |= {f"{key}.{name}" for name in _names(news.get(key)) if name not in names.split()}
    return unknown


def _names(value: Any) -> set[str]:
    """Return the names at any depth, without those of tags."""
    if isinstance(value, list):
        return set().union(*map(_names, value))
    if isinstance(value, dict):
        return set(value).union(*(_names(item) for key, item in value.items() if key != "tags"))
    return set()


def _token(urn: str) -> str:
    return urn.split("::")[2].rpartition("$")[2]


def _change_kind(changed: Any) -> Any:
    return pb.DiffResponse.DIFF_SOME if changed else pb.DiffResponse.DIFF_NONE


def _parse(value: Any) -> Any:
    """Parse a setting; those that are not strings arrive as JSON."""
    return json.loads(value) if isinstance(value, str) and value[:1] in ("{", "[") else value


def main() -> None:
    """Serve the plugin and print its port, as the engine expects."""
    # What it creates in the simulated cloud stays: Python would look through all of it again and again.
    gc.set_threshold(50_000)
    options = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
    server = grpc.server(futures.ThreadPoolExecutor(16), options=options)
    pb_grpc.add_ResourceProviderServicer_to_server(Provider(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    sys.stdout.write(f"{port}\n")
    sys.stdout.flush()
    server.wait_for_termination()
