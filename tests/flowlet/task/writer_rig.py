"""A record writer, its partition, and a reader for each channel."""

import random
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from flowlet.graph.partitioner import Partitioner
from flowlet.io.create_record_writer import create_record_writer
from flowlet.io.record_writer import RecordWriter, RecordWriterOptions
from flowlet.keys.exact_keys import key_group, operator_index
from flowlet.records import Chunk
from netstack.partition.result_partition import ResultPartition
from tests.flowlet.task.local_network import LocalNetwork, SubpartitionReader


def identity(record: Any) -> Any:
    return record


class Rig:
    """A writer, its partition, and a reader per channel."""

    def __init__(
        self,
        network: LocalNetwork,
        partitioner: Partitioner,
        num_channels: int,
        *,
        buffer_timeout_ms: int = -1,
        max_buffers: int = 2_000,
        rng: random.Random | None = None,
    ) -> None:
        self.network = network
        self.partition: ResultPartition = network.partition(num_channels, max_buffers)
        self.num_written = 0
        options = RecordWriterOptions(buffer_timeout_ms, 5, self._count, random.Random(3) if rng is None else rng)
        self.writer: RecordWriter = create_record_writer(self.partition, partitioner, options)
        self.readers = [SubpartitionReader(network.manager, self.partition, index) for index in range(num_channels)]

    def _count(self) -> None:
        self.num_written += 1

    def collect(self, *values: Any) -> None:
        self.writer.collect(Chunk(list(values)))

    def values(self) -> list[list[object]]:
        """Return all that arrived at each channel so far."""
        self.writer.flush_pending()
        self.partition.flush_all()
        return [reader.read_values() for reader in self.readers]

    def elements(self, channel: int = 0) -> list[object]:
        self.writer.flush_pending()
        self.partition.flush_all()
        return list(self.readers[channel].read())

    def chunks(self, channel: int = 0) -> list[Chunk]:
        return [element for element in self.elements(channel) if isinstance(element, Chunk)]


Make = Callable[..., Rig]


def channel_of(key: object, num_channels: int, max_parallelism: int = 128) -> int:
    if type(key) is str:  # others may be equal and not the same key
        return _channel_of_text(key, num_channels, max_parallelism)
    return operator_index(key_group(key, max_parallelism), max_parallelism, num_channels)


@lru_cache(1 << 17)
def _channel_of_text(key: str, num_channels: int, max_parallelism: int) -> int:
    return operator_index(key_group(key, max_parallelism), max_parallelism, num_channels)


def by_channel(values: list[Any], num_channels: int, key: Callable[[Any], Any] = identity) -> list[list[Any]]:
    """Return the records by channel, taken one at a time, for reference."""
    channels: list[list[Any]] = [[] for _ in range(num_channels)]
    for value in values:
        channels[channel_of(key(value), num_channels)].append(value)
    return channels
