"""Names the sources of a job that cannot go on where a checkpoint was taken.

Side: shared.
"""

from collections.abc import Iterator

from flowlet.datastream.remote_gate import RemoteGate
from flowlet.datastream.user_functions.function import CheckpointedFunction
from flowlet.datastream.user_functions.source_function import SourceFunction, can_be_replayed
from flowlet.graph.stream_graph import StreamGraph
from flowlet.graph.transformation import SourceTransformation
from netstack.log_lines import LogLines

_log = LogLines(__name__)
_BEGINS_ANEW = (
    "it begins anew after a restart, and records that it emits again count again; override restore_position(), or make "
    "it a "
    "CheckpointedFunction, to prevent that"
)
_PUSHED = (
    "flowlet.gate.acknowledge is processed, so partitions that producers pushed since the last checkpoint are lost by "
    "a restart, also if "
    "they were acknowledged"
)


def warn_of_sources_without_position(stream_graph: StreamGraph) -> None:
    """Log a warning per source of a job with checkpoints that keeps no position."""
    if stream_graph.settings.job.checkpoints is None:
        return
    for name, consequence in sources_without_position(stream_graph):
        _log.warning(
            "a source has no position in checkpoints", job=stream_graph.name, source=name, consequence=consequence
        )


def sources_without_position(stream_graph: StreamGraph) -> Iterator[tuple[str, str]]:
    """Name and consequence of each; not of a user's own ``Source``, whose readers are made in the
    tasks and warn there.
    """
    for node in stream_graph.nodes.values():
        step = node.transformation
        if not isinstance(step, SourceTransformation):
            continue
        match step.source:
            case RemoteGate() if not stream_graph.settings.job.acknowledges_checkpointed:
                yield node.name, _PUSHED
            case SourceFunction() as function if not can_be_replayed(function) and not isinstance(
                function, CheckpointedFunction
            ):
                yield node.name, _BEGINS_ANEW
            case _:
                pass
