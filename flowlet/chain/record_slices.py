"""``RecordSlices``: elements that wait in front of a chain, and go into it in pieces.

Side:       task.
Why:        a chunk may hold thousands of records.  If each takes a function 10 ms, a mail or a barrier would wait for
            the whole chunk.  Flink looks for mails after every record.  Here the loop of a chain is left between two
            records when a mail comes, and the rest of the chunk waits here.  An operator that takes whole chunks cannot
            be left, nor can the operators behind it in its chain: it gets as many records as took 10 ms last time.  A
            function that turned slow in the middle of a slice may do so again: so for a long time slices have at most
            100 records (``Caution``).
Invariants: elements come out in the order in which they went in.  Elements that wait here count as in front of the
            chain: no barrier passes them, a snapshot of the chain does not have their effects, and no input is read
            before they have gone in.
Time:       a function that computes needs the core; where many threads share it, that takes ten times as long by the
            wall.  A function that waits needs little of the core.  So the time of a slice is its CPU time, unless the
            time by the wall is many times as long.
Units:      nanoseconds of a clock that stands still while the task waits for room in its outputs, and of the thread's
            CPU time.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Final, Generic, TypeGuard, TypeVar

from flowlet.mailbox.mailbox_processor import LONG_NS
from flowlet.records import Chunk, StreamElement

Origin = TypeVar("Origin")

BUDGET_NS: Final = 10_000_000  # a tenth of what a checkpoint under back pressure may take; not measured otherwise
_FIRST_RECORDS: Final = 1  # in the first slice, before any was measured: a function may take a second per record
_RECORDS_AFTER_ONE: Final = 64  # once records have come one by one and were not measured
_MAX_GROWTH: Final = 8
_MAX_RECORDS: Final = 1 << 20
MAX_RECORDS_IF_CAUTIOUS: Final = 100
# A slice that takes ten times its budget met a function or a consumer that had become slower, or the machine stood
# still.  After 100,000 quick records, which take some 20 ms more in small slices, the task counts as quick again.
SLOW_NS: Final = 10 * BUDGET_NS
# The last slices count as computed, even among threads that want the core or the interpreter's lock, if the ratio of
# their wall-clock time to their CPU time is at most this.  A slice that also waits exceeds its budget by that factor.
# Caution costs more than small slices, so it needs a higher factor.  The time of a single slice of 2 ms is no measure:
# the thread may just have lost the core for 10 ms.
_MAX_CONTENTION: Final = 8
_FORGOTTEN: Final = 4  # each slice reduces the sum of all slices before it by a quarter
_MAX_CONTENTION_IF_SLOW: Final = 16
_NUM_QUICK: Final = 100_000
# After one slice that waited and did not compute: on a busy machine a thread stands still for 100 ms now and then, and
# small slices of columns cost as much for each 100,000 rows as ten million rows in large ones.
_NUM_QUICK_AFTER_WAIT: Final = 10_000
# At the start the speed of the consumers is unknown: this number of records fills the buffers between two tasks.
_NUM_QUICK_AT_START: Final = 20_000
_ROOM_TO_GROW: Final = 2  # times the buffers that the last default action took, since the next one makes twice as much


class Caution:
    """How long a task still takes small slices, because a slice, or a wait for room in an output, was long; task thread
    only.

    A cautious task leaves its default action after ``max_records``, in one slice or several: so their results are
    written, and the task can look how much room is left.  A task that was never held up takes twice as many each time,
    as long as there is room for that.

    ``num_quick``: how many quick records end the caution.  ``grows``: whether slices may grow, as no slice was slow.
    """

    __slots__ = ("_grows", "_limit", "_num_buffers_out", "max_records", "num_left", "num_left_now")

    def __init__(self, num_quick: int = 0, *, grows: bool = False) -> None:
        self.num_left = num_quick
        self._grows = grows
        self._limit = MAX_RECORDS_IF_CAUTIOUS
        self._num_buffers_out: int | None = None  # at the last look
        self.max_records = MAX_RECORDS_IF_CAUTIOUS  # of a slice, while it lasts
        # Before the outputs have to be looked at, if ``num_left`` is above 0: then the default action has to end.
        self.num_left_now = 0

    def __repr__(self) -> str:
        return f"<Caution for {self.num_left} records, {self.max_records} at once>"

    @classmethod
    def at_start(cls) -> "Caution":
        """The caution of a task with outputs at its start."""
        return cls(_NUM_QUICK_AT_START, grows=True)

    def begin(self, *, is_too_much: bool = False, grows: bool = False, num_quick: int = _NUM_QUICK) -> None:
        """Begin to be cautious, because a slice or a consumer was slow.

        ``is_too_much``: the task had to wait while it wrote the results of a default action.  ``grows``: only the
            consumers were slow, so the slices may follow the room that they leave.  ``num_quick``: how many quick
            records end the caution.
        """
        self._grows = grows
        self._limit = min(self._limit, MAX_RECORDS_IF_CAUTIOUS)
        if is_too_much and self.num_left:
            self._limit = max(1, self._limit // _MAX_GROWTH)
        self.num_left, self.num_left_now = num_quick, 0

    def look_at_room(self, num_obtainable: int, num_spare: int, num_buffers_out: int) -> None:
        """Set how many records fit into the outputs.

        ``num_obtainable``: how many buffers the outputs can get.  ``num_spare``: how many of these are left after one
            for each channel: in the worst case each record begins the buffer of another channel.
            ``num_buffers_out``: how many buffers the outputs have filled.
        """
        if self._grows and self._num_buffers_out is not None:
            num_filled = num_buffers_out - self._num_buffers_out
            if num_spare > _ROOM_TO_GROW * num_filled:
                self._limit *= 2
            elif num_spare <= num_filled:
                self._limit = MAX_RECORDS_IF_CAUTIOUS
        self._num_buffers_out = num_buffers_out
        self.max_records = self.num_left_now = (
            self._limit if num_spare > 0 else max(1, min(self._limit, num_obtainable))
        )

    def records_were_processed(self, num_records: int, taken_ns: int, cpu_ns: int) -> None:
        """Note that a slice has ended; a long one begins a new caution, quick records end the present one."""
        self.num_left_now -= num_records
        if cpu_ns > SLOW_NS:
            self.begin()
        elif taken_ns > max(SLOW_NS, cpu_ns * _MAX_CONTENTION_IF_SLOW):
            self.begin(num_quick=_NUM_QUICK if self.num_left else _NUM_QUICK_AFTER_WAIT)
        elif self.num_left:
            self.num_left = max(0, self.num_left - num_records)
            if not self.num_left:
                self._limit = self.max_records = MAX_RECORDS_IF_CAUTIOUS


class RecordSlices(Generic[Origin]):
    """The elements that were read and not processed, each with its origin: a channel, or a split; task thread only.

    ``clock_ns`` and ``cpu_ns``, the thread's CPU time, are read twice per slice; ``cpu_ns`` None: all time is CPU time.
    ``cuts``: whether chunks may be cut at all; a function of batches gets them whole.  ``caution``: the task's.
    """

    def __init__(
        self,
        clock_ns: Callable[[], int],
        *,
        cpu_ns: Callable[[], int] | None = None,
        cuts: bool = True,
        caution: Caution | None = None,
    ) -> None:
        self._clock_ns = clock_ns
        self._cpu_ns = clock_ns if cpu_ns is None else cpu_ns
        self._cuts = cuts
        self.waiting: deque[tuple[Origin, StreamElement]] = deque()  # read and cleared outside
        self._num_records = _FIRST_RECORDS if cuts else _MAX_RECORDS  # of the next slice
        self._caution = Caution() if caution is None else caution
        self._recent_ns = self._recent_cpu_ns = 0  # of the last slices, the latest ones above all
        self._was_long = False  # the last slice: the task leaves the default action, so that the loop can run

    def __repr__(self) -> str:
        return f"<RecordSlices of {self._num_records} records, {len(self.waiting)} elements waiting>"

    def __iter__(self) -> Iterator[tuple[Origin, StreamElement]]:
        return iter(self.waiting)

    def is_needless_for(self, element: StreamElement) -> TypeGuard[Chunk]:
        """Whether the element can be processed without being kept here: it is one record, and no element waits in front
        of it.

        Its time is not measured, so the next slice is a short one.
        """
        if self.waiting or type(element) is not Chunk or len(element) != 1:
            return False
        if self._cuts and self._num_records > _RECORDS_AFTER_ONE:
            self._num_records = _RECORDS_AFTER_ONE
        caution = self._caution
        if caution.num_left > 1:
            caution.num_left -= 1
            caution.num_left_now -= 1
        return True

    def add(self, origin: Origin, elements: Sequence[StreamElement]) -> None:
        """Keep elements of an origin, behind all others."""
        for element in elements:
            self.waiting.append((origin, element))

    def of_origin(self, origin: Origin) -> Iterator[StreamElement]:
        """The waiting elements of an origin, in order."""
        return (element for each, element in self.waiting if each == origin)

    def process(
        self,
        process_some: Callable[[Origin, Chunk], int],
        process_control: Callable[[Origin, StreamElement], None],
        should_stop: Callable[[], bool],
    ) -> bool:
        """Process elements until none waits, or ``should_stop`` is true after one; returns whether none waits.

        ``process_some`` returns how many records it has processed; the others are given to it again.
        """
        waiting = self.waiting
        while waiting:
            origin, element = waiting.popleft()
            if type(element) is Chunk:
                self._process_slice(origin, element, process_some)
            else:
                process_control(origin, element)
            if waiting and (self._was_long or should_stop()):
                self._was_long = False
                return False
        return True

    def _process_slice(self, origin: Origin, chunk: Chunk, process_some: Callable[[Origin, Chunk], int]) -> None:
        whole, size, caution = chunk, len(chunk), self._caution
        num_records = min(size, self._num_records)
        if caution.num_left and self._cuts:
            num_records = min(num_records, caution.num_left_now if caution.num_left_now > 0 else caution.max_records)
        if num_records < size:
            # Before the call: an operator that waits in it may run the mail of a checkpoint, which must find the rest
            # here.
            self.waiting.appendleft((origin, whole.slice(num_records, size)))
            chunk = whole.slice(0, num_records)
        started_ns, started_cpu_ns = self._clock_ns(), self._cpu_ns()
        num_done = process_some(origin, chunk)
        if num_done < num_records:
            if num_records < size:
                self.waiting.popleft()
            self.waiting.appendleft((origin, whole.slice(num_done, size)))
        if self._cuts and num_records:
            cpu_ns, taken_ns = self._cpu_ns() - started_cpu_ns, self._clock_ns() - started_ns
            self._was_long = taken_ns > LONG_NS
            recent_ns = self._recent_ns = self._recent_ns - self._recent_ns // _FORGOTTEN + taken_ns
            recent_cpu_ns = self._recent_cpu_ns = self._recent_cpu_ns - self._recent_cpu_ns // _FORGOTTEN + cpu_ns
            budgeted_ns = cpu_ns if recent_ns <= recent_cpu_ns * _MAX_CONTENTION else taken_ns
            fitting = max(1, num_done * BUDGET_NS // max(1, budgeted_ns))
            self._num_records = min(fitting, self._num_records * _MAX_GROWTH, _MAX_RECORDS)
            if caution.num_left or taken_ns > SLOW_NS:
                caution.records_were_processed(num_done, taken_ns, cpu_ns)
