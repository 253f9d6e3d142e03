"""``AlignedWindows``: tumbling and sliding windows of event time that only the watermark evaluates, a chunk at a time.

While a chunk is processed, the watermark stands still: so nothing can be evaluated, and what each window keeps is read once, brought up to
date in a dictionary, and written once.  Functions are called for each record, in the order of the stream.

Hot path, per record: the start of its window, one probe and one store, and the call of the function; per window of a key and chunk two
accesses of the state (2 us), and a timer for a new one (bench: windows).

Side:       task.
Invariants: every record given is newer than the watermark, and so none of its windows is over.  A window of a key that keeps something has
            its timers.
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
        # Of the present chunk: cells are pairs of an exact key and the start of a window.
        self._named: dict[tuple[Any, int], NamespacedKey] = {}
        self._new: list[NamespacedKey] = []
        self._windows: dict[int, tuple[TimeWindow, Any]] = {}

    def add(self, values: Iterator[Any], timestamps: Sequence[int], keys: list[Any]) -> None:
        """Put records into their windows; all of them are newer than the watermark.

        Raises:
            Exception: whatever the function raised, at the record that ``values`` gave last; nothing is kept then.
        """
        self._named.clear()
        self._new.clear()
        self._windows.clear()
        exact = exact_keys(keys)
        if isinstance(self._contents, ListContents):
            self._add_to_lists(values, timestamps, keys, exact)
            return
        assert isinstance(self._contents, CombinedContents), "all records, or what they were combined to"
        combined = self._combined if self._slide == self._size else self._combined_sliding
        cells = combined(values, timestamps, keys, exact)
        context, update = self._context, self._contents.update
        for cell, value in cells.items():
            context.current_key = self._named[cell]
            update(value)
        self._register(self._new)

    def _combined(self, values: Iterator[Any], timestamps: Sequence[int], keys: list[Any], exact: list[Any]) -> dict[Any, Any]:
        """What each window keeps after the records."""
        cells: dict[Any, Any] = {}
        get, load, step, size, offset = cells.get, self._load, self._step(), self._size, self._offset
        for value, timestamp, key, user_key in zip(values, timestamps, exact, keys, strict=False):
            cell = key, timestamp - (timestamp - offset) % size
            before = get(cell, _MISSING)
            if before is _MISSING:
                before = load(cell, user_key)
            cells[cell] = value if before is None else step(before, value)
        return cells

    def _combined_sliding(self, values: Iterator[Any], timestamps: Sequence[int], keys: list[Any], exact: list[Any]) -> dict[Any, Any]:
        cells: dict[Any, Any] = {}
        get, load, step, size, slide, offset = cells.get, self._load, self._step(), self._size, self._slide, self._offset
        for value, timestamp, key, user_key in zip(values, timestamps, exact, keys, strict=False):
            for start in range(timestamp - (timestamp - offset) % slide, timestamp - size, -slide):
                cell = key, start
                before = get(cell, _MISSING)
                if before is _MISSING:
                    before = load(cell, user_key)
                cells[cell] = value if before is None else step(before, value)
        return cells

    def _step(self) -> Any:
        """The function of what is kept and a record."""
        if self._aggregates:
            add = self._combine.add
            return lambda accumulator, value: add(value, accumulator)
        return getattr(self._combine, "reduce", self._combine)

    def _load(self, cell: tuple[Any, int], key: Any) -> Any:
        """What a window keeps, or begins with; None: the next record itself."""
        assert isinstance(self._contents, CombinedContents), "the caller checked that"
        named = self._name(cell, key)
        self._context.current_key = named
        kept = self._contents.kept()
        if kept is None:
            self._new.append(named)
            return self._combine.create_accumulator() if self._aggregates else None
        return kept

    def _name(self, cell: tuple[Any, int], key: Any) -> NamespacedKey:
        exact, start = cell
        known = self._windows.get(start)
        if known is None:
            window = TimeWindow(start, start + self._size)
            known = self._windows[start] = window, exact_key(window)
        named = self._named[cell] = NamespacedKey(key, known[0])
        named.exact = NamespacedKey, exact, known[1]
        return named

    def _add_to_lists(self, values: Iterator[Any], timestamps: Sequence[int], keys: list[Any], exact: list[Any]) -> None:
        assert isinstance(self._contents, ListContents), "the caller checked that"
        cells: dict[tuple[Any, int], list[Any]] = {}
        size, slide, offset, named = self._size, self._slide, self._offset, self._named
        for value, timestamp, key, user_key in zip(values, timestamps, exact, keys, strict=False):
            for start in range(timestamp - (timestamp - offset) % slide, timestamp - size, -slide):
                cell = key, start
                elements = cells.get(cell)
                if elements is None:
                    cells[cell] = [value]
                    self._name(cell, user_key)
                else:
                    elements.append(value)
        add_all = self._contents.state.add_all
        for cell, elements in cells.items():
            self._context.current_key = named[cell]
            add_all(elements)
        self._register(named.values())

    def _register(self, cells: Any) -> None:
        """The timers of windows that may have none."""
        register, lateness_ms = self._timers.register_event_time_timer, self._lateness_ms
        for named in cells:
            window = named.namespace
            self._keys.current_key = named.key
            end = window.end - 1
            register(window, end)
            if lateness_ms and end + lateness_ms < MAX_WINDOW_TIMESTAMP:
                register(window, end + lateness_ms)
