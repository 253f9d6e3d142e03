"""A gate that is closed while it is polled and while data arrives, under constant thread switches."""

from abc import ABC, abstractmethod
from collections import Counter

import pytest

from netstack.buffer.network_buffer_pool import NetworkBufferPool
from netstack.errors import ResourceClosedError
from netstack.gate.channels.local_input_channel import LocalInputChannel
from netstack.gate.single_input_gate import SingleInputGate
from netstack.partition.result_partition import ResultPartition
from netstack.partition.result_partition_manager import ResultPartitionManager
from tests.flowlet.task.watchdog import watchdog
from tests.netstack.gate.doubles import RecordingClient, data, remote_channel
from tests.netstack.partition.doubles import partition_id_of
from tests.stress import Opponent, num_rounds

pytestmark = pytest.mark.slow

NUM_ROUNDS = num_rounds(2_000)
PER_BATCH = 200
NUM_READY = 2  # buffers that are there when a round begins
FORCED_EVERY = 50  # so often one of the orders is forced, in turns; in between chance decides
SEGMENT = 64


class Batch(ABC):
    """Gates with one channel each, ready to be polled; ``end`` checks that all memory came home."""

    def __init__(self) -> None:
        self.memory = NetworkBufferPool(6 * PER_BATCH, SEGMENT)
        self.gates: list[SingleInputGate] = []

    @abstractmethod
    def deliver(self, index: int) -> None:
        """Deliver one more buffer for a gate, on the thread that brings data."""

    def end(self) -> None:
        for gate in self.gates:
            gate.check_invariants()
            assert gate.channels[0].is_released
            assert gate.available_future().is_done, "whoever waits for a closed gate would wait for ever"
            assert gate.priority_event_available_future().is_done
        assert self.memory.num_available == self.memory.num_total, f"buffers left behind: {self.memory!r}"
        self.memory.destroy()


class LocalBatch(Batch):
    """Gates that read one partition of this process, a subpartition each."""

    def __init__(self) -> None:
        super().__init__()
        self._manager = ResultPartitionManager()
        pool = self.memory.create_buffer_pool(owner="producer", num_required=PER_BATCH + 1, max_buffers=5 * PER_BATCH)
        self._partition = ResultPartition(partition_id_of(), PER_BATCH, pool, "producer")
        self._manager.register(self._partition)
        for index in range(PER_BATCH):
            gate = SingleInputGate("consumer")
            gate.add_channel(LocalInputChannel(gate, 0, self._partition.partition_id, index, self._manager))
            gate.request_partitions()
            self.gates.append(gate)
            for _ in range(NUM_READY):
                self.deliver(index)

    def deliver(self, index: int) -> None:
        self._partition.emit_record(bytes(SEGMENT), index)  # one buffer each
        self._partition.flush(index)

    def end(self) -> None:
        self._partition.close()
        assert len(self._manager) == 0, "a subpartition whose reader was closed is not consumed"
        super().end()
        self._manager.shutdown()


class RemoteBatch(Batch):
    """Every gate has a connection, two exclusive buffers and a floating one of its own."""

    def __init__(self) -> None:
        super().__init__()
        self._clients = [RecordingClient() for _ in range(PER_BATCH)]
        self._numbers: Counter[int] = Counter()
        self._channels = []
        for index in range(PER_BATCH):
            gate = SingleInputGate("consumer")
            channel = remote_channel(
                gate, self._clients[index], self.memory, num_segments=NUM_READY + 1, is_requested=False
            )
            gate.add_channel(channel)
            gate.set_buffer_pool(self.memory.create_buffer_pool(owner="consumer", num_required=1, max_buffers=2))
            gate.request_partitions()
            self._channels.append(channel)
            self.gates.append(gate)
            for _ in range(NUM_READY):
                self.deliver(index)

    def deliver(self, index: int) -> None:
        self._channels[index].on_response(data(self._channels[index], self._numbers[index], backlog=1))
        self._numbers[index] += 1

    def end(self) -> None:
        assert all(client.orders.count(("cancel", 0)) == 1 for client in self._clients), (
            "the producer hears of the end once"
        )
        super().end()


def poll_until_closed(gate: SingleInputGate) -> int:
    """Poll until the gate is closed, asleep while there is no data; return how many buffers the task got."""
    num_polled = 0
    try:
        while True:
            found = gate.get_next()
            assert found is not None, "the gate believes that it is finished"
            assert found.buffer is not None
            found.buffer.recycle()
            num_polled += 1
    except ResourceClosedError:
        return num_polled


def recycle(gate: SingleInputGate, num_buffers: int) -> None:
    """Poll so many buffers, which are there."""
    for _ in range(num_buffers):
        found = gate.poll_next()
        assert found is not None
        assert found.buffer is not None
        found.buffer.recycle()


def poll_and_close(gate: SingleInputGate, num_polls: int) -> int:
    num_polled = 0
    for _ in range(num_polls):
        found = gate.poll_next()
        if found is not None:
            assert found.buffer is not None
            found.buffer.recycle()
            num_polled += 1
    gate.close()
    return num_polled


@pytest.mark.parametrize("kind", [LocalBatch, RemoteBatch])
def test_a_gate_is_closed_by_another_thread_while_the_task_polls(kind: type[Batch], tiny_switch_interval: None) -> None:
    """The task gets the error, and all memory comes home (FLINK-17823, FLINK-18595)."""
    num_polled: Counter[int] = Counter()
    batches: list[Batch] = []
    with Opponent.acting(lambda round_: batches[-1].gates[round_ % PER_BATCH].close()) as canceler:
        for _ in range(NUM_ROUNDS // PER_BATCH):
            batches[:] = [kind()]
            with watchdog():
                for index, gate in enumerate(batches[0].gates):
                    if index % FORCED_EVERY:
                        canceler.begin()
                        num_polled[poll_until_closed(gate)] += 1
                        canceler.wait()
                        continue
                    num_before_close = index // FORCED_EVERY % (NUM_READY + 1)
                    recycle(gate, num_before_close)
                    canceler.begin()
                    canceler.wait()
                    assert poll_until_closed(gate) == 0
                    num_polled[num_before_close] += 1
            batches[0].end()

    assert num_polled.total() == NUM_ROUNDS
    assert set(num_polled) == set(range(NUM_READY + 1))


@pytest.mark.parametrize("kind", [LocalBatch, RemoteBatch])
def test_the_task_closes_its_gate_while_data_arrives(kind: type[Batch], tiny_switch_interval: None) -> None:
    """Buffers that arrive after the close are given back; buffers that arrived in time are polled or given back."""
    num_polled: Counter[int] = Counter()
    batches: list[Batch] = []
    with Opponent.acting(lambda round_: batches[-1].deliver(round_ % PER_BATCH)) as producer:
        for _ in range(NUM_ROUNDS // PER_BATCH):
            batches[:] = [kind()]
            with watchdog():
                for index, gate in enumerate(batches[0].gates):
                    producer.begin()
                    if index % FORCED_EVERY == 0:
                        producer.wait()
                        assert poll_and_close(gate, NUM_READY + 2) == NUM_READY + 1, "what came in time is polled"
                        num_polled[NUM_READY + 1] += 1
                    else:
                        num_polled[poll_and_close(gate, index % (NUM_READY + 2))] += 1
                        producer.wait()
            batches[0].end()

    assert num_polled.total() == NUM_ROUNDS
    assert set(num_polled) == set(range(NUM_READY + 2))
