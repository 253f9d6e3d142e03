"""``InputRecovery``: processes the data in flight of a checkpoint before a task reads anything new.

``KeyRangeFilter``: keeps the records whose keys belong to a subtask.  ``restored_streams``: chooses the data in flight
that a subtask processes.

Side:       task.
Invariants: a record is kept by exactly one subtask of the consumer: by the one that a record writer would send it to.
            Each stream has a deserializer of its own: it begins at the beginning of an element, and with the texts of
            the channel's codes.  A stream that ends within an element was cut off, and fails the task.  A piece is
            dropped when it was processed.
Source:     Flink ``RecordFilter``, ``VirtualChannelSelector``.  Flink ``RecoveredInputChannel``,
            ``RescalingStreamTaskNetworkInput``.  Flink ``TaskStateAssignment``, ``SubtaskStateMapper``.
Rules:      of a stream whose channel is still there, records and watermarks go in as from that channel; of any other
            stream only the records do: its watermark says nothing about the channels of this run.  Marks and latency
            markers are of the former run, and nobody waits for them.  Records that another program wrote become
            instances of the running program's classes.  A stream is the data of one former producer for one former
            consumer: first the part that the consumer had kept, then the part that the producer had.  If the numbers of
            subtasks on both sides are as before, each stream goes to its own channel.  Otherwise a stream goes
            - by key: to every subtask that has some of the former consumer's key groups; the subtask takes the records
            of its own groups;
            - broadcast: to every subtask that goes on from the former consumer (its number modulo the former number of
            consumers);
            - else: to the subtask with the former consumer's number, modulo the number of consumers now.
            Streams of an edge that became part of the chain go to the operator that read it; streams of later operators
            first, because their records are older.
"""

from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import field, replace
from typing import Any

import numpy as np

from flowlet.chain.chunking_output import KeyExtractor, create_key_extractor
from flowlet.checkpoint.task.snapshots import ChannelStateSnapshot, RecoveredStream
from flowlet.errors import SerdeError, StateRestoreError
from flowlet.graph.partitioner import Broadcast, KeyGroups, Partitioner
from flowlet.io.input_processor import InputProcessor
from flowlet.keys.exact_keys import key_group_range
from flowlet.keys.key_columns import column_key_groups
from flowlet.messages.control_messages import TaskDeploymentDescriptor
from flowlet.messages.job_messages import RestoredEdge, StateHandle, SubtaskEntry
from flowlet.records import Chunk, StreamElement
from flowlet.serde.deploy_blobs import load_partitioner
from flowlet.serde.element_limits import ElementLimits
from flowlet.serde.element_serializer import ElementDeserializer
from flowlet.serde.pickles.former_classes import FormerClassError
from flowlet.serde.pickles.record_pickle import classes_found_by
from netstack.late import dataclass


class KeyRangeFilter:
    """Filters chunks of one edge by key group; task thread only.

    Args:
        partitioner: of the edge.
        groups: the key groups of the subtask.
        subtask: for errors of the key selector.
    """

    def __init__(self, partitioner: KeyGroups, groups: range, subtask: int) -> None:
        keys = create_key_extractor(partitioner, subtask, 1)
        assert keys is not None, "an edge by key has a key selector"
        self._keys: KeyExtractor = keys
        self._max_parallelism = partitioner.max_parallelism
        self._groups = groups

    def __repr__(self) -> str:
        return f"<KeyRangeFilter of {self._groups} of {self._max_parallelism}>"

    def __call__(self, chunk: Chunk) -> Chunk:
        """Return the chunk's records with keys of these groups, in order and unchanged; possibly none.

        Raises:
            UserFunctionError: the key selector failed.
        """
        if not len(chunk):
            return chunk
        groups = column_key_groups(self._keys_of(chunk), self._max_parallelism)
        indices = np.flatnonzero((groups >= self._groups.start) & (groups < self._groups.stop))
        if len(indices) == len(chunk):
            return chunk
        if chunk.columns is not None:
            timestamps = chunk.timestamp_array
            return Chunk.of_columns(chunk.columns.take(indices), None if timestamps is None else timestamps[indices])
        places = indices.tolist()
        values, times, keys = chunk.values, chunk.timestamps, chunk.keys
        kept = Chunk([values[each] for each in places], None if times is None else [times[each] for each in places])
        kept.keys = None if keys is None else [keys[each] for each in places]
        kept.key_field = chunk.key_field
        return kept

    def _keys_of(self, chunk: Chunk) -> list[Any]:
        if chunk.keys is not None:
            return chunk.keys
        columns = chunk.columns
        if columns is not None and columns.key_position is not None:
            return columns.fields[columns.key_position].to_list()
        return self._keys.keys_of(chunk.values)


