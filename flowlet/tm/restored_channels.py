"""The data in flight of a checkpoint that one subtask processes before anything else.

Side:       task.  ``read`` reads files.
Rules:      a stream is what one former producer had for one former consumer: first what the consumer had kept, then
            what the producer had.  With the same number of subtasks on both sides, each stream goes to its own channel.
            Else a stream goes - by key: to every subtask that has some of the former consumer's key groups, which takes
            the records of its own; - broadcast: to every subtask that goes on from that former consumer (its number
            modulo the former number of consumers); - else: to the subtask with the former consumer's number, modulo the
            number of consumers now.  Streams of an edge that became part of the chain go to the operator that read it;
            those of later operators first, because their records are older.
Source:     Flink ``TaskStateAssignment``, ``SubtaskStateMapper``.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence

from flowlet.checkpoint.input_recovery import KeyRangeFilter
from flowlet.checkpoint.snapshots import ChannelStateSnapshot, RecoveredStream
from flowlet.graph.partitioner import Broadcast, KeyGroups, Partitioner
from flowlet.keys.exact_keys import key_group_range
from flowlet.messages.control_messages import RestoredEdge, StateHandle, SubtaskEntry, TaskDeploymentDescriptor
from flowlet.serde.deploy_blobs import load_partitioner
from netstack.late import dataclass


@dataclass(frozen=True, slots=True)
class _Share:
    """The former consumers of one edge whose streams a subtask reads; those in ``filters`` in part only."""

    edge: RestoredEdge
    consumers: tuple[int, ...]
    filters: frozenset[int] = frozenset()
    select: KeyRangeFilter | None = None


def restored_streams(
    descriptor: TaskDeploymentDescriptor, read: Callable[[StateHandle], ChannelStateSnapshot]
) -> list[RecoveredStream]:
    """All streams of a subtask: first those of operators inside its chain, the last one first, then the others in the
    order of its gates.

    Raises:
        Exception: from ``read``; each handle is read once at most.
        DeploymentError: a partitioner cannot be opened.
    """
    restored = descriptor.restored
    if restored is None or restored.is_finished:
        return []
    shares = [_share(edge, descriptor) for edge in restored.edges]
    kept: _Pieces = defaultdict(list)  # by the consumers
    behind: _Pieces = defaultdict(list)  # by the producers
    for handle, places in _handles(restored.vertices[0].parts if restored.vertices else [], shares).items():
        data = read(handle)
        for index, subtask, is_consumer in places:
            edge = shares[index].edge
            if is_consumer:
                for (gate, channel), pieces in data.inputs.items():
                    if gate == edge.gate:
                        kept[index, subtask, channel] += pieces
                continue
            for consumer in shares[index].consumers:
                behind[index, consumer, subtask] += data.outputs.get((edge.output, consumer), ())
    found = {place: (*kept.get(place, ()), *behind.get(place, ())) for place in kept.keys() | behind.keys()}
    order = sorted(found, key=lambda place: (-shares[place[0]].edge.operator, place))
    return [_stream(shares[place[0]], place[1], place[2], found[place], descriptor) for place in order if found[place]]


# By share, former consumer, former channel.
_Pieces = defaultdict[tuple[int, int, int], list[bytes]]


def _handles(parts: Sequence[SubtaskEntry], shares: Sequence[_Share]) -> dict[StateHandle, list[tuple[int, int, bool]]]:
    """What to read, each once, with the share and the subtask that it is of, and whether as a consumer."""
    handles: dict[StateHandle, list[tuple[int, int, bool]]] = defaultdict(list)
    for index, share in enumerate(shares):
        for consumer in parts if share.edge.consumers is None else share.edge.consumers:
            if consumer.channels is not None and consumer.subtask in share.consumers:
                handles[consumer.channels].append((index, consumer.subtask, True))
        for producer in share.edge.producers:
            assert producer.channels is not None, "producers without data in flight are not sent"
            handles[producer.channels].append((index, producer.subtask, False))
    return handles


def _stream(
    share: _Share, consumer: int, channel: int, pieces: tuple[bytes, ...], descriptor: TaskDeploymentDescriptor
) -> RecoveredStream:
    edge = share.edge
    is_same = (edge.former_producers, edge.former_consumers) == (edge.num_producers, descriptor.parallelism)
    is_same = is_same and not edge.operator and not edge.is_pointwise
    select = share.select if consumer in share.filters else None
    gate = edge.gate if edge.new_gate is None else edge.new_gate
    return RecoveredStream(gate, channel if is_same else None, pieces, select, edge.operator)


def _share(edge: RestoredEdge, descriptor: TaskDeploymentDescriptor) -> _Share:
    subtask, parallelism = descriptor.subtask, descriptor.parallelism
    if edge.former_consumers == parallelism and not edge.is_by_key_now:
        return _Share(edge, (subtask,))
    if edge.operator:  # its records go forward now, or there is one subtask
        return _Share(edge, tuple(range(subtask, edge.former_consumers, parallelism)))
    partitioner: Partitioner = load_partitioner(edge.partitioner, descriptor.task_name, descriptor.code)
    if isinstance(partitioner, KeyGroups):
        return _share_of_keys(edge, partitioner, subtask, parallelism)
    if isinstance(partitioner, Broadcast):
        return _Share(edge, (subtask % edge.former_consumers,))
    return _Share(edge, tuple(range(subtask, edge.former_consumers, parallelism)))


def _share_of_keys(edge: RestoredEdge, partitioner: KeyGroups, subtask: int, parallelism: int) -> _Share:
    num_groups = partitioner.max_parallelism
    own = key_group_range(num_groups, parallelism, subtask)
    if edge.is_by_key_now:
        everyone = range(edge.former_consumers)
        return _Share(edge, tuple(everyone), frozenset(everyone), KeyRangeFilter(partitioner, own, subtask))
    former = {each: key_group_range(num_groups, edge.former_consumers, each) for each in range(edge.former_consumers)}
    overlapping = tuple(each for each, groups in former.items() if groups.start < own.stop and own.start < groups.stop)
    partly = frozenset(each for each in overlapping if former[each].start < own.start or own.stop < former[each].stop)
    return _Share(edge, overlapping, partly, KeyRangeFilter(partitioner, own, subtask))
