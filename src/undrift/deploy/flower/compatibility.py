"""What undrift relies on in Flower, besides its public interface, and a check of it.

Flower's insides change from version to version. With another version installed, `differences` says
which of them are not as this package expects; `tests/test_deploy_compatibility.py` fails with the
same sentences.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

from undrift.deploy.flower import clocks

SUPPORTED = "1.41"
"""The versions of Flower that undrift works with: this one with any patch level."""

FUNCTIONS: Mapping[str, Sequence[str]] = {
    # The process of a SuperLink
    "flwr.superlink.cli.flower_superlink": (),
    "flwr.superlink.extensions.get_middleware": (),
    "flwr.superlink.servicer.fleet.fleet_handlers.push_messages": ("request", "state"),
    "flwr.superlink.servicer.fleet.fleet_handlers.push_object": ("request", "state"),
    "flwr.superlink.servicer.runtime.runtime_handlers.push_messages": ("request", "state", "task"),
    "flwr.superlink.servicer.runtime.runtime_handlers.confirm_message_received": (
        "request",
        "state",
        "task",
    ),
    "flwr.superlink.servicer.fleet.fleet_handlers.pull_messages": ("request", "state", "store"),
    "flwr.superlink.servicer.fleet.fleet_handlers.confirm_message_received": (
        "request",
        "state",
        "store",
    ),
    "flwr.superlink.servicer.fleet.fleet_handlers.pull_object": ("request", "state"),
    "flwr.superlink.servicer.fleet.fleet_handlers.get_run": ("request", "state"),
    "flwr.superlink.servicer.fleet.fleet_handlers.get_fab": ("request", "state"),
    "flwr.superlink.servicer.runtime.runtime_handlers.pull_messages": ("request", "state", "task"),
    "flwr.superlink.servicer.runtime.runtime_handlers.push_object": ("request", "state", "task"),
    "flwr.superlink.servicer.runtime.runtime_handlers.pull_object": ("request", "state", "task"),
    "flwr.superlink.servicer.runtime.runtime_handlers.get_nodes": ("request", "state", "task"),
    "flwr.supercore.sql_mixin.SqlMixin.session": ("self",),
    "flwr.supercore.object_store.ObjectStore.delete": ("self", "object_id"),
    "flwr.supercore.error.FlowerError": ("code", "message", "public_details"),
    "flwr.superlink.routers.fleet.node_auth.authenticate_node": ("request",),
    "flwr.supercore.primitives.asymmetric.public_key_to_bytes": ("public_key",),
    "flwr.supercore.primitives.asymmetric.bytes_to_public_key": ("public_key_bytes",),
    "flwr.supercore.primitives.asymmetric.verify_signature": ("public_key", "message", "signature"),
    # The process of a SuperNode, and its site
    "flwr.supernode.cli.flower_supernode": (),
    "flwr.supernode.start_client_internal.pull_objects": ("object_ids", "pull_object_fn"),
    "flwr.supernode.start_client_internal._pull_and_store_message": ("state", "receive"),
    "flwr.supernode.runtime.run_clientapp.pull_task_input": ("client",),
    "flwr.supernode.runtime.run_clientapp.push_message": ("client", "message", "context"),
    "flwr.supernode.runtime.run_clientapp.push_task_output": ("client", "context"),
    # The server
    "flwr.superlink.grid.HttpGrid": (
        "runtime_api_address",
        "insecure",
        "root_certificates",
        "token",
    ),
    "flwr.superlink.grid.HttpGrid.set_run": ("self", "run"),
    "flwr.supercore.control.ControlHttpClient.from_server_address": (
        "server_address",
        "insecure",
        "root_certificates",
        "interceptors",
    ),
    "flwr.supercore.runtime.RuntimeHttpClient.from_server_address": (
        "server_address",
        "insecure",
        "root_certificates",
        "interceptors",
    ),
    "flwr.supercore.interceptors.RuntimeVersionHttpInterceptor": ("component_name",),
    "flwr.supercore.interceptors.RuntimeTokenHttpInterceptor": ("token",),
    "flwr.supercore.interceptors.SuperExecAuthHttpInterceptor": (
        "master_secret",
        "protected_methods",
    ),
    "flwr.supercore.auth.load_superexec_auth_secret": ("secret_file",),
    "flwr.cli.build.build_fab_from_disk": ("app",),
    "flwr.supercore.fab.Fab": ("hash_str", "content", "verifications"),
    "flwr.common.serde.fab_to_proto": ("fab",),
    "flwr.common.serde.run_from_proto": ("run_proto",),
    "flwr.common.serde.user_config_to_proto": ("user_config",),
    # Messages and their parts
    "flwr.app.Message": ("content", "dst_node_id", "message_type", "ttl", "group_id", "reply_to"),
    "flwr.app.ConfigRecord": ("config_dict",),
    "flwr.app.Array": ("dtype", "shape", "stype", "data"),
    "flwr.supercore.inflatable.inflatable_object.iterate_object_tree": ("tree",),
    "flwr.supercore.inflatable.inflatable_object.get_object_head_values_from_object_content": (
        "object_content",
    ),
    "flwr.supercore.inflatable.inflatable_protobuf_utils.make_pull_object_fn_protobuf": (
        "pull_object_protobuf",
        "node",
        "run_id",
    ),
    "flwr.supercore.inflatable.inflatable_utils.pull_objects": (
        "object_ids",
        "pull_object_fn",
        "initial_backoff",
        "max_concurrent_pulls",
    ),
    "flwr.supercore.inflatable.inflatable_utils.pull_and_inflate_object_from_tree": (
        "initial_backoff",
    ),
    "flwr.supercore.inflatable.inflatable_utils.inflate_object_from_contents": (
        "object_id",
        "object_contents",
    ),
}
"""Functions and classes that are called, or replaced, with these parameters."""

ATTRIBUTES = (
    *(f"{name}.now" for name in (*clocks.SUPERLINK_MODULES, *clocks.SUPERNODE_MODULES)),
    *(f"{name}.now" for name in clocks.SERVER_MODULES),
    "flwr.superlink.routers.fleet.node_auth.SYSTEM_TIME_TOLERANCE",
    "flwr.supernode.start_client_internal.time",
    "flwr.supercore.sql_mixin.create_engine",
    "flwr.supercore.sql_mixin._current_sessions",
    "flwr.supercore.protobuf.constants.PROTOBUF_MEDIA_TYPE",
    "flwr.supercore.inflatable.inflatable_utils.ObjectPullError",
    "flwr.supercore.run.RunNotRunningException",
    "flwr.supercore.task_identity.TaskIdentity.task_id",
    "flwr.supercore.task_identity.TaskIdentity.run_id",
    "flwr.supercore.task_identity.TaskIdentity.node_id",
    "flwr.superlink.grid.HttpGrid._runtime_client",
    "flwr.supercore.constant.HEAD_BODY_DIVIDER",
    "flwr.supercore.constant.FLEET_HTTP_PUBLIC_KEY_HEADER",
    "flwr.supercore.constant.FLEET_HTTP_SIGNATURE_HEADER",
    "flwr.common.constant.TIMESTAMP_HEADER",
    "flwr.common.constant.Status.FINISHED",
    "flwr.common.constant.SubStatus.FAILED",
    "flwr.common.constant.SubStatus.COMPLETED",
    "flwr.supercore.error.ApiErrorCode.FLEET_RUN_STATUS_NOT_ALLOWED",
)
"""Names that are read or replaced."""

FIELDS: Mapping[str, Sequence[str]] = {
    "flwr.proto.message_pb2.Metadata": (
        "message_id",
        "src_node_id",
        "dst_node_id",
        "reply_to_message_id",
        "group_id",
        "ttl",
    ),
    "flwr.proto.message_pb2.PushObjectRequest": (
        "node",
        "session_id",
        "object_id",
        "object_content",
    ),
    "flwr.proto.message_pb2.ConfirmMessageReceivedRequest": ("message_object_id",),
    "flwr.proto.fleet_pb2.PushMessagesRequest": ("node", "messages_list", "message_object_trees"),
    "flwr.proto.fleet_pb2.PushMessagesResponse": ("session_id", "objects_to_push"),
    "flwr.proto.fleet_pb2.PullMessagesRequest": ("node",),
    "flwr.proto.fleet_pb2.PullMessagesResponse": ("messages_list",),
    "flwr.proto.runtime_pb2.PushAppMessagesResponse": ("message_ids", "objects_to_push"),
    "flwr.proto.runtime_pb2.PullAppMessagesResponse": ("messages_list", "message_object_trees"),
    "flwr.proto.runtime_pb2.PushAppMessagesRequest": ("messages_list",),
    "flwr.proto.runtime_pb2.PullAppMessagesRequest": ("message_ids",),
    "flwr.proto.runtime_pb2.AcquireTaskRequest": ("supported_task_types",),
    "flwr.proto.control_pb2.StartRunRequest": ("fab", "override_config"),
    "flwr.proto.control_pb2.RegisterNodeRequest": ("public_key", "name"),
}
"""Protocol messages with the fields that are read or written."""

CODES = {"flwr.supercore.error.ApiErrorCode.FLEET_NODE_ACTIVATION_FAILED": 2004}
"""Numbers that are written out elsewhere."""


def differences() -> list[str]:
    """What is not as expected in the Flower that is installed, one sentence for each item."""
    found = [sentence for name in FUNCTIONS if (sentence := _function_difference(name))]
    for name in dict.fromkeys(ATTRIBUTES):
        if _find(name) is None:
            found.append(f"{name} is gone.")
    for name, fields in FIELDS.items():
        message = _find(name)
        has = () if message is None else message.DESCRIPTOR.fields_by_name
        found += [f"{name} has no field {field!r}." for field in fields if field not in has]
    for name, code in CODES.items():
        if _find(name) != code:
            found.append(f"{name} is {_find(name)}, not {code}.")
    return found


def version_difference(version: str) -> str | None:
    """A sentence if a version of Flower is none that undrift works with."""
    if version == SUPPORTED or version.startswith(f"{SUPPORTED}."):
        return None
    changed = differences()
    what = f" What changed, among others: {changed[0]}" if changed else ""
    return (
        f"A deployment needs Flower {SUPPORTED}, but {version} is installed: pip install "
        f"'undrift[flower]'.{what}"
    )


def _function_difference(name: str) -> str | None:
    function = _find(name)
    if function is None:
        return f"{name} is gone."
    has = inspect.signature(function).parameters
    missing = [each for each in FUNCTIONS[name] if each not in has]
    if missing:
        return f"{name} has no parameter {missing[0]!r}; it has {', '.join(has) or 'none'}."
    return None


def _find(name: str) -> Any:
    """What a dotted name stands for: a module's attribute, or an attribute of that; or None."""
    parts = name.split(".")
    for length in range(len(parts) - 1, 0, -1):
        try:
            found: Any = import_module(".".join(parts[:length]))
        except ImportError:
            continue
        for part in parts[length:]:
            found = inspect.getattr_static(found, part, None)
            found = getattr(found, "__func__", found)  # the function of a class method
        return found
    return None