@dataclass(eq=False)
class InputRecovery:
    """The recovered streams of one task; task thread only.

    Args:
        streams: in the order in which they are processed; the list is taken over: a stream that was processed leaves
            it.
        target_of: by gate index the processor of the gate, and the gate's position there.
        name: the task's, for errors.
        limits: of the elements.
        inner: makes the function that gives records to an operator, by its index in the chain, above 0; None: all
            streams are for the head.
    """

    _streams: list[RecoveredStream]
    _target_of: Callable[[int], tuple[InputProcessor, int]]
    _name: str
    _limits: ElementLimits
    _inner: Callable[[int], Callable[[Chunk], int]] | None = None
    # Read, for operators behind the head.
    _waiting: deque[tuple[Callable[[Chunk], int], Chunk]] = field(init=False, default_factory=deque)
    _processor: InputProcessor | None = field(init=False, default=None)  # the one that got elements last
    _pieces: deque[bytes] = field(init=False, default_factory=deque)  # of the stream that is being processed
    _deserializer: ElementDeserializer | None = field(init=False, default=None)  # of that stream

    def __repr__(self) -> str:
        return f"<InputRecovery of {self._name}: {len(self._streams)} streams left>"

    def process(self, max_pieces: int, should_stop: Callable[[], bool]) -> bool:
        """Process up to ``max_pieces`` pieces; calls ``should_stop`` after each.  Returns whether more are left.

        Raises:
            UserFunctionError: a user function failed.
            SerdeError: an element cannot be deserialized.
            StateRestoreError: a stream ends within an element, or another program wrote it, whose classes this one
                cannot stand in for.
        """
        # The last element that waited may have been a watermark whose timers a mail has interrupted: no record may pass
        # them.  Asked only then: in a task without outputs ``should_stop`` stays true for long after a slow record.
        has_pending = bool(self._waiting) or (self._processor is not None and bool(self._processor.slices.waiting))
        if has_pending and (not self._process_pending(should_stop) or should_stop()):
            return True
        # Few at a time: mails must not wait for gigabytes of recovered data.
        for _ in range(max_pieces):
            if not self._streams:
                return False
            self._process_piece(self._streams[0])
            if not self._process_pending(should_stop):
                return True
            if should_stop():
                break
        return bool(self._streams)

    def close(self) -> None:
        """Drop the streams that are left; idempotent."""
        self._streams.clear()
        self._waiting.clear()
        self._end_stream()

    def _process_pending(self, should_stop: Callable[[], bool]) -> bool:
        """Process chunks that were read, until ``should_stop``; returns whether none is left."""
        while self._waiting:
            give, chunk = self._waiting.popleft()
            num_done = give(chunk)
            # A mail has interrupted it: the rest keeps its place before all others.
            if num_done < len(chunk):
                self._waiting.appendleft((give, chunk.slice(num_done, len(chunk))))
            if self._waiting and should_stop():
                return False
        return self._processor is None or self._processor.process_pending(should_stop)

    def _process_piece(self, stream: RecoveredStream) -> None:
        deserializer = self._deserializer
        # One for each stream: the rest of a record of one must not meet the beginning of another.
        if deserializer is None:
            self._pieces.extend(stream.pieces)
            self._streams[0] = replace(stream, pieces=())  # each piece has one owner
            name = f"{self._name}, data in flight of gate {stream.gate}, channel {stream.channel}"
            deserializer = self._deserializer = ElementDeserializer(name=name, limits=self._limits)
        if self._pieces:
            elements = _fed(deserializer, memoryview(self._pieces.popleft()), stream)
            self._process_elements(stream, _selected(elements, stream))
        if not self._pieces:
            if deserializer.has_partial:
                raise StateRestoreError(f"{deserializer!r}: the data in flight is cut off; restore another checkpoint")
            self._streams.pop(0)
            self._end_stream()

    def _process_elements(self, stream: RecoveredStream, elements: Sequence[StreamElement]) -> None:
        if not stream.operator:
            self._processor, position = self._target_of(stream.gate)
            self._processor.process_recovered(position, stream.channel, elements)
            return
        assert self._inner is not None, "only chains have operators behind their head"
        give = self._inner(stream.operator)
        # Chunks alone: a watermark of an edge that is no more says nothing here.
        self._waiting += [(give, each) for each in elements if isinstance(each, Chunk) and len(each)]

    def _end_stream(self) -> None:
        self._pieces.clear()
        if self._deserializer is not None:
            self._deserializer.close()
            self._deserializer = None


