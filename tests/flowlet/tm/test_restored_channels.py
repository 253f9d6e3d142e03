"""The data in flight that a subtask reads: its own channels' with an unchanged parallelism, else every record once."""

import operator
from collections import Counter
from collections.abc import Callable

import pytest

from flowlet.checkpoint.task.input_recovery import restored_streams
from flowlet.checkpoint.task.snapshots import ChannelStateSnapshot, RecoveredStream
from flowlet.graph.partitioner import Broadcast, Custom, KeyGroups, Partitioner, Rebalance
from flowlet.keys.exact_keys import key_group, operator_index
from flowlet.messages.control_messages import TaskDeploymentDescriptor
from flowlet.messages.job_messages import RestoredEdge, RestoredState, RestoredVertex, StateHandle, SubtaskEntry
from flowlet.records import Chunk
from flowlet.serde.deploy_blobs import dump_partitioner
from flowlet.serde.element_serializer import ElementDeserializer
from tests.flowlet.task.local_tasks import serialized

NUM_GROUPS = 16
KEYS = KeyGroups(operator.itemgetter(0), NUM_GROUPS)


def handle(name: str) -> StateHandle:
    return StateHandle(1, name.encode())


def streams_of(
    restored: RestoredState | None,
    read: Callable[[StateHandle], ChannelStateSnapshot],
    subtask: int = 0,
    parallelism: int = 1,
) -> list[RecoveredStream]:
    """Return the streams that a subtask reads."""
    descriptor = TaskDeploymentDescriptor(
        "job", "job", "v", "t", subtask, parallelism, NUM_GROUPS, bytes(40), b"", [], [], restored=restored
    )
    return restored_streams(descriptor, read)


class Checkpoint:
    """One edge, gate 1 of the consumer and output 2 of the producer; each channel holds two records in both parts."""

    def __init__(self, num_producers: int, num_consumers: int, partitioner: Partitioner = KEYS) -> None:
        self.num_producers, self.num_consumers, self.partitioner = num_producers, num_consumers, partitioner
        self.kept: dict[StateHandle, ChannelStateSnapshot] = {}
        self.num_reads: Counter[StateHandle] = Counter()
        keys = iter(range(10_000))
        of_consumer: dict[int, list[int]] = {consumer: [] for consumer in range(num_consumers)}
        while min(map(len, of_consumer.values())) < 4 * num_producers:
            key = next(keys)
            of_consumer[operator_index(key_group(key, NUM_GROUPS), NUM_GROUPS, num_consumers)].append(key)
        self.records: list[tuple[int, str]] = []

        def pieces(name: str, producer: int, consumer: int) -> tuple[bytes, ...]:
            found = [(of_consumer[consumer].pop(), f"{name}-{producer}-{consumer}") for _ in range(2)]
            self.records += found
            return tuple(serialized(Chunk([each])) for each in found)

        for consumer in range(num_consumers):
            inputs = {(1, producer): pieces("in", producer, consumer) for producer in range(num_producers)}
            self.kept[handle(f"c{consumer}")] = ChannelStateSnapshot(
                {**inputs, (0, 0): (b"another gate",)}, {(2, 0): (b"of its own",)}
            )
        for producer in range(num_producers):
            outputs = {(2, consumer): pieces("out", producer, consumer) for consumer in range(num_consumers)}
            self.kept[handle(f"p{producer}")] = ChannelStateSnapshot(
                {(1, 0): (b"of its own",)}, {**outputs, (0, 0): (b"another edge",)}
            )

    def read(self, of: StateHandle) -> ChannelStateSnapshot:
        self.num_reads[of] += 1
        return self.kept[of]

    def streams(
        self, subtask: int, parallelism: int, num_producers: int
    ) -> list[tuple[int, int | None, list[tuple[int, str]]]]:
        """Return the streams that a subtask reads: gate, channel and records, of which each stream selects its own."""
        producers = [SubtaskEntry("v", each, channels=handle(f"p{each}")) for each in range(self.num_producers)]
        blob = dump_partitioner(self.partitioner, "e") if parallelism != self.num_consumers else b"never opened"
        edge = RestoredEdge(
            "e", 1, 2, producers, self.num_producers, self.num_consumers, num_producers, partitioner=blob
        )
        parts = [SubtaskEntry("v", each, channels=handle(f"c{each}")) for each in range(self.num_consumers)]
        restored = RestoredState(3, [RestoredVertex(self.num_consumers, [], parts)], edges=[edge])
        found = []
        for stream in streams_of(restored, self.read, subtask, parallelism):
            elements = ElementDeserializer().feed(memoryview(b"".join(stream.pieces)))
            chunks = [each for each in elements if isinstance(each, Chunk)]
            chosen = [each if stream.select is None else stream.select(each) for each in chunks]
            found.append((stream.gate, stream.channel, [value for chunk in chosen for value in chunk.values]))
        return found


