"""``AlignedWindowing``: tumbling and sliding windows of event time that only the watermark evaluates.

While records are newer than the watermark, no window can be evaluated.  So the contents of a window wait in a
dictionary, as its *cell*, from its first record on.  Cells are written to the state before a snapshot, when there are
too many, and before other code reads the state; a window that ends before that never touches the state.  Functions are
called for each record, in the order of the stream.

Hot path, per record: one probe and one store, and the call of the function; the start of its window, if its chunk is
not all in one; per window of a key an access of the state and a timer (bench: windows).

Side:       task.
Invariants: a cell is newer than the state of its window.  No two cells share an object that can change.  A window of a
            key that has contents has its timers.  There are at most ``_MAX_KEPT`` cells, and as many records in lists.
Source:     Flink ``WindowOperator.processElement``, for ``EventTimeTrigger``.
"""

from collections import defaultdict
from typing import Any, Final

from flowlet.chain.loop_code import Blame, LoopCode, RecordLoop
from flowlet.chain.record_shape import copier_of
from flowlet.chain.stream_operator import OperatorContext
from flowlet.columns.column import UNCHANGING, are_unchanging
from flowlet.datastream.window.window_spec import WindowSpec
from flowlet.datastream.window.windows import MAX_WINDOW_TIMESTAMP, TimeWindow
from flowlet.keys.exact_keys import NamespacedKey, exact_key
from flowlet.mailbox.task_mailbox import Interrupts
from flowlet.records import MIN_TIMESTAMP, Chunk
from flowlet.timers.keyed_timer_service import KeyedTimerService
from flowlet.windows.window_states import WindowContents

_MISSING: Final = object()
# Cells, or records in lists: a snapshot has to write so many to the state first, at 2 us each.  Not measured.
_MAX_KEPT: Final = 50_000

# The start of a window, and an exact key.
Cell = tuple[int, Any]