def _fed(deserializer: ElementDeserializer, piece: memoryview, stream: RecoveredStream) -> list[StreamElement]:
    if stream.find_class is None:
        return deserializer.feed(piece)
    try:
        with classes_found_by(stream.find_class):
            return deserializer.feed(piece)
    except SerdeError as error:
        cause: BaseException | None = error
        while cause is not None and not isinstance(cause, FormerClassError):
            cause = cause.__cause__
        if cause is None:
            raise
        raise StateRestoreError(
            f"{deserializer!r}: records of the program that wrote the checkpoint: {cause}"
        ) from error


def _selected(elements: list[StreamElement], stream: RecoveredStream) -> list[StreamElement]:
    select = stream.select
    if select is None:
        return elements
    kept = [select(each) if isinstance(each, Chunk) else each for each in elements]
    return [each for each in kept if not isinstance(each, Chunk) or len(each)]


@dataclass(frozen=True, slots=True)
class _Share:
    """The former consumers of one edge whose streams a subtask reads; streams of consumers in ``filters`` it reads in
    part only.
    """

    edge: RestoredEdge
    consumers: tuple[int, ...]
    filters: frozenset[int] = frozenset()
    select: KeyRangeFilter | None = None


def restored_streams(
    descriptor: TaskDeploymentDescriptor, read: Callable[[StateHandle], ChannelStateSnapshot]
) -> list[RecoveredStream]:
    """Make all streams of a subtask: first those of operators inside its chain, the last one first, then the others in
    the order of its gates.

    Raises:
        Exception: from ``read``; each handle is read once at most.
        DeploymentError: a partitioner cannot be opened.
    """
    restored = descriptor.restored
    # Its operators had finished, and so had read everything.
    if restored is None or restored.is_finished:
        return []
    shares = [_share(edge, descriptor) for edge in restored.edges]
    found: _Pieces = defaultdict(lambda: ([], []))
    for handle, places in _handles(restored.vertices[0].parts if restored.vertices else [], shares).items():
        data = read(handle)
        for index, subtask, is_consumer in places:
            edge = shares[index].edge
            if is_consumer:
                for (gate, channel), pieces in data.inputs.items():
                    if gate == edge.gate:
                        found[index, subtask, channel][0].extend(pieces)
                continue
            for consumer in shares[index].consumers:
                found[index, consumer, subtask][1].extend(data.outputs.get((edge.output, consumer), ()))
    # Later operators first: what they had not read is older than what is still before the head.
    order = sorted(found.items(), key=lambda each: (-shares[each[0][0]].edge.operator, each[0]))
    return [
        _stream(shares[index], consumer, channel, (*kept, *behind), descriptor)
        for (index, consumer, channel), (kept, behind) in order
        if kept or behind
    ]


# By share, former consumer, former channel: what the consumer had, and what the producer had.
_Pieces = defaultdict[tuple[int, int, int], tuple[list[bytes], list[bytes]]]


def _handles(parts: Sequence[SubtaskEntry], shares: Sequence[_Share]) -> dict[StateHandle, list[tuple[int, int, bool]]]:
    """List the handles to read, each once, with share and subtask of each, and whether as a consumer."""
    handles: dict[StateHandle, list[tuple[int, int, bool]]] = defaultdict(list)
    for index, share in enumerate(shares):
        for consumer in parts if share.edge.consumers is None else share.edge.consumers:
            if consumer.channels is not None and consumer.subtask in share.consumers:
                # By handle: a file that serves several edges is read once.
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
    # No key is dealt out anew: each subtask goes on with its own stream, unfiltered.
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
    # Only these need the filter: it costs a key for each record.
    partly = frozenset(each for each in overlapping if former[each].start < own.start or own.stop < former[each].stop)
    return _Share(edge, overlapping, partly, KeyRangeFilter(partitioner, own, subtask))
