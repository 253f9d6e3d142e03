"""Joins records of two keyed streams whose timestamps lie close together.

A left and a right record of one key meet where ``left + lower <= right <= left + upper``.  Each record is kept until
the watermark says that no partner can come.

``JoinBuffer``: the records of one side, by timestamp.  The first records of a timestamp are one entry of the state; for
most timestamps these are all.  Further records follow in blocks of equal size, each an entry of its own, so that a new
record never copies more than one block.

Hot path.  Per record one access of the state to look, one to add, and one look through the timestamps that the other
side has for the key, so as in Flink the cost grows with their number; an interval of a few milliseconds looks up each
timestamp instead.

Side:       task.
Invariants: a tuple in the state never changes: a snapshot that is being written must not see it grow.  A timestamp has
            blocks only if its first records are a whole block.  Records come out in the order in which they were added.
            A pair is emitted once, when its second record comes.  A record older than the watermark is late: it is
            neither kept nor joined.  The partners of a record come in the order of their timestamps, and partners of
            one timestamp in the order of their arrival.
Units:      timestamps and bounds in milliseconds.
Source:     Flink ``IntervalJoinOperator``, which forgets records at these watermarks, too.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import field
from operator import itemgetter
from typing import Any, Final

from flowlet.chain.loop_code import Blame, LoopCode, RecordLoop
from flowlet.common.typeinfo import Types
from flowlet.datastream.state import MapState, MapStateDescriptor
from flowlet.datastream.user_functions.process_functions import ProcessJoinFunction
from flowlet.errors import FlowletError
from flowlet.mailbox.task_mailbox import Interrupts
from flowlet.operators.process_operator import write_results
from flowlet.operators.user_function import TwoInputRecordOperator, write_current_key
from flowlet.records import Chunk
from flowlet.timers.keyed_timer_service import KeyedTimerService, Timer
from netstack.late import dataclass

# Records per entry: with more, each record copies more, and there are fewer entries.  On the heap 8 to 64 make no
# difference.
_BLOCK_SIZE: Final = 32
_NARROW: Final = 8  # timestamps of an interval that are asked for one by one; not measured
_TAIL: Final = 0  # the number of the entry that has the number of whole blocks and the records behind them

Records = tuple[Any, ...]


class JoinBuffer:
    """The records of the current key.

    Args:
        first: the first records of each timestamp.
        more: the other records, by timestamp and number: 1, 2, ... are whole blocks; 0 is the number of these blocks
            with the newest records.
    """

    __slots__ = ("_first", "_more")

    def __init__(self, first: MapState[int, Any], more: MapState[tuple[int, int], Any]) -> None:
        self._first = first
        self._more = more

    def add(self, record: Any, timestamp: int) -> None:
        """Keep a record."""
        first = self._first.get(timestamp)
        if first is None:
            self._first.put(timestamp, (record,))
        elif len(first) < _BLOCK_SIZE:
            self._first.put(timestamp, (*first, record))
        else:
            self._add_more(record, timestamp)

    def remove(self, timestamp: int) -> None:
        """Forget the records of a timestamp."""
        first: Records | None = self._first.get(timestamp)
        self._first.remove(timestamp)
        tail = None if first is None or len(first) < _BLOCK_SIZE else self._more.get((timestamp, _TAIL))
        if tail is not None:
            for number in range(tail[0] + 1):
                self._more.remove((timestamp, number))

    def near(self, first: int, last: int) -> Iterator[tuple[int, Records]]:
        """The records of the timestamps from ``first`` to ``last``; a few timestamps are looked up one by one, more are
        searched for among all.
        """
        if last - first < _NARROW:
            found = [(timestamp, self._first.get(timestamp)) for timestamp in range(first, last + 1)]
        else:
            found = [entry for entry in self._first.items() if first <= entry[0] <= last]
            found.sort(key=itemgetter(0))
        for timestamp, records in found:
            if records is not None:
                yield timestamp, records if len(records) < _BLOCK_SIZE else self._with_more(timestamp, records)

    def _add_more(self, record: Any, timestamp: int) -> None:
        tail = self._more.get((timestamp, _TAIL))
        num_blocks, newest = (0, ()) if tail is None else tail
        newest = (*newest, record)
        if len(newest) == _BLOCK_SIZE:
            num_blocks += 1
            self._more.put((timestamp, num_blocks), newest)
            newest = ()
        self._more.put((timestamp, _TAIL), (num_blocks, newest))

    def _with_more(self, timestamp: int, first: Records) -> Records:
        tail = self._more.get((timestamp, _TAIL))
        if tail is None:
            return first
        num_blocks, newest = tail
        records = list(first)
        for number in range(1, num_blocks + 1):
            records += self._more.get((timestamp, number))
        return (*records, *newest)


_TIMERS: Final = "CLEANUP_TIMER"  # Flink's names of the timers and states
_BUFFERS: Final = ("LEFT_BUFFER", "RIGHT_BUFFER")
_NAMESPACES: Final = ("CLEANUP_LEFT", "CLEANUP_RIGHT")
# Left record, right record, their timestamps, and the later of these.
Pair = tuple[Any, Any, int, int, int]


@dataclass(slots=True, eq=False)
class _Side:
    """One input: its records that are kept, and the timestamps of their partners.

    Args:
        index: 0 for the left, 1 for the right one.
        bounds: the partners of a record are those from ``timestamp + bounds[0]`` to ``timestamp + bounds[1]``.
        late_tag: id of the side output for late records; None: they are dropped and counted.
        kept: set by open.
    """

    index: int
    bounds: tuple[int, int]
    late_tag: str | None
    kept: JoinBuffer = field(init=False)

    @property
    def delay(self) -> int:
        """How long after its own time a record can find partners."""
        return max(self.bounds[1], 0)


class IntervalJoinOperator(TwoInputRecordOperator):
    """Runs a ``ProcessJoinFunction``.

    Args:
        function: an object with ``process_element(left, right, ctx)``.
        key_selectors: of both inputs.
        bounds: lower and upper bound, both inclusive.
        late_tags: ids of the side outputs for late records of either input; None: they are dropped and counted.
        is_batch: as for ``ProcessOperator``.
        name: for people.
    """

    _timers: KeyedTimerService  # set by open

    def __init__(
        self,
        function: Any,
        key_selectors: tuple[Any, Any],
        bounds: tuple[int, int],
        *,
        late_tags: tuple[str | None, str | None] = (None, None),
        is_batch: bool = False,
        name: str = "Interval Join",
    ) -> None:
        super().__init__(key_selectors, name)
        self._is_batch = is_batch
        lower, upper = bounds
        self._sides = (_Side(0, (lower, upper), late_tags[0]), _Side(1, (-upper, -lower), late_tags[1]))
        self._function = self._add(function, "process_element")

    def open(self) -> None:
        """Make states, timers and the loops, then open the function."""
        self._timers = self.ctx.timer_service(_TIMERS, self, is_batch=self._is_batch)
        state = self.ctx.keyed_state_backend.state
        for side, name in zip(self._sides, _BUFFERS, strict=True):
            first, more = MapStateDescriptor(name, Types.LONG()), MapStateDescriptor(f"{name}_MORE")
            side.kept = JoinBuffer(state(first, MapStateDescriptor), state(more, MapStateDescriptor))
        self._context = ProcessJoinFunction.Context()
        super().open()
        self._loops = [self._loop_of_side(index) for index in range(self.num_inputs)]

    def on_event_time(self, timer: Timer) -> None:
        """Forget the records of a timestamp, which find no partner after this watermark."""
        side = self._sides[_NAMESPACES.index(timer.namespace)]
        side.kept.remove(timer.timestamp - side.delay)

    def on_processing_time(self, timer: Timer) -> None:
        """No such timer is registered."""
        raise AssertionError(f"a join has no timer of the clock, but {timer} fired")

    def process_input_chunk(self, input_id: int, chunk: Chunk, interrupts: Interrupts | None = None) -> int:
        """Join the records of the input with those of the other one; see ``TwoInputRecordOperator``."""
        if len(chunk) and chunk.timestamps is None:
            raise FlowletError(
                f"operator {self.name!r}: the records of an interval join need timestamps; call "
                "assign_timestamps_and_watermarks(...) on both streams before key_by(...)"
            )
        return super().process_input_chunk(input_id, chunk, interrupts)

    def _loop_of_side(self, index: int) -> RecordLoop:
        pairs_of = self._joined_by(self._sides[index], self._sides[1 - index])

        def write(code: LoopCode, record: str, timestamp: str | None, key: str | None) -> None:
            assert timestamp is not None, "checked for each chunk"
            assert key is not None, "the selector is known"
            write_current_key(code, self.ctx, key)
            self._write_pairs(code, f"{code.bind(pairs_of, 'pairs_of')}({record}, {timestamp})", record)

        return self._record_loop(write, ("left", "right")[index])

    def _write_pairs(self, code: LoopCode, pairs: str, record: str) -> None:
        """Write the statements that call the function with each pair and take its results through the chain."""
        context = code.bind(self._context, "context")
        code.at_start(f"{context}.is_active = True")
        code.at_end(f"{context}.is_active = False")
        left, right, at = code.variable("left"), code.variable("right"), code.variable("t")
        stamps = f"{context}.left_timestamp, {context}.right_timestamp, {at}"
        with code.block(f"for {left}, {right}, {stamps} in {pairs}:"):
            code.line(f"{context}.timestamp = {at}")
            results = code.variable("results")
            call = f"{code.bind(self._function.call, 'process')}({left}, {right}, {context})"
            code.line(f"{results} = {call}", Blame(self.name, self.ctx.subtask, record))
            write_results(self, code, results, record, at)
        code.line(f"{left} = {right} = None")

    def _joined_by(self, side: _Side, other: _Side) -> Callable[[Any, int], Sequence[Pair]]:
        """The function that keeps a record of one side and returns its pairs."""
        timers, (lower, upper), is_left = self._timers, side.bounds, side.index == 0
        counters, namespace, delay = self.ctx.counters, _NAMESPACES[side.index], side.delay
        keep, near = side.kept.add, other.kept.near

        def pairs_of(value: Any, timestamp: int) -> Sequence[Pair]:
            if timestamp < timers.current_watermark():
                if side.late_tag is not None:
                    self.output.emit_side(side.late_tag, value, timestamp)
                else:
                    counters.num_late_records_dropped += 1
                return ()
            keep(value, timestamp)
            timers.register_event_time_timer(namespace, timestamp + delay)
            found = near(timestamp + lower, timestamp + upper)
            if is_left:
                return [
                    (value, partner, timestamp, at, max(timestamp, at))
                    for at, partners in found
                    for partner in partners
                ]
            return [
                (partner, value, at, timestamp, max(timestamp, at)) for at, partners in found for partner in partners
            ]

        return pairs_of