class AlignedWindowing:
    """Puts records into windows; task thread only.

    Args:
        spec: of the windows; ``is_aligned`` is true.
        contents: of the windows, in the state.
        timers: of the windows.
        ctx: of the operator, which has the current key.
    """

    def __init__(
        self, spec: WindowSpec, contents: WindowContents, timers: KeyedTimerService, ctx: OperatorContext
    ) -> None:
        assigner: Any = spec.assigner
        self._size: int = assigner._size
        self._offset: int = assigner._offset
        self._slide: int = getattr(assigner, "_slide", self._size)
        self._lateness_ms = spec.allowed_lateness_ms
        self._cleanup_time = spec.cleanup_time
        self._contents = contents
        self._are_combined = contents.are_combined
        self._context = contents.states.key_context
        self._timers = timers
        self._ctx = ctx
        self._combine = spec.combine
        self._aggregates = spec.aggregates
        # By start and exact key, the accumulator, or the records that the state does not have yet.
        self._cells: defaultdict[int, dict[Any, Any]] = defaultdict(dict)
        # The keys of cells as the user knows them, where these are not the exact keys.
        self._users: dict[Cell, Any] = {}
        self._in_state: set[Cell] = set()  # Cells with an accumulator that the state has, too.
        self.num_kept = 0  # Cells; where records are not combined, the records in them, which the loops count.
        self.watermark = MIN_TIMESTAMP  # Set by the operator: newer records evaluate no window.
        self._windows: dict[int, tuple[TimeWindow, Any]] = {}  # By start, with their exact keys.
        self._loop = RecordLoop(ctx.operator_name, self._write_in_chunk, [], ctx.attention)
        self.common_starts: list[int] = []  # Of the windows of all records that a loop is given without timestamps.

    def __repr__(self) -> str:
        return f"<AlignedWindowing: {self.num_kept} {'cells' if self._are_combined else 'records'}>"

    # -- records

    def try_add(self, chunk: Chunk, keys: list[Any], interrupts: Interrupts) -> int | None:
        """Put records into their windows; returns how many: see ``RecordLoop.run``.

        None: not all of them are newer than the watermark, or they are in several windows and can change; nothing was
        done.

        Args:
            chunk: has timestamps.
            keys: their own exact keys.
            interrupts: as of ``RecordLoop.run``.

        Raises:
            UserFunctionError: the function failed; names the record.
        """
        first, last = chunk.timestamp_bounds()
        if first <= self.watermark or (self._slide < self._size and not are_unchanging(chunk.values)):
            return None
        self.common_starts = starts = [*self._starts(first)]
        are_common = bool(starts) and last - starts[0] < self._slide and last - starts[-1] < self._size
        timestamps = None if are_common else chunk.timestamps
        return self._loop.run(chunk.records(), timestamps, len(keys), keys, interrupts)

    def _starts(self, timestamp: int) -> range:
        """The starts of the windows of a record, latest first."""
        return range(timestamp - (timestamp - self._offset) % self._slide, timestamp - self._size, -self._slide)

    # -- the text of loops

    def write_record(
        self, code: LoopCode, record: str, timestamp: str, key: str, exact: str, process_late: str
    ) -> None:
        """Generate the statements for one record of any kind, in another loop.

        Args:
            code: the loop.
            record: the variable with the record.
            timestamp: the variable with its timestamp, in milliseconds.
            key: the variable with the user's key.
            exact: the variable with the exact key.
            process_late: the statement for a record that is not newer than the watermark.
        """
        with code.block(f"if {timestamp} > {code.bind(self, 'windows')}.watermark:"):
            end = self._write_windows(code, record, timestamp, exact, key)
        with code.block("else:"):
            code.line(process_late)
            if end is not None:
                code.line(f"{end} = {MIN_TIMESTAMP}")  # Makes the loop look cells up again: its own may be removed.

    def _write_in_chunk(self, code: LoopCode, record: str, timestamp: str | None, key: str | None) -> None:
        """Write the statements for one record of a chunk; without a timestamp it goes into the windows that are common
        to all records of the chunk.
        """
        assert key is not None, "the loop is given exact keys"
        self._write_windows(code, record, timestamp, key, None)

    def _write_windows(
        self, code: LoopCode, record: str, timestamp: str | None, exact: str, key: str | None
    ) -> str | None:
        """Write the statements that put a record into its windows; returns the variable with the end of the window of
        the record before, if the loop has one.

        ``key``: None in the loop of a chunk, whose keys are exact keys, and whose records cannot change if they are in
            several windows.
        """
        start, cells = code.variable("start"), code.variable("cells")
        if self._slide == self._size:
            end = self._write_window(code, timestamp, start, cells)
            self._write_cell(code, record, exact, key, start, cells)
            return end
        by_start = code.bind(self._cells, "by_start")
        if timestamp is None:
            windows = code.variable("windows")
            starts = f"{code.bind(self, 'windows')}.common_starts"
            code.at_start(f"{windows} = [(start, {by_start}[start]) for start in {starts}]")
            with code.block(f"for {start}, {cells} in {windows}:"):
                self._write_cell(code, record, exact, key, start, cells)
            return None
        copy = None if key is None else self._write_copier(code, record)
        own = record if copy is None else code.variable("own")
        with code.block(
            f"for {start} in range({self._start_of(timestamp, self._slide)}, {timestamp} - {self._size}, "
            f"-{self._slide}):"
        ):
            code.line(f"{cells} = {by_start}[{start}]")
            if copy is not None:
                code.line(f"{own} = {record} if {copy} is None else {copy}({record})")
            self._write_cell(code, own, exact, key, start, cells)
        return None

    def _write_copier(self, code: LoopCode, record: str) -> str:
        """Write the test whether a record of several windows can change; returns the variable with the function that
        copies it for one window, which is None in the loop if the record cannot change.

        Users' functions may change the contents of a window, and no other window may see that.
        """
        copy = code.variable("copy")
        is_flat = (
            f"type({record}) is {code.bind(tuple, 'tuple')} and "
            f"{code.bind(UNCHANGING.issuperset, 'are_unchanging')}(map(type, {record}))"
        )
        is_fixed = f"type({record}) in {code.bind(UNCHANGING, 'UNCHANGING')} or ({is_flat})"
        code.line(f"{copy} = None if {is_fixed} else {code.bind(copier_of, 'copier_of')}({record})")
        return copy

    def _write_window(self, code: LoopCode, timestamp: str | None, start: str, cells: str) -> str | None:
        """Write the statements that find the only window of a record, mostly the window of the record before."""
        by_start = code.bind(self._cells, "by_start")
        if timestamp is None:
            code.at_start(f"{start}, = {code.bind(self, 'windows')}.common_starts")
            code.at_start(f"{cells} = {by_start}[{start}]")
            return None
        end = code.variable("end")
        code.at_start(f"{start} = {end} = {MIN_TIMESTAMP}")
        with code.block(f"if not {start} <= {timestamp} < {end}:"):
            code.line(f"{start} = {self._start_of(timestamp, self._size)}")
            code.line(f"{end} = {start} + {self._size}")
            code.line(f"{cells} = {by_start}[{start}]")
        return end

    def _start_of(self, timestamp: str, slide: int) -> str:
        since = f"({timestamp} - {self._offset})" if self._offset else timestamp
        return f"{timestamp} - {since} % {slide}"

    def _write_cell(self, code: LoopCode, record: str, exact: str, key: str | None, start: str, cells: str) -> None:
        """Write the statements that put a record into a window's cell; ``key`` is None in the loop of a chunk."""
        cell = f"{start}, {exact}, {exact if key is None else key}"
        if not self._are_combined:
            elements = code.variable("elements")
            code.line(f"{elements} = {cells}.get({exact})")
            code.line(
                f"if {elements} is None: {cells}[{exact}] = {elements} = "
                f"{code.bind(self._new_list, 'new_list')}({cell})"
            )
            code.line(f"{elements}.append({record})")
            windows = code.bind(self, "windows")
            code.line(f"{windows}.num_kept += 1")
            code.line(f"if {windows}.num_kept >= {_MAX_KEPT}: {windows}.write_all()")
            return
        missing, kept = code.bind(_MISSING, "MISSING"), code.variable("kept")
        blame = Blame(self._ctx.operator_name, self._ctx.subtask, record)
        code.line(f"{kept} = {cells}.get({exact}, {missing})")
        code.line(f"if {kept} is {missing}: {kept} = {code.bind(self._load, 'load')}({cell})")
        if self._aggregates:
            code.line(f"if {kept} is None: {kept} = {code.bind(self._combine.create_accumulator, 'create')}()", blame)
            code.line(f"{cells}[{exact}] = {code.bind(self._combine.add, 'add')}({record}, {kept})", blame)
        else:
            reduce = code.bind(getattr(self._combine, "reduce", self._combine), "reduce")
            code.line(f"{cells}[{exact}] = {record} if {kept} is None else {reduce}({kept}, {record})", blame)

    # -- called by loops

    def _new_list(self, start: int, exact: Any, key: Any) -> list[Any]:
        if key is not exact:
            self._users[start, exact] = key
        # Without a look at the state, which would copy the records that it has: ``take`` puts them in front.
        self._register(key, self._window(start)[0])
        return []

    def _load(self, start: int, exact: Any, key: Any) -> Any:
        """The accumulator of a window from the state, which gets a cell; None: the state has none."""
        cell = start, exact
        if self.num_kept >= _MAX_KEPT:
            self.write_all()
        self.num_kept += 1
        if key is not exact:
            self._users[cell] = key
        self._enter(cell, key)
        kept = self._contents.state.accumulator()
        if kept is not None:
            self._in_state.add(cell)
        # A window that is kept for late records may have had its end, and gets it again after a restart: the watermark
        # is lower then.
        if kept is None or self._lateness_ms:
            self._register(key, self._window(start)[0])
        return kept

    # -- cells and the state

    def take(self, key: Any, window: TimeWindow) -> list[Any] | None:
        """Take out the contents of a window of a key, in the form of ``WindowContents.get``; None: there are none."""
        cell = window.start, exact_key(key)
        found = self._pop(cell)
        kept: list[Any] | None = None
        # An accumulator includes what the state has; a list of records does not.
        is_part = found is _MISSING or not self._are_combined
        if is_part or cell in self._in_state:
            self._in_state.discard(cell)
            self._enter(cell, key)
            if is_part:
                kept = self._contents.get()
            self._contents.clear()
        if found is _MISSING or found is None:
            return kept
        if not self._are_combined:
            return [*(kept or ()), *found]
        result = self._combine.get_result(found) if self._aggregates else found
        return None if result is None else [result]

    def _pop(self, cell: Cell) -> Any:
        """Take out the contents of a cell; ``_MISSING``: there is no such cell."""
        start, exact = cell
        cells = self._cells.get(start)
        if cells is None:
            return _MISSING
        found = cells.pop(exact, _MISSING)
        if not cells:
            del self._cells[start]
        if found is not _MISSING:
            self.num_kept -= 1 if self._are_combined else len(found)
            self._users.pop(cell, None)
        return found

    def write(self, key: Any, window: TimeWindow) -> None:
        """Write the cell of a window to the state, if it has one, before other code reads the state."""
        cell = window.start, exact_key(key)
        value = self._pop(cell)
        if value is not _MISSING:
            self._enter(cell, key)
            self._contents.write(value)
            self._in_state.discard(cell)

    def write_all(self) -> None:
        """Write all cells to the state.

        The dictionaries of windows are cleared, not dropped: a loop that runs may hold one.
        """
        for start, cells in self._cells.items():
            for exact, value in cells.items():
                cell = start, exact
                self._enter(cell, self._users.get(cell, exact))
                self._contents.write(value)
            cells.clear()
        self._users.clear()
        self._in_state.clear()
        self._windows.clear()
        self.num_kept = 0

    def _enter(self, cell: Cell, key: Any) -> None:
        start, exact = cell
        window, exact_window = self._window(start)
        named = NamespacedKey(key, window)
        named.exact = NamespacedKey, exact, exact_window
        self._context.current_key = named

    def _window(self, start: int) -> tuple[TimeWindow, Any]:
        known = self._windows.get(start)
        if known is None:
            if len(self._windows) > _MAX_KEPT:
                self._windows.clear()
            window = TimeWindow(start, start + self._size)
            known = self._windows[start] = window, exact_key(window)
        return known

    def _register(self, key: Any, window: TimeWindow) -> None:
        """Register the timers of a window, which may have none yet."""
        self._ctx.key_context.current_key = key
        end = window.end - 1
        self._timers.register_event_time_timer(window, end)
        if self._lateness_ms and (over := self._cleanup_time(window)) < MAX_WINDOW_TIMESTAMP:
            self._timers.register_event_time_timer(window, over)

    def check_invariants(self) -> None:
        """Assert the number of cells or records, and that each entry about a cell has its cell."""
        cells = {(start, exact): value for start, by_key in self._cells.items() for exact, value in by_key.items()}
        assert self._users.keys() <= cells.keys(), "a key without its cell"
        assert self._in_state <= cells.keys(), "a cell that is gone is said to be in the state"
        num_kept = len(cells) if self._are_combined else sum(map(len, cells.values()))
        assert self.num_kept == num_kept, f"{self.num_kept} cells or records were counted, {num_kept} are kept"
