"""Ends of measured jobs: the time of the first record, the time at which the last one had arrived, and the proof that
all of them did.

Side:   any; sources and sinks run inside the TaskManagers.
Clock:  the monotonic one of the machine, which all processes share.  A run lasts from the first poll of any source to
        the end of input at the last sink, as it does for the peers.
Proof:  in timed runs the sinks count every record, at no cost per record, and keep the last ones: columns until the
        clock has stopped, tuples in a dictionary at once (30 ns each; to hold on to a million of them took 180).  Keys
        come back in cycles, and the kept records cover two cycles, so they have the last value of every key
        (``check_last_values``).  Sinks that look at everything (``inspects_all``) are for runs that are not timed: per
        key the increments must be exactly those of the sources, and those of one source in its order
        (``check_increments``).
"""

import pickle
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from flowlet.chain.loop_code import LoopCode
from flowlet.chain.stream_operator import StreamOperator
from flowlet.records import Chunk

START_PREFIX: Final = "start-"
_SINK_PREFIX: Final = "sink-"
# How far a subtask's share may be from the average; with keys that are less even, a check would fail.
_UNEVENNESS: Final = 0.3


class WrongOutputError(Exception):
    """A job gave something else than it should have; its figure is worth nothing."""


@dataclass(frozen=True)
class Keep:
    """The outputs that a sink keeps: the last ``num_records``, once it has seen ``from_record``."""

    from_record: int
    num_records: int

    @classmethod
    def last_cycles(cls, num_records: int, cycle: int, parallelism: int = 2) -> "Keep":
        """Cover the last two cycles of all keys, of ``num_records`` records that the subtasks share about equally.

        Whatever the readers' pace, one of them gave at least one whole cycle of the last two, so that the last value of
        every key is there.
        """
        first = int(max(0, num_records - 2 * cycle) * (1 - _UNEVENNESS) / parallelism)
        return cls(first, int(2 * cycle * min(1.0, (1 + _UNEVENNESS) / parallelism)))


@dataclass(frozen=True)
class SinkReport:
    """The report of one sink.

    ``last`` has the last value of every key among the kept outputs.  ``increments`` is there if the sink looked at
    everything: for each key by how much its value grew, record by record.
    """

    num_records: int
    end_ns: int
    last: dict[Any, Any]
    increments: dict[Any, list[int]] = field(default_factory=dict)
    first_ns: int = 0  # when the first record came; 0: not noted


@dataclass(frozen=True)
class Reports:
    """The reports that sources and sinks of one run wrote."""

    start_ns: int
    sinks: tuple[SinkReport, ...]

    @classmethod
    def read(cls, folder: Path) -> "Reports":
        """Read them from the folder that the job was given."""
        starts = [int(file.read_text(encoding="ascii")) for file in folder.glob(f"{START_PREFIX}*")]
        sinks = [pickle.loads(file.read_bytes()) for file in sorted(folder.glob(f"{_SINK_PREFIX}*"))]
        if not starts or not sinks:
            raise WrongOutputError(f"{len(starts)} sources and {len(sinks)} sinks reported")
        return cls(min(starts), tuple(sinks))

    @property
    def seconds(self) -> float:
        """The time from the first record to the last."""
        return self._seconds_since(self.start_ns)

    @property
    def seconds_from_first_output(self) -> float:
        """The time from the first record at a sink to the last; for peers whose sources run before later operators
        do.
        """
        return self._seconds_since(min(sink.first_ns for sink in self.sinks))

    def _seconds_since(self, start_ns: int) -> float:
        return (max(sink.end_ns for sink in self.sinks) - start_ns) / 1e9


class MarkedReader:
    """Gives chunks; writes down the moment of its first poll."""

    never_waits = True

    def __init__(self, chunks: Iterator[Chunk], folder: Path, subtask: int) -> None:
        self._chunks = chunks
        self._start_file = folder / f"{START_PREFIX}{subtask}"
        self._has_started = False

    def poll_chunk(self) -> Chunk | None:
        """Return the next chunk."""
        if not self._has_started:
            self._has_started = True
            self._start_file.write_text(str(time.monotonic_ns()), encoding="ascii")
        return next(self._chunks, None)

    def close(self) -> None:
        """Do nothing: the reader holds no resource."""