def test_with_the_same_parallelism_each_channel_gets_its_own_first_from_the_consumer_then_from_the_producer() -> None:
    checkpoint = Checkpoint(3, 2)

    found = checkpoint.streams(1, 2, 3)

    assert [(gate, channel) for gate, channel, _ in found] == [(1, 0), (1, 1), (1, 2)]
    names = [[name for _, name in records] for _, _, records in found]
    assert names == [[f"in-{producer}-1"] * 2 + [f"out-{producer}-1"] * 2 for producer in range(3)]
    assert set(checkpoint.num_reads.values()) == {1}
    assert handle("c0") not in checkpoint.num_reads, "the other consumer's part is not read"


@pytest.mark.parametrize("parallelism", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("former", [1, 2, 3, 4])
def test_by_key_each_record_goes_to_the_subtask_that_owns_its_key(former: int, parallelism: int) -> None:
    checkpoint = Checkpoint(2, former)

    found = {subtask: checkpoint.streams(subtask, parallelism, 2) for subtask in range(parallelism)}

    got = [record for streams in found.values() for _, _, records in streams for record in records]
    assert Counter(got) == Counter(checkpoint.records)
    for subtask, streams in found.items():
        for _, channel, records in streams:
            assert (channel is None) == (former != parallelism)
            assert all(
                operator_index(key_group(key, NUM_GROUPS), NUM_GROUPS, parallelism) == subtask for key, _ in records
            )


def test_with_other_producers_only_the_records_count() -> None:
    checkpoint = Checkpoint(2, 2)

    streams = checkpoint.streams(0, 2, 3)

    assert [channel for _, channel, _ in streams] == [None, None]
    assert {name for _, _, records in streams for _, name in records} == {"in-0-0", "out-0-0", "in-1-0", "out-1-0"}


@pytest.mark.parametrize("partitioner", [Rebalance(), Custom(operator.mod, operator.itemgetter(0))])
@pytest.mark.parametrize("parallelism", [1, 2, 5])
def test_on_other_edges_a_stream_stays_whole(partitioner: Partitioner, parallelism: int) -> None:
    checkpoint = Checkpoint(2, 3, partitioner)

    found = {subtask: checkpoint.streams(subtask, parallelism, 2) for subtask in range(parallelism)}

    got = [record for streams in found.values() for _, _, records in streams for record in records]
    assert Counter(got) == Counter(checkpoint.records)
    for subtask, streams in found.items():
        assert {int(name[-1]) % parallelism for _, _, records in streams for _, name in records} <= {subtask}


@pytest.mark.parametrize("parallelism", [1, 2, 5])
def test_of_a_broadcast_each_subtask_reads_on_where_one_former_consumer_stood(parallelism: int) -> None:
    checkpoint = Checkpoint(1, 3, Broadcast())

    for subtask in range(parallelism):
        names = {name for _, _, records in checkpoint.streams(subtask, parallelism, 1) for _, name in records}
        assert names == {f"in-0-{subtask % 3}", f"out-0-{subtask % 3}"}


def test_operators_that_had_finished_read_nothing() -> None:
    edge = RestoredEdge("e", 0, 0, [SubtaskEntry("v", 0, channels=handle("p0"))], 1, 1, 1)

    for restored in (None, RestoredState(3, is_finished=True, edges=[edge])):
        assert streams_of(restored, Checkpoint(1, 1).read) == []


def test_streams_inside_a_chain_come_before_those_of_its_gates_and_the_last_operators_first() -> None:
    """Records that were further on are older.

    The inputs and the outputs of a vertex in the middle are in one file, which is read once.
    """
    kept = {
        handle("s"): ChannelStateSnapshot({}, {(0, 0): (b"s to m",)}),
        handle("m"): ChannelStateSnapshot({(0, 0): (b"at m",)}, {(0, 0): (b"m to k",)}),
        handle("k"): ChannelStateSnapshot({(0, 0): (b"at k",)}, {}),
        handle("head"): ChannelStateSnapshot({(0, 0): (b"at the head",)}, {}),
    }
    num_reads: Counter[StateHandle] = Counter()

    def read(of: StateHandle) -> ChannelStateSnapshot:
        num_reads[of] += 1
        return kept[of]

    def part(name: str) -> list[SubtaskEntry]:
        return [SubtaskEntry("v", 0, channels=handle(name))]

    edges = [
        RestoredEdge("e", 0, 0, [], 1, 1, 1),
        RestoredEdge("", 0, 0, part("s"), 1, 1, 0, operator=1, consumers=part("m")),
        RestoredEdge("", 0, 0, part("m"), 1, 1, 0, operator=2, consumers=part("k")),
    ]

    found = streams_of(RestoredState(3, [RestoredVertex(1, [], part("head"))], edges=edges), read)

    assert [(each.operator, each.channel, each.pieces) for each in found] == [
        (2, None, (b"at k", b"m to k")),
        (1, None, (b"at m", b"s to m")),
        (0, 0, (b"at the head",)),
    ]
    assert set(num_reads.values()) == {1}


@pytest.mark.parametrize("parallelism", [1, 2, 3])
def test_each_stream_of_an_edge_inside_a_chain_goes_to_one_subtask(parallelism: int) -> None:
    former = 4
    parts = [SubtaskEntry("v", each, channels=handle(f"{each}")) for each in range(former)]
    edge = RestoredEdge("", 0, 0, [], 1, former, 0, operator=1, consumers=parts)
    restored = RestoredState(3, edges=[edge])

    def read(of: StateHandle) -> ChannelStateSnapshot:
        return ChannelStateSnapshot({(0, 0): (of.sha256,)}, {})

    streams = [each for subtask in range(parallelism) for each in streams_of(restored, read, subtask, parallelism)]

    found = [piece for each in streams for piece in each.pieces]
    assert sorted(found) == [b"0", b"1", b"2", b"3"]


def test_where_records_have_a_key_now_and_had_none_each_subtask_takes_its_own_from_all_streams() -> None:
    """The number of a stream says nothing about the keys in it, even with as many subtasks as before."""
    records = [(key, "text") for key in range(40)]
    content = ChannelStateSnapshot({(0, 0): (serialized(Chunk(records)),)}, {})
    edge = RestoredEdge("e", 0, 0, [], 1, 2, 1, partitioner=dump_partitioner(KEYS, "e"), new_gate=0, is_by_key_now=True)
    restored = RestoredState(3, [RestoredVertex(2, [], [SubtaskEntry("v", 0, channels=handle("0"))])], edges=[edge])
    found = []
    for subtask in range(2):
        (stream,) = streams_of(restored, lambda _: content, subtask, 2)
        assert stream.select is not None
        own = stream.select(Chunk(list(records))).values
        assert {operator_index(key_group(key, NUM_GROUPS), NUM_GROUPS, 2) for key, _ in own} == {subtask}
        found += own

    assert sorted(found) == records
