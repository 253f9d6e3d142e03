"""The promises of a room stand in tests that know the public packages and the entries of rooms, nothing else.

A room is changed behind its entries.  Then the tests of its parts change with it, or go; the tests of its entries say
that no promise was lost.  So every mutant (``tests/mutants``) dies by a test that imports entries alone, but the
mutants of ``RACES``: they need interleavings that are forced inside.
"""

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from tests.syntax_trees import parse, statements_of

ROOT: Final = Path(__file__).parent.parent.parent

PUBLIC: Final = (
    "flowlet.common",
    "flowlet.datastream",
    "flowlet.errors",
    "flowlet.ingest",
    "flowlet.metrics",
    "flowlet.records",
    "flowlet.spark",
    "flowlet.state_reader",
    "flowlet.testing",
)
# By room: modules that the rest of the house calls, and what goes in and comes out of them.
ENTRIES: Final[Mapping[str, tuple[str, ...]]] = {
    "netstack": (
        "netstack.availability",
        "netstack.config",
        "netstack.connection_manager",
        "netstack.environment",
        "netstack.errors",
        "netstack.loop.eventloop",
        "netstack.ids",
        "netstack.testing",
    ),
    "netstack.wire": (
        "netstack.wire.events",
        "netstack.wire.frame_decoder",
        "netstack.wire.offer_messages",
        "netstack.wire.message_bytes",
        "netstack.wire.messages",
    ),
    "netstack.flow": ("netstack.flow.handshake",),
    "netstack.buffer": (
        "netstack.buffer.local_buffer_pool",
        "netstack.buffer.network_buffer",
        "netstack.buffer.network_buffer_pool",
    ),
    "netstack.partition": (
        "netstack.partition.bounded_blocking_result_partition",
        "netstack.partition.channel_state",
        "netstack.partition.result_partition",
        "netstack.partition.result_partition_manager",
        "netstack.partition.buffer_writing_result_partition",
        "netstack.partition.result_subpartition",
    ),
    "netstack.transport": (
        "netstack.transport.server",
        "netstack.transport.handler",
        "netstack.transport.message_codec",
        "netstack.transport.network_channel",
    ),
    "netstack.handlers": (
        "netstack.handlers.partition_request_client_handler",
        "netstack.handlers.partition_request_queue",
        "netstack.handlers.partition_request_server_handler",
        "netstack.handlers.view_reader",
    ),
    "netstack.gate": (
        "netstack.gate.channels.input_channel",
        "netstack.gate.channels.local_input_channel",
        "netstack.gate.channels.remote_input_channel",
        "netstack.gate.gate_channels",
        "netstack.gate.single_input_gate",
    ),
    "messages": (
        "flowlet.messages.control_messages",
        "flowlet.messages.job_messages",
        "flowlet.messages.execution_state",
        "flowlet.graph.partitioner",
    ),
    "options": ("flowlet.common.job_settings",),
    "state": (
        "flowlet.state.heap_keyed_state_backend",
        "flowlet.state.state_backends",
        "flowlet.state.state_snapshots",
    ),
    "mailbox": (
        "flowlet.mailbox.task_mailbox",
        "flowlet.timers.keyed_timer_service",
        "flowlet.watermarks.combined_watermarks",
    ),
    "windows": ("flowlet.windows.window_operator",),
    "task": ("flowlet.task.source_stream_task", "flowlet.task.stream_task", "flowlet.task.task_environment"),
    "task's checkpoints": (
        "flowlet.checkpoint.task.barrier_orders",
        "flowlet.checkpoint.task.checkpoint_barrier_tracker",
        "flowlet.checkpoint.task.barrier_orders",
        "flowlet.checkpoint.task.single_checkpoint_barrier_handler",
        "flowlet.checkpoint.task.snapshots",
        "flowlet.checkpoint.task.task_checkpoints",
        "flowlet.checkpoint.task.channel_state_writer",
        "flowlet.storage.checkpoint_storage",
        "flowlet.storage.manifest",
        "flowlet.checkpoint.task.state_codec",
    ),
    "JobManager's checkpoints": (
        "flowlet.checkpoint.jobmanager.checkpoint_coordinator",
        "flowlet.checkpoint.jobmanager.pending_checkpoint",
        "flowlet.checkpoint.jobmanager.former_checkpoint",
        "flowlet.checkpoint.jobmanager.pending_checkpoint",
        "flowlet.checkpoint.jobmanager.coordinator_events",
        "flowlet.checkpoint.jobmanager.job_checkpoints",
        "flowlet.checkpoint.jobmanager.job_store",
    ),
}
# Mutants that only a forced interleaving of threads kills.
RACES: Final = frozenset({"records_pass_interrupted_timers"})


def beyond_entries(test: ast.Module) -> set[str]:
    """The modules of the product that a test file imports though they are no entry."""
    known = {*PUBLIC, *(entry for entries in ENTRIES.values() for entry in entries)}
    return {module for module in _imported(test) if module != "netstack" and not _is_within(module, *known)}


def _imported(tree: ast.Module) -> Iterator[str]:
    for node in statements_of(tree):
        if (
            isinstance(node, ast.ImportFrom)
            and node.module is not None
            and _is_within(node.module, "flowlet", "netstack")
        ):
            # Names of a package itself are public in netstack; elsewhere they are its modules.
            is_package = node.module != "netstack" and "." not in node.module.removeprefix("flowlet.")
            yield from (f"{node.module}.{each.name}" if is_package else node.module for each in node.names)
        elif isinstance(node, ast.Import):
            yield from (each.name for each in node.names if _is_within(each.name, "flowlet", "netstack"))


def _is_within(module: str, *packages: str) -> bool:
    return any(module == package or module.startswith(f"{package}.") for package in packages)


def mutants_beyond(killers: Mapping[str, str]) -> Iterator[str]:
    """Yield mutants that die by a test whose file imports more than entries; ``killers``: that file by mutant."""
    beyond = {path: beyond_entries(parse((ROOT / path).read_text(encoding="utf-8"))) for path in set(killers.values())}
    yield from (f"{mutant}: {path}" for mutant, path in killers.items() if beyond[path] and mutant not in RACES)
