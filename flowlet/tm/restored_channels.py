"""The data in flight of a checkpoint that one subtask processes before anything else.

Side:       task.  ``read`` reads files.
Rules:      a stream is what one former producer had for one former consumer: first what the consumer had kept, then what the producer had.
            With the same number of subtasks on both sides, each stream goes to its own channel.  Else a stream goes
            - by key: to every subtask that has some of the former consumer's key groups, which takes the records of its own;
            - broadcast: to every subtask that goes on from that former consumer (its number modulo the former number of consumers);
            - else: to the subtask with the former consumer's number, modulo the number of consumers now.
Source:     Flink ``TaskStateAssignment``, ``SubtaskStateMapper``.
"""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass

from flowlet.checkpoint.recovered_stream import RecoveredStream
from flowlet.checkpoint.snapshots import ChannelStateSnapshot
from flowlet.graph.partitioner import Broadcast, KeyGroups, Partitioner
from flowlet.io.key_range_filter import KeyRangeFilter
from flowlet.keys.key_groups import key_group_range
from flowlet.rpc.control_messages import RestoredEdge, StateHandle, TaskDeploymentDescriptor
from flowlet.serde.deploy_blobs import load_partitioner


@dataclass(frozen=True, slots=True)
class _Share:
    """The former consumers of one edge whose streams a subtask reads; those in ``filters`` in part only."""

    edge: RestoredEdge
    consumers: tuple[int, ...]
    filters: frozenset[int] = frozenset()
    select: KeyRangeFilter | None = None


def restored_streams(descriptor: TaskDeploymentDescriptor, read: Callable[[StateHandle], ChannelStateSnapshot]) -> list[RecoveredStream]:
    """All streams of a subtask, in the order of its gates.

    Raises:
        Exception: from ``read``; each handle is read once at most.
        DeploymentError: a partitioner cannot be opened.
    """
    restored = descriptor.restored
    if restored is None or restored.is_finished:
        return []
    shares = [_share(edge, descriptor) for edge in restored.edges]
    found: dict[tuple[int, int, int], list[bytes]] = defaultdict(list)  # by share, former consumer, former channel
    wanted = {consumer for share in shares for consumer in share.consumers}
    for part in restored.parts:
        if part.channels is not None and part.subtask in wanted:
            _add_inputs(found, shares, part.subtask, read(part.channels))
    readers: dict[StateHandle, list[tuple[int, int]]] = defaultdict(list)
    for index, share in enumerate(shares):
        for producer in share.edge.producers:
            assert producer.channels is not None, "producers without data in flight are not sent"
            readers[producer.channels].append((index, producer.subtask))
    for handle, places in readers.items():
        outputs = read(handle).outputs
        for index, subtask in places:
            for consumer in shares[index].consumers:
                found[index, consumer, subtask] += outputs.get((shares[index].edge.output, consumer), ())
    return [
        _stream(shares[index], consumer, channel, pieces, descriptor)
        for (index, consumer, channel), pieces in sorted(found.items())
        if pieces
    ]


def _add_inputs(found: dict[tuple[int, int, int], list[bytes]], shares: list[_Share], consumer: int, kept: ChannelStateSnapshot) -> None:
    for index, share in enumerate(shares):
        if consumer in share.consumers:
            for (gate, channel), pieces in kept.inputs.items():
                if gate == share.edge.gate:
                    found[index, consumer, channel] += pieces


def _stream(share: _Share, consumer: int, channel: int, pieces: list[bytes], descriptor: TaskDeploymentDescriptor) -> RecoveredStream:
    edge = share.edge
    is_same = (edge.former_producers, edge.former_consumers) == (edge.num_producers, descriptor.parallelism)
    select = share.select if consumer in share.filters else None
    return RecoveredStream(edge.gate, channel if is_same else None, tuple(pieces), select)


def _share(edge: RestoredEdge, descriptor: TaskDeploymentDescriptor) -> _Share:
    subtask, parallelism = descriptor.subtask, descriptor.parallelism
    if edge.former_consumers == parallelism:
        return _Share(edge, (subtask,))
    partitioner: Partitioner = load_partitioner(edge.partitioner, descriptor.task_name)
    if isinstance(partitioner, KeyGroups):
        return _share_of_keys(edge, partitioner, subtask, parallelism)
    if isinstance(partitioner, Broadcast):
        return _Share(edge, (subtask % edge.former_consumers,))
    return _Share(edge, tuple(range(subtask, edge.former_consumers, parallelism)))


def _share_of_keys(edge: RestoredEdge, partitioner: KeyGroups, subtask: int, parallelism: int) -> _Share:
    num_groups = partitioner.max_parallelism
    own = key_group_range(num_groups, parallelism, subtask)
    former = {each: key_group_range(num_groups, edge.former_consumers, each) for each in range(edge.former_consumers)}
    overlapping = tuple(each for each, groups in former.items() if groups.start < own.stop and own.start < groups.stop)
    partly = frozenset(each for each in overlapping if former[each].start < own.start or own.stop < former[each].stop)
    return _Share(edge, overlapping, partly, KeyRangeFilter(partitioner, own, subtask))
