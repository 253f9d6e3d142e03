"""``RecordingOutput``: keeps what an operator emits, in order.

Side:       any.
Invariants: an emitted chunk has records, has as many timestamps as records or none, and is not changed afterwards.
Units:      timestamps in milliseconds.
Source:     Flink ``MockOutput`` and the output queue of ``AbstractStreamOperatorTestHarness``.
"""

from collections.abc import Iterator
from typing import Any

from flowlet.records import Chunk, CompletionMark, LatencyMarker, Watermark, WatermarkStatus
from netstack.late import dataclass


@dataclass(frozen=True, slots=True)
class StreamRecord:
    """A record and its timestamp, if it has one."""

    value: Any
    timestamp: int | None = None


OutputElement = StreamRecord | Watermark | WatermarkStatus | LatencyMarker | CompletionMark


class RecordingOutput:
    """The ``Output`` of an operator under test.  Threading: the thread of the test."""

    def __init__(self) -> None:
        self.is_open = True  # if False, emitting is an error
        # With the tag of a side output; None: main output, control element.
        self._emitted: list[tuple[str | None, OutputElement]] = []
        self._chunks: list[tuple[Chunk, list[Any], list[int] | None]] = []

    def __repr__(self) -> str:
        return f"<RecordingOutput of {len(self._emitted)} elements>"

    # -- what the operator calls

    def collect(self, chunk: Chunk) -> None:
        """Keep records of the main output."""
        self._collect(None, chunk)

    def collect_side(self, tag_id: str, chunk: Chunk) -> None:
        """Keep records of a side output."""
        self._collect(tag_id, chunk)

    def emit_watermark(self, watermark: Watermark) -> None:
        """Keep a watermark, which goes to all outputs."""
        self._add(None, watermark)

    def emit_watermark_status(self, status: WatermarkStatus) -> None:
        """Keep a status, which goes to all outputs."""
        self._add(None, status)

    def emit_latency_marker(self, marker: LatencyMarker) -> None:
        """Keep a latency marker."""
        self._add(None, marker)

    def emit_mark(self, mark: CompletionMark) -> None:
        """Keep a completion mark, which goes to all outputs."""
        self._add(None, mark)

    def _collect(self, tag_id: str | None, chunk: Chunk) -> None:
        assert len(chunk), "an empty chunk was emitted, which costs a call and does nothing"
        self._chunks.append((chunk, list(chunk.values), None if chunk.timestamps is None else list(chunk.timestamps)))
        for element in records_of(chunk):
            self._add(tag_id, element)

    def _add(self, tag_id: str | None, element: OutputElement) -> None:
        assert self.is_open, f"{element} was emitted after the operator was closed"
        self._emitted.append((tag_id, element))

    # -- what the test asks

    @property
    def elements(self) -> list[OutputElement]:
        """The main output: single records and control elements."""
        return self.elements_of(None)

    def elements_of(self, tag_id: str | None) -> list[OutputElement]:
        """One output as its readers see it: its records, and the control elements, which go to all outputs."""
        return [element for tag, element in self._emitted if tag == tag_id or not isinstance(element, StreamRecord)]

    def records_of(self, tag_id: str | None) -> list[StreamRecord]:
        """The records of a side output, or of the main one (None)."""
        return [element for tag, element in self._emitted if tag == tag_id and isinstance(element, StreamRecord)]

    @property
    def tag_ids(self) -> list[str]:
        """The side outputs with records, in the order of their first one."""
        return list(dict.fromkeys(tag for tag, _ in self._emitted if tag is not None))

    def clear(self) -> None:
        """Drop everything emitted so far."""
        self.check_invariants()
        self._emitted = []
        self._chunks = []

    def check_invariants(self) -> None:
        """Raise AssertionError if a chunk was changed after it was emitted."""
        for chunk, values, timestamps in self._chunks:
            is_same = (
                len(values) == len(chunk.values)
                and all(map(_is, values, chunk.values))
                and timestamps == chunk.timestamps
            )
            assert is_same, f"a chunk was changed after it was emitted: {values!r} became {chunk.values!r}"


def records_of(chunk: Chunk) -> Iterator[StreamRecord]:
    """The single records of a chunk."""
    if chunk.timestamps is None:
        return map(StreamRecord, chunk.values)
    return map(StreamRecord, chunk.values, chunk.timestamps)


def _is(one: object, other: object) -> bool:
    return one is other
