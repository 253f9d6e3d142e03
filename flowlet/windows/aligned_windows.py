"""``AlignedWindows``: tumbling and sliding windows of event time that only the watermark evaluates.

While records are newer than the watermark, nothing can be evaluated.  So what a window keeps stays in a dictionary, its *cell*, from its
first record on.  It is written to the state before a snapshot, when there are too many, and before anything else reads it; a window that
ends before that never touches the state.  Functions are called for each record, in the order of the stream.

Hot path, per record: the start of its window, one probe and one store, and the call of the function; per window of a key an access of
the state and a timer (bench: windows).

Side:       task.
Invariants: what a cell holds is newer than the state.  A window of a key that keeps something has its timers.
Source:     Flink ``WindowOperator.processElement``, for ``EventTimeTrigger``.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Final

from flowlet.datastream.window.time_triggers import EventTimeTrigger
from flowlet.datastream.window.window_assigners import SlidingEventTimeWindows, TumblingEventTimeWindows
from flowlet.datastream.window.window_spec import WindowSpec
from flowlet.datastream.window.windows import MAX_WINDOW_TIMESTAMP, TimeWindow
from flowlet.keys.exact_keys import exact_key, exact_keys
from flowlet.keys.namespaced_key import NamespacedKey
from flowlet.timers.time_api import InternalTimerService, KeyContext
from flowlet.windows.window_contents import CombinedContents, ListContents, WindowContents
from flowlet.windows.window_states import WindowStates

_MISSING: Final = object()
# Cells, or records in lists: a snapshot has to write so many to the state first, at 2 us each.  Not measured.
_MAX_KEPT: Final = 50_000

# An exact key, and the start of a window.
Cell = tuple[Any, int]


def are_aligned(spec: WindowSpec) -> bool:
    """Whether windows begin at the same times for all keys, and only the watermark evaluates them; their exact types say so."""
    is_known = type(spec.assigner) in (TumblingEventTimeWindows, SlidingEventTimeWindows)
    return is_known and type(spec.trigger) is EventTimeTrigger and spec.evictor is None


class AlignedWindows:
    """Puts records into windows; task thread only.

    Args:
        spec: what is done with windows; ``are_aligned``.
        contents: what is kept of them.
        states: of the windows.
        timers: of the windows.
        keys: the operator's current key.
    """

    def __init__(
        self, spec: WindowSpec, contents: WindowContents, states: WindowStates, timers: InternalTimerService, keys: KeyContext
    ) -> None:
        assigner: Any = spec.assigner
        self._size: int = assigner._size
        self._offset: int = assigner._offset
        self._slide: int = getattr(assigner, "_slide", self._size)
        self._lateness_ms = spec.allowed_lateness_ms
        self._contents = contents
        self._context = states.key_context
        self._timers = timers
        self._keys = keys
        self._combine = spec.combine
        self._aggregates = spec.aggregates
        self._nothing = _MISSING if spec.aggregates else None  # Behind what the next record itself is kept: an accumulator may be None.
        self._cells: dict[Cell, Any] = {}  # What is kept, or the records that the state has not got yet.
        self._users: dict[Cell, Any] = {}  # The keys of cells as the user knows them.
        self._in_state: set[Cell] = set()  # Cells whose window may have an entry in the state.
        self._num_listed = 0
        self._windows: dict[int, tuple[TimeWindow, Any]] = {}  # By start, with their exact keys.

    def __repr__(self) -> str:
        return f"<AlignedWindows: {len(self._cells)} cells>"

    # -- records

    def add(self, values: Iterator[Any], timestamps: Sequence[int], keys: list[Any]) -> None:
        """Put records into their windows; all of them are newer than the watermark.

        Raises:
            Exception: whatever the function raised, at the record that ``values`` gave last.
        """
        exact = exact_keys(keys)
        if isinstance(self._contents, ListContents):
            self._add_to_lists(values, timestamps, keys, exact)
        elif self._slide == self._size:
            self._combine_each(values, timestamps, keys, exact)
        else:
            self._combine_sliding(values, timestamps, keys, exact)
        if len(self._cells) > _MAX_KEPT or self._num_listed > _MAX_KEPT:
            self.write_all()

    def _combine_each(self, values: Iterator[Any], timestamps: Sequence[int], keys: list[Any], exact: list[Any]) -> None:
        cells, load, step, size, offset = self._cells, self._load, self._step(), self._size, self._offset
        get, nothing = cells.get, self._nothing
        for value, timestamp, key, user_key in zip(values, timestamps, exact, keys, strict=False):
            cell = key, timestamp - (timestamp - offset) % size
            before = get(cell, _MISSING)
            if before is _MISSING:
                before = load(cell, user_key)
            cells[cell] = value if before is nothing else step(before, value)

    def _combine_sliding(self, values: Iterator[Any], timestamps: Sequence[int], keys: list[Any], exact: list[Any]) -> None:
        cells, load, step, size, slide, offset = self._cells, self._load, self._step(), self._size, self._slide, self._offset
        get, nothing = cells.get, self._nothing
        for value, timestamp, key, user_key in zip(values, timestamps, exact, keys, strict=False):
            for start in range(timestamp - (timestamp - offset) % slide, timestamp - size, -slide):
                cell = key, start
                before = get(cell, _MISSING)
                if before is _MISSING:
                    before = load(cell, user_key)
                cells[cell] = value if before is nothing else step(before, value)

    def _add_to_lists(self, values: Iterator[Any], timestamps: Sequence[int], keys: list[Any], exact: list[Any]) -> None:
        cells, size, slide, offset, num_listed = self._cells, self._size, self._slide, self._offset, 0
        for value, timestamp, key, user_key in zip(values, timestamps, exact, keys, strict=False):
            for start in range(timestamp - (timestamp - offset) % slide, timestamp - size, -slide):
                cell = key, start
                elements = cells.get(cell)
                num_listed += 1
                if elements is None:
                    cells[cell] = [value]
                    self._users[cell] = user_key
                    self._in_state.add(cell)  # not asked: it would copy the list
                    self._register(user_key, self._window(start)[0])
                else:
                    elements.append(value)
        self._num_listed += num_listed

    def _step(self) -> Any:
        """The function of what is kept and a record."""
        if self._aggregates:
            add, create = self._combine.add, self._combine.create_accumulator
            return lambda accumulator, value: add(value, create() if accumulator is None else accumulator)
        return getattr(self._combine, "reduce", self._combine)

    def _load(self, cell: Cell, key: Any) -> Any:
        """What a window keeps; None: nothing."""
        assert isinstance(self._contents, CombinedContents), "the caller checked that"
        self._users[cell] = key
        self._enter(cell, key)
        kept = self._contents.kept()
        if kept is not None:
            self._in_state.add(cell)
        # A window that is kept for late records may have had its end, and gets it again after a restart: the watermark is lower then.
        if kept is None or self._lateness_ms:
            self._register(key, self._window(cell[1])[0])
        return kept

    # -- cells and the state

    def take(self, key: Any, window: TimeWindow) -> list[Any] | None:
        """What a window of a key keeps, as ``WindowContents.get`` gives it, and forget it; None: nothing."""
        cell = exact_key(key), window.start
        found = self._cells.pop(cell, _MISSING)
        self._users.pop(cell, None)
        is_in_state = found is _MISSING or cell in self._in_state
        self._in_state.discard(cell)
        kept: list[Any] | None = None
        if is_in_state:
            self._enter(cell, key)
            if found is _MISSING or isinstance(self._contents, ListContents):
                kept = self._contents.get()
            self._contents.clear()
        if found is _MISSING or found is None:
            return kept
        if isinstance(self._contents, ListContents):
            self._num_listed -= len(found)
            return [*(kept or ()), *found]
        result = self._combine.get_result(found) if self._aggregates else found
        return None if result is None else [result]

    def write(self, key: Any, window: TimeWindow) -> None:
        """Write the cell of a window to the state, if it has one: something else will read it."""
        cell = exact_key(key), window.start
        if cell in self._cells:
            value = self._cells.pop(cell)
            if isinstance(self._contents, ListContents):
                self._num_listed -= len(value)
            self._write(cell, value)
            del self._users[cell]
            self._in_state.discard(cell)

    def write_all(self) -> None:
        """Write all cells to the state."""
        for cell, value in self._cells.items():
            self._write(cell, value)
        self._cells.clear()
        self._users.clear()
        self._in_state.clear()
        self._windows.clear()
        self._num_listed = 0

    def _write(self, cell: Cell, value: Any) -> None:
        self._enter(cell, self._users[cell])
        if isinstance(self._contents, ListContents):
            self._contents.state.add_all(value)
        else:
            assert isinstance(self._contents, CombinedContents), "all records, or what they were combined to"
            self._contents.update(value)

    def _enter(self, cell: Cell, key: Any) -> None:
        exact, start = cell
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
        """The timers of a window that may have none."""
        self._keys.current_key = key
        end = window.end - 1
        self._timers.register_event_time_timer(window, end)
        if self._lateness_ms and end + self._lateness_ms < MAX_WINDOW_TIMESTAMP:
            self._timers.register_event_time_timer(window, end + self._lateness_ms)

    def check_invariants(self) -> None:
        """Assert that every cell has its key, and that records in lists were counted."""
        assert self._cells.keys() == self._users.keys(), "a cell without its key, or a key without its cell"
        assert self._in_state <= self._cells.keys(), "a cell that is gone is said to be in the state"
        num_listed = sum(map(len, self._cells.values())) if isinstance(self._contents, ListContents) else 0
        assert self._num_listed == num_listed, f"{self._num_listed} records in lists instead of {num_listed}"