class CheckedSink(StreamOperator):
    """Counts (key, value) records and forgets all but the last ones; writes its report at the end of its input.

    In a chain it is given records one by one, as a sink of users is, and does then what the plain loops do with their
    results.

    Args:
        folder: for the report.
        keep: which outputs it keeps.
        inspects_all: whether it looks at everything.
        in_chunks: whether it is given chunks in a chain, too.
    """

    def __init__(self, folder: Path, keep: Keep, *, inspects_all: bool = False, in_chunks: bool = False) -> None:
        self.name = "checked sink"
        self.takes_chunks = in_chunks
        self._folder = folder
        self._keep = keep
        self._inspects_all = inspects_all
        self._num_records = 0
        self._num_kept = 0
        self._kept: deque[Chunk] = deque()
        self._increments: dict[Any, list[int]] = {}
        self._last: dict[Any, Any] = {}
        self._taken: list[Any] = []  # in this run of the loop

    def write_record(self, code: LoopCode, record: str, timestamp: str | None, key: str | None) -> None:
        """Look at the record, if it may be one of the last."""
        keeps = code.variable("keeps")
        code.at_start(f"{keeps} = {code.bind(self._begin_run, 'begin_run')}()")
        with code.block(f"if {keeps}:"):
            if self._inspects_all:
                code.line(f"{code.bind(self._taken, 'taken')}.append({record})")
            else:
                self._write_kept(code, record)
        code.at_end(f"{code.bind(self._end_run, 'end_run')}({code.counts[id(self)]})")

    def _write_kept(self, code: LoopCode, record: str) -> None:
        text, number = code.variable("text"), code.variable("number")
        code.line(f"{text}, {number} = {record}")
        code.line(f"{code.bind(self._last, 'last')}[{text}] = {number}")

    def _begin_run(self) -> bool:
        return self._inspects_all or self._num_records >= self._keep.from_record

    def _end_run(self, num_records: int) -> None:
        self._num_records += num_records
        self._inspect(self._taken)
        self._taken.clear()

    def process_chunk(self, chunk: Chunk) -> None:
        """Count; keep the chunk if it may be one of the last."""
        self._num_records += len(chunk)
        if self._inspects_all:
            self._inspect(pairs_of(chunk))
        elif self._num_records > self._keep.from_record:
            if chunk.columns is None:
                self._fold_kept()  # later values count
                self._last.update(chunk.values)
            else:
                self._keep_columns(chunk)

    def _keep_columns(self, chunk: Chunk) -> None:
        self._kept.append(chunk)
        self._num_kept += len(chunk)
        while self._num_kept - len(self._kept[0]) >= self._keep.num_records:
            self._num_kept -= len(self._kept.popleft())

    def _fold_kept(self) -> None:
        for chunk in self._kept:
            self._last.update(pairs_of(chunk))
        self._kept.clear()
        self._num_kept = 0

    def _inspect(self, records: Iterable[tuple[Any, Any]]) -> None:
        last = self._last
        for key, value in records:
            self._increments.setdefault(key, []).append(value - last.get(key, 0))
            last[key] = value

    def finish(self) -> None:
        """Stop the clock and write the report: the input is over.  The file appears whole or not at all."""
        end_ns = time.monotonic_ns()
        self._fold_kept()
        file = self._folder / f"{_SINK_PREFIX}{self.ctx.subtask}"
        partial = file.with_name(f"partial-{file.name}")
        partial.write_bytes(pickle.dumps(SinkReport(self._num_records, end_ns, self._last, self._increments)))
        partial.rename(file)


def pairs_of(chunk: Chunk) -> Iterable[tuple[Any, Any]]:
    """Return the records of a chunk, whose two fields are key and value."""
    if chunk.columns is None:
        return chunk.values
    keys, values = chunk.columns.fields
    return zip(keys.to_list(), values.to_list(), strict=True)


def merged_last(reports: Reports) -> dict[Any, Any]:
    """Return the last value of every key.

    Raises:
        WrongOutputError: a key was counted by two subtasks.
    """
    merged: dict[Any, Any] = {}
    for sink in reports.sinks:
        if both := merged.keys() & sink.last.keys():
            raise WrongOutputError(f"{len(both)} keys were at two subtasks, such as {next(iter(both))!r}")
        merged.update(sink.last)
    return merged


def check_num_outputs(reports: Reports, expected: int) -> None:
    """Check that every input record gave one output.

    Raises:
        WrongOutputError: they did not.
    """
    found = sum(sink.num_records for sink in reports.sinks)
    if found != expected:
        raise WrongOutputError(f"{found} outputs instead of {expected}")


def check_last_values(reports: Reports, expected: Mapping[Any, Any]) -> None:
    """Check that every key ended where it should.

    Raises:
        WrongOutputError: a record was lost, counted twice, or counted for another key.
    """
    found = merged_last(reports)
    if found == expected:
        return
    for key in [*expected, *found]:
        if found.get(key) != expected.get(key):
            raise WrongOutputError(
                f"{key!r} ended at {found.get(key)!r} instead of {expected.get(key)!r} ({len(found)} keys)"
            )


def check_increments(reports: Reports, sources: Iterable[Mapping[Any, list[int]]]) -> None:
    """Check, per key, that the sinks have the increments of all sources, those of each source in its order.

    Args:
        reports: of sinks that looked at everything.
        sources: for each of them, the values of each key in its order; no value comes from two sources unless all are
            equal.

    Raises:
        WrongOutputError: a record is lost, doubled or out of order.
    """
    found: dict[Any, list[int]] = {}
    for sink in reports.sinks:
        found.update(sink.increments)
    expected: dict[Any, list[list[int]]] = {}
    for source in sources:
        for key, values in source.items():
            expected.setdefault(key, []).append(values)
    if found.keys() != expected.keys():
        raise WrongOutputError(f"{len(found)} keys came out instead of {len(expected)}")
    for key, increments in found.items():
        _check_key(key, increments, expected[key])


def _check_key(key: Any, increments: list[int], expected: list[list[int]]) -> None:
    if sorted(increments) != sorted(value for values in expected for value in values):
        raise WrongOutputError(f"{key!r} grew by other values than were sent")
    for values in expected:
        wanted = set(values)
        if len(wanted) > 1 and [value for value in increments if value in wanted] != values:
            raise WrongOutputError(f"the records of {key!r} changed their order")
