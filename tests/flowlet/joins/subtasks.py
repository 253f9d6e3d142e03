"""The subtasks of one keyed operator, in harnesses: records go where their key belongs, and the number of subtasks can
change.
"""

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from flowlet.chain.stream_operator import StreamOperator
from flowlet.keys.exact_keys import key_group
from flowlet.serde.pickles.record_pickle import dumps_value, loads_value
from flowlet.testing import OperatorHarness, StreamRecord, SubtaskPlace

MAX_PARALLELISM = 8


class Subtasks:
    """Drives an operator; ``rocksdb``: where databases lie, None: state is on the heap."""

    def __init__(
        self, make: Callable[[], StreamOperator], select: Callable[[Any], Any], rocksdb: Path | None = None
    ) -> None:
        self._make = make
        self._select = select
        self._rocksdb = rocksdb
        self._harnesses: list[OperatorHarness] = []
        self._watermark: int | None = None
        self.start(1)

    def start(self, parallelism: int, snapshots: Sequence[bytes] = ()) -> None:
        """Start as many subtasks, from the snapshots of all former ones."""
        self.close()
        self._harnesses = [self._started(subtask, parallelism, snapshots) for subtask in range(parallelism)]

    def rescale(self, parallelism: int) -> None:
        """Go on from a snapshot with another number of subtasks; records that were not taken are lost."""
        self.start(parallelism, [_snapshot(harness) for harness in self._harnesses])

    def close(self) -> None:
        """Close all subtasks."""
        for harness in self._harnesses:
            harness.close()
            harness.environment.keyed_state.close()

    def process(self, input_id: int, values: Sequence[Any], timestamps: Sequence[int]) -> None:
        """Give records to their subtasks, one chunk for each."""
        parallelism = len(self._harnesses)
        owners = [key_group(self._select(value), MAX_PARALLELISM) * parallelism // MAX_PARALLELISM for value in values]
        for owner, harness in enumerate(self._harnesses):
            chosen = [index for index, each in enumerate(owners) if each == owner]
            if chosen:
                harness.process_input_chunk(
                    input_id, [values[each] for each in chosen], [timestamps[each] for each in chosen]
                )

    def advance(self, watermark: int) -> None:
        """Pass a watermark on all inputs to every subtask."""
        self._watermark = watermark
        for harness in self._harnesses:
            _advance(harness, watermark)

    def take(self, *tags: str) -> list[list[StreamRecord]]:
        """Return the records since the last call: the main output, then the side outputs; subtask by subtask."""
        found = [
            list(itertools.chain.from_iterable(harness.recorded.records_of(tag) for harness in self._harnesses))
            for tag in (None, *tags)
        ]
        for harness in self._harnesses:
            harness.take_output()
        return found

    @property
    def num_timers(self) -> int:
        """The number of event time timers."""
        return sum(harness.num_event_time_timers for harness in self._harnesses)

    @property
    def num_kept(self) -> int:
        """The number of keys that have state of any name, counted for each name."""
        backends: list[Any] = [harness.environment.keyed_state for harness in self._harnesses]
        names = [side + rest for side in ("LEFT_BUFFER", "RIGHT_BUFFER") for rest in ("", "_MORE")]
        return sum(len(backend.keys_of(name)) for backend in backends for name in names)

    def _started(self, subtask: int, parallelism: int, snapshots: Sequence[bytes]) -> OperatorHarness:
        place = SubtaskPlace(subtask, parallelism, MAX_PARALLELISM)
        harness = OperatorHarness(self._make(), place=place, checks_leaks=False)
        if self._rocksdb is not None:
            _use_rocksdb(harness, self._rocksdb)
        harness.setup()
        for payload in snapshots:
            timers, keyed = loads_value(payload)
            harness.environment.timers.restore(timers)
            if keyed is not None:
                harness.environment.keyed_state.restore(keyed)
        harness.open()
        if self._watermark is not None:  # a checkpoint holds none: the first one after a restart comes from the sources
            _advance(harness, self._watermark)
        return harness


def _advance(harness: OperatorHarness, watermark: int) -> None:
    for input_id, _ in enumerate(harness.operator.inputs(), 1):
        harness.process_input_watermark(input_id, watermark)


def _snapshot(harness: OperatorHarness) -> bytes:
    harness.operator.prepare_snapshot_pre_barrier(1)
    harness.operator.snapshot_functions(1, 0)
    finish = harness.environment.keyed_state.snapshot(1, is_full=True)
    return dumps_value((harness.environment.timers.snapshot(), None if finish is None else finish()))


def _use_rocksdb(harness: OperatorHarness, folder: Path) -> None:
    from flowlet.state.rocksdb.rocksdb_keyed_state_backend import RocksDBKeyedStateBackend, RocksDBPlace

    environment, place = harness.environment, harness.place
    at = RocksDBPlace(str(folder), None, writes_shared_files=False, cache_bytes=1 << 20)
    backend = RocksDBKeyedStateBackend(
        environment.ctx.key_context, environment.clock.current_time_ms, place.key_groups, place.max_parallelism, at
    )
    environment.keyed_state = backend
    environment.ctx = dataclasses.replace(environment.ctx, keyed_state=backend)
