"""The house: which rooms there are, on which floor each stands, and which modules lie in it.

A module lies in the room with the longest prefix of its name; ``*`` in a prefix stands for any system. A module may
import its own floor and those below it, and two rooms do not import each other. ``violations_of`` finds the imports
that break this; an import inside a function counts as well, one for type checkers does not.

Source: ``docs/decisions/005-packages-by-topic.md``.
"""

from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Final, NamedTuple


class Room(NamedTuple):
    name: str
    floor: int
    prefixes: Sequence[str]


ROOMS: Final = (
    Room("netstack", 0, ("netstack",)),
    Room(
        "contracts",
        0,
        (
            "flowlet.errors",
            "flowlet.former_names",
            "flowlet.common",
            "flowlet.connectors.database.statement",
            "flowlet.connectors.files.api",
            "flowlet.datastream.connectors.base",
            "flowlet.datastream.connectors.datagen",
            "flowlet.connectors.database.statement",
            "flowlet.datastream.connectors.file_system",
            "flowlet.datastream.connectors.write_ahead_sink",
            "flowlet.datastream.formats.bulk_formats",
            "flowlet.datastream.functions",
            "flowlet.datastream.async_retry_strategies",
            "flowlet.datastream.async_retry_predicates",
            "flowlet.datastream.sinks",
            "flowlet.datastream.output_tag",
            "flowlet.datastream.state",
            "flowlet.datastream.states",
            "flowlet.datastream.time_domain",
            "flowlet.datastream.timerservice",
            "flowlet.datastream.user_functions",
            "flowlet.datastream.window",
            "flowlet.metrics",
        ),
    ),
    Room(
        "messages",
        0,
        (
            "flowlet.messages",
            "flowlet.graph.execution_events",
            "flowlet.graph.partitioner",
            "flowlet.splits.split_kinds",
        ),
    ),
    Room("logs", 0, ("flowlet.logs",)),
    Room(
        "options",
        0,
        (
            "flowlet.common.config_options",
            "flowlet.common.configuration",
            "flowlet.common.execution_config",
            "flowlet.common.flinks_options",
            "flowlet.common.job_settings",
            "flowlet.common.option",
            "flowlet.common.options",
            "flowlet.common.restart_strategy",
            "flowlet.common.units",
            "flowlet.datastream.checkpoint_config",
            "flowlet.datastream.checkpoint_storage",
            "flowlet.datastream.checkpointing_mode",
            "flowlet.datastream.execution_mode",
            "flowlet.datastream.externalized_checkpoint_retention",
            "flowlet.datastream.state_backend",
            "flowlet.rpc.config_file",
        ),
    ),
    Room("columns", 1, ("flowlet.columns", "flowlet.records")),
    Room("keys", 1, ("flowlet.keys",)),
    Room("serde", 1, ("flowlet.serde",)),
    Room("storage", 1, ("flowlet.storage",)),
    Room("types", 2, ("flowlet.common.values", "flowlet.types", "flowlet.typed")),
    Room("graph", 2, ("flowlet.graph",)),
    # The JobManager loads of a connector what finds its splits, and nothing else.
    Room("splits", 2, ("flowlet.splits", "flowlet.connectors.*.split")),
    Room("state", 3, ("flowlet.state",)),
    Room("mailbox", 3, ("flowlet.mailbox", "flowlet.timers", "flowlet.watermarks")),
    Room("chain", 4, ("flowlet.chain", "flowlet.io", "flowlet.operators")),
    Room("windows", 4, ("flowlet.joins", "flowlet.kernels.windows", "flowlet.windows")),
    Room("aggregations", 4, ("flowlet.kernels", "flowlet.operators.keyed_aggregation_operator")),
    Room("async_io", 4, ("flowlet.async_io",)),
    Room("sorted_input", 4, ("flowlet.sorted_input",)),
    Room("task", 5, ("flowlet.task",)),
    Room("task's checkpoints", 5, ("flowlet.checkpoint.task",)),
    Room("connectors", 5, ("flowlet.connectors",)),
    Room("sinks", 5, ("flowlet.sinks",)),
    Room("jm", 6, ("flowlet.jm",)),
    Room(
        "JobManager's checkpoints",
        6,
        ("flowlet.checkpoint.jobmanager", "flowlet.checkpoint.jobmanager.savepoints", "flowlet.state_reader"),
    ),
    Room("tm", 6, ("flowlet.tm",)),
    Room("rpc", 6, ("flowlet.rpc",)),
    Room("shipping", 6, ("flowlet.shipping",)),
    Room("datastream", 7, ("flowlet.datastream", "flowlet.connectors.database.api", "flowlet.connectors.kafka.api")),
    Room("client", 8, ("flowlet.client",)),
    Room("ingest", 8, ("flowlet.ingest",)),
    Room("spark", 8, ("flowlet.spark",)),
    Room("cli", 9, ("flowlet.__main__", "flowlet.cli")),
    Room("testing", 9, ("flowlet.testing",)),
)


def room_of(module: str, rooms: Sequence[Room] = ROOMS) -> Room | None:
    """The room that a module lies in; None: it lies in none."""
    found: tuple[int, Room] | None = None
    for room in rooms:
        for prefix in room.prefixes:
            is_inside = module == prefix or module.startswith(f"{prefix}.") or fnmatchcase(module, prefix)
            if is_inside and (found is None or len(prefix) > found[0]):
                found = len(prefix), room
    return None if found is None else found[1]


def violations_of(edges: Mapping[str, set[str]], rooms: Sequence[Room] = ROOMS) -> Iterator[str]:
    """Yield imports upward, and pairs of rooms that import each other, with what to do."""
    both: set[tuple[str, str]] = set()
    for importer, targets in sorted(edges.items()):
        here = room_of(importer, rooms)
        for target in sorted(targets):
            there = room_of(target, rooms)
            if here is None or there is None or here == there:
                continue
            both.add((here.name, there.name))
            if there.floor > here.floor:
                yield (
                    f"{importer} imports {target}, and {here.name} is on a floor below {there.name}: "
                    "move what is needed down, or let the caller pass it in"
                )
    for first, second in sorted(both):
        if first < second and (second, first) in both:
            yield f"the rooms {first} and {second} import each other: let one of them be given what it needs"
