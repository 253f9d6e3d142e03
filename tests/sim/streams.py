"""The bytes that were written to subpartitions, and those that their readers have got so far.

Invariants: I1 every byte out == in, in order; I7 an aligned barrier overtakes nothing; I8 nothing behind the end of a
            partition.
Units:      positions in bytes.
"""

from collections import deque
from collections.abc import Sequence
from typing import Final

from netstack.wire.events import CheckpointBarrier, EndOfPartition, Event

MARKS: Final = 4  # so many subpartitions of a range can be told apart
_TABLES: Final = [bytes(value - value % MARKS + place for value in range(256)) for place in range(MARKS)]


class Stream:
    """The bytes that one subpartition was given, and those that its consumer has got so far."""

    def __init__(self, name: str, log: bytearray | None = None) -> None:
        self.name = name
        self.log = bytearray() if log is None else log  # every byte that was written
        self.copies: list[Stream] = []  # for further readers of these bytes
        self.consumed = 0
        self.events: deque[tuple[int, Event]] = deque()  # (bytes before it, event), not read yet
        self.priority_events: deque[tuple[int, Event]] = deque()
        self.has_ended = False

    def copy(self) -> "Stream":
        """Return a copy for another reader."""
        stream = Stream(f"{self.name}, again", self.log)
        self.copies.append(stream)
        return stream

    def sent(self, event: Event, *, is_priority: bool = False) -> None:
        """The producer is about to send ``event``."""
        for each in (self, *self.copies):
            (each.priority_events if is_priority else each.events).append((len(self.log), event))

    @property
    def is_complete(self) -> bool:
        return self.consumed == len(self.log)

    def on_data(self, data: bytes) -> None:
        """Check I1 and I8 for a buffer."""
        assert not self.has_ended, f"{self.name}: {len(data)} bytes behind the end of the partition"
        start, end = self.consumed, self.consumed + len(data)
        if not self.log.startswith(data, start):
            raise AssertionError(
                f"{self.name}: the bytes {start} to {end} are not what was written: {data[:32].hex()}..."
            )
        self.consumed = end
        limit = self.events[0][0] if self.events else len(self.log)
        assert end <= limit, f"{self.name}: data up to {end} overtook an event at {limit}"

    def on_event(self, event: Event) -> int:
        """Check I1, I7 and I8 for an event; return how many bytes were written before it."""
        assert not self.has_ended, f"{self.name}: {event} behind the end of the partition"
        is_priority = isinstance(event, CheckpointBarrier) and event.options.is_unaligned
        expected = self.priority_events if is_priority else self.events
        assert expected, f"{self.name}: {event} was never sent"
        at, original = expected.popleft()
        assert event == original, f"{self.name}: {event} instead of {original}"
        assert is_priority or at == self.consumed, (
            f"{self.name}: {event} after {self.consumed} bytes, it was sent after {at}"
        )
        self.has_ended = isinstance(event, EndOfPartition)
        return at


class RangeStream:
    """The bytes of several subpartitions that are read as one: each byte says to which of them it was written.

    Invariants: what may be parts of one record follows each other, so another subpartition has its turn only behind an
                event.
    """

    def __init__(self, streams: Sequence[Stream]) -> None:
        self.name = f"{streams[0].name} and {len(streams) - 1} more"
        self._streams = streams
        self._present: Stream | None = None

    @property
    def consumed(self) -> int:
        return sum(stream.consumed for stream in self._streams)

    @property
    def has_ended(self) -> bool:
        return all(stream.has_ended for stream in self._streams)

    @property
    def is_complete(self) -> bool:
        """Whether everything that was written to any of them was read."""
        return all(stream.is_complete for stream in self._streams)

    def on_data(self, data: bytes) -> None:
        """Check I1 and I8 for a buffer of one stream."""
        if not data:  # of a subpartition whose readers have to see empty buffers, too
            return
        stream = self._streams[data[0] % MARKS]
        before = self._present
        assert before is None or before is stream or before.is_complete, f"{self.name}: {stream.name} tears a record"
        self._present = stream
        stream.on_data(data)

    def on_event(self, event: Event) -> int:
        """Check I1 and I8 for an end, which is told once, behind everything."""
        return sum(stream.on_event(event) for stream in self._streams)


def marked(record: bytes, place: int) -> bytes:
    """Return ``record`` in bytes that say to which place of a range it is written."""
    return record.translate(_TABLES[place])
