"""Windows of columns: the windows of each row; the rows of a window's state in arrays, and how far the windows of each
key have been emitted; the tables of one subtask.

Hot path.  One division per row and chunk.

Side:       pure.
Units:      milliseconds; panes are numbered, pane 0 begins at the offset.
Source:     Flink ``TimeWindow.getWindowStartWithOffset``, ``SlidingEventTimeWindows``, ``EventTimeSessionWindows``;
            panes: "No pane, no gain" (Li et al., 2005).
Invariants: a run never changes, so a snapshot may share it.  An earlier run of ``WindowRuns`` has earlier rows.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Generic, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from flowlet.kernels.grouping import IndexArray, stable_order
from flowlet.kernels.windows.window_partials import Int64Array, Part, Partial, WindowKeys, join_values
from flowlet.records import MIN_TIMESTAMP
from netstack.late import dataclass

# Timestamps beyond this would not leave room for the ends of windows and sessions.
MAX_WINDOW_TIMESTAMP: Final = 1 << 61

WINDOW_START: Final = "window_start"
WINDOW_END: Final = "window_end"
WINDOW_TIME_TYPE: Final = pa.timestamp("ms")
_KEY_BYTES: Final = 100  # of a ``KeyIndex``, per key


@dataclass(frozen=True, slots=True)
class AlignedWindows:
    """Windows of ``size`` that begin at every ``slide``: tumbling ones if both are equal.

    All windows consist of whole panes, which overlapping windows share.
    """

    size: int
    slide: int
    offset: int = 0
    is_event_time: bool = True

    @property
    def pane(self) -> int:
        """The length of a pane."""
        return math.gcd(self.size, self.slide)

    @property
    def size_panes(self) -> int:
        """The size of a window in panes."""
        return self.size // self.pane

    @property
    def slide_panes(self) -> int:
        """The distance from the start of one window to the next, in panes."""
        return self.slide // self.pane

    @property
    def is_tumbling(self) -> bool:
        """Whether a window is a pane."""
        return self.size == self.slide

    @property
    def max_windows(self) -> int:
        """How many windows a row belongs to at most."""
        return -(-self.size // self.slide)

    def panes(self, timestamps: Int64Array) -> Int64Array:
        """The pane of each timestamp."""
        found: Int64Array = (timestamps - self.offset) // self.pane if self.offset else timestamps // self.pane
        return found

    def last_windows(self, panes: Int64Array) -> Int64Array:
        """The last window that can hold each pane, by its first pane."""
        if self.slide_panes == 1:
            return panes
        found: Int64Array = panes // self.slide_panes * self.slide_panes
        return found

    def holds(self, panes: Int64Array, windows: Int64Array) -> NDArray[np.bool_]:
        """Whether each window reaches its pane; a window does not begin behind its pane."""
        found: NDArray[np.bool_] = windows > panes - self.size_panes
        return found

    def sorted_out(
        self, timestamps: Int64Array, panes: Int64Array, horizon: Any
    ) -> tuple[IndexArray, IndexArray] | None:
        """The rows that a window takes, and the late rows among the others; None: a window takes each row.

        A row is late if all its windows take no rows any more, or, for a row in a gap between windows, if the windows
        before the gap do not.

        ``horizon``: windows that end at or before it take no rows; one for all rows, or an array with one for each.
        """
        last, limit = self.last_windows(panes), self.last_ended(horizon)
        # One minimum decides for most chunks, which have no late rows; only windows with gaps need a look at each row.
        if self.slide <= self.size and isinstance(limit, int) and int(last.min()) > limit:
            return None
        is_taken = (last > limit) & self.holds(panes, last)
        if is_taken.all():
            return None
        return is_taken.nonzero()[0], (~is_taken & (timestamps <= horizon)).nonzero()[0]

    def each_spread(self, panes: Int64Array, after: Any, limit: Any) -> Iterator[tuple[IndexArray, Int64Array]]:
        """Rows of panes, each with a window that holds it and begins behind ``after`` and not behind ``limit``.

        The first item has the last window of each pane, the next one the window before it, and so on.
        """
        last = self.last_windows(panes)
        for number in range(self.max_windows):
            starts = last - number * self.slide_panes
            rows = (self.holds(panes, starts) & (starts > after) & (starts <= limit)).nonzero()[0]
            yield rows, starts.take(rows)

    def spread(self, panes: Int64Array, after: Any, limit: Any) -> tuple[IndexArray, Int64Array]:
        """All items of ``each_spread`` as one."""
        rows, windows = zip(*self.each_spread(panes, after, limit), strict=True)
        return np.concatenate(rows), np.concatenate(windows)

    def last_ended(self, watermark: Any) -> Any:
        """The first pane of the last window all of whose timestamps are at or below a watermark, if a window began at
        every pane.
        """
        return (watermark + 1 - self.offset) // self.pane - self.size_panes

    def starts_before(self, watermark: int) -> int:
        """The first pane that is behind all windows that end at or before a watermark."""
        return int(self.last_ended(watermark) + self.size_panes)

    def first_end(self, pane: int, emitted: int) -> int:
        """The last timestamp of the first window that holds this pane or a later one and was not emitted.

        ``emitted``: the watermark up to which windows were emitted.
        """
        first = -(-(pane - self.size_panes + 1) // self.slide_panes)
        after = self.last_ended(emitted) // self.slide_panes + 1
        return int(self.start_ms(max(first, after) * self.slide_panes) + self.size - 1)

    def start_ms(self, windows: Any) -> Any:
        """The start of windows, given by their first panes."""
        return windows * self.pane + self.offset


_ALL_STARTS: Final = 1 << 63


@dataclass(frozen=True, slots=True)
class SessionWindows:
    """Windows of rows of one key, each of which is at most ``gap`` behind the row before it."""

    gap: int
    is_event_time: bool = True

    def starts_before(self, watermark: int) -> int:
        """A bound behind all rows: rows that start late may belong to a session that ends."""
        return _ALL_STARTS

    def first_end(self, start: int, emitted: int) -> int:
        """The last timestamp of the shortest session with a row that starts at ``start`` or later."""
        return start + self.gap - 1


WindowShape = AlignedWindows | SessionWindows


# Above the smallest timestamps, so that no number that is computed from it wraps around.
_LOWEST_FLOOR: Final = -(1 << 62)


@dataclass(frozen=True, slots=True)
class Run:
    """Rows of a window's state, as arrays.

    ``slots``: the slot of each row's key.  ``starts``: the pane of each row, or the start of its session.  ``marks``:
        more arrays, if the kind of window needs them.  ``parts``: the arrays of each kind of part.  ``num_held``: how
        many rows the arrays have from which these rows were cut; 0: these rows only.
    """

    slots: Int64Array
    starts: Int64Array
    marks: Part
    parts: tuple[Part, ...]
    num_held: int = 0

    def __len__(self) -> int:
        return len(self.slots)

    @property
    def num_bytes(self) -> int:
        """The size of the arrays in bytes."""
        return sum([int(each.nbytes) for part in ((self.slots, self.starts), self.marks, *self.parts) for each in part])

    def take(self, rows: IndexArray) -> "Run":
        """These rows."""
        return Run(
            self.slots.take(rows),
            self.starts.take(rows),
            _taken(self.marks, rows),
            tuple([_taken(part, rows) for part in self.parts]),
        )

    def cut(self, start: int, stop: int) -> "Run":
        """The rows from ``start`` to before ``stop``; copied only if they would keep more than twice their own memory
        alive.
        """
        num_held = self.num_held or len(self)
        if num_held > 2 * (stop - start):
            return self.take(np.arange(start, stop))
        parts = tuple([_cut(part, start, stop) for part in self.parts])
        return Run(self.slots[start:stop], self.starts[start:stop], _cut(self.marks, start, stop), parts, num_held)

    def with_slots(self, slots: Int64Array) -> "Run":
        """These rows with other slots."""
        return Run(slots, self.starts, self.marks, self.parts, self.num_held)

    def in_order(self) -> "Run":
        """The rows in the order of their starts; rows with equal starts keep their order."""
        order = stable_order(self.starts)
        return self if order is None else self.take(order)


def joined_runs(runs: Sequence[Run]) -> Run:
    """The rows of all runs in their order; there is at least one run."""
    if len(runs) == 1:
        return runs[0]
    marks = _joined([run.marks for run in runs])
    parts = tuple([_joined(part) for part in zip(*[run.parts for run in runs], strict=True)])
    return Run(np.concatenate([run.slots for run in runs]), np.concatenate([run.starts for run in runs]), marks, parts)


# More runs than this are joined; more rows than this wait to be joined only if as many lie in the first run already.
# So each row is joined a few times at most.
_MAX_RUNS: Final = 64
_MIN_PENDING_ROWS: Final = 1 << 16


class WindowRuns:
    """The rows of windows of all keys, in runs that are joined now and then.

    Args:
        joined: puts the rows of several runs into the order of a run; may merge some of them into one.
        saves_rows: whether it merges rows; else only many runs are a reason to join them.

    ``first``: the start of the first row, if the rows of a run are in order; None: there are no rows.
    """

    def __init__(self, joined: Callable[[Run], Run], *, saves_rows: bool) -> None:
        self._joined = joined
        self._saves_rows = saves_rows
        self._runs: list[Run] = []
        self._num_rows = 0
        self.first: int | None = None

    def __repr__(self) -> str:
        return f"<WindowRuns: {self._num_rows} rows in {len(self._runs)} runs>"

    def __len__(self) -> int:
        return self._num_rows

    def runs(self) -> tuple[Run, ...]:
        """The runs, which have all rows."""
        return tuple(self._runs)

    @property
    def num_bytes(self) -> int:
        """The estimated size of the rows in bytes: as if each were as large as a row of the newest run."""
        return self._num_rows * self._runs[-1].num_bytes // len(self._runs[-1]) if self._runs else 0

    def put_first(self, run: Run) -> None:
        """Take rows that arrived before all others, and are in no order."""
        self._replace([self._joined(run), *self._runs])
        if len(self._runs) > _MAX_RUNS:
            self.joined()

    def add(self, run: Run) -> None:
        """Take rows that are in order."""
        if not len(run):
            return
        first = int(run.starts[0])
        self.first = first if self.first is None else min(self.first, first)
        self._runs.append(run)
        self._num_rows += len(run)
        are_many = self._saves_rows and self._num_rows > 2 * max(len(self._runs[0]), _MIN_PENDING_ROWS)
        if are_many or len(self._runs) > _MAX_RUNS:
            sizes = list(map(len, self._runs))
            # The first run that is no larger than all runs behind it together.  There is one: if each were larger,
            # sizes would double, and there would be fewer runs.
            place = next(place for place, size in enumerate(sizes) if 2 * size <= sum(sizes[place:]))
            self._replace([*self._runs[:place], self._joined(joined_runs(self._runs[place:]))])

    def joined(self) -> Run:
        """All rows in one run; there is at least one."""
        run = self._joined(joined_runs(self._runs))
        self._replace([run])
        return run

    def replace(self, run: Run) -> None:
        """Replace all rows by these."""
        self._replace([run] if len(run) else [])

    def forget(self) -> None:
        """Forget all rows."""
        self._replace([])

    def take_before(self, start: int) -> list[Run]:
        """Take out the rows that start before ``start``; the rows of each run must be in order."""
        if self.first is None or self.first >= start:
            return []
        due, rest = [], []
        for run in self._runs:
            num_due = int(np.searchsorted(run.starts, start))
            if num_due:
                due.append(run if num_due == len(run) else run.cut(0, num_due))
            if num_due < len(run):
                rest.append(run.cut(num_due, len(run)) if num_due else run)
        self._replace(rest)
        return due

    def replace_slots(self, slots: Int64Array) -> None:
        """Replace each slot by the number that ``slots`` has at it."""
        self._runs = [run.with_slots(slots.take(run.slots)) for run in self._runs]

    def _replace(self, runs: list[Run]) -> None:
        self._runs = runs
        self._num_rows = sum(map(len, runs))
        self.first = min((int(run.starts[0]) for run in runs), default=None)

    def check_invariants(self) -> None:
        """Assert the number of rows and of runs, and that no run holds much more memory than its rows need."""
        assert self._num_rows == sum(map(len, self._runs)), "rows were not counted"
        assert len(self._runs) <= _MAX_RUNS, "too many runs"
        assert all(len(run) > 0 and run.num_held <= 2 * len(run) for run in self._runs), "a run is empty, or holds more"


def combined_parts(
    partials: Sequence[Partial], parts: Sequence[Part], codes: IndexArray, num_groups: int
) -> tuple[Part, ...]:
    """Combine the parts of each group into one."""
    return tuple([partial.combined(part, codes, num_groups) for partial, part in zip(partials, parts, strict=True)])


class Progress:
    """How far windows have been emitted: up to a watermark, and after a restore in another parallelism further for some
    keys.

    Args:
        emitted: the watermark.
        floors: for each key group, the watermark up to which its windows were emitted; None: ``emitted`` holds for all.
    """

    __slots__ = ("emitted", "floors")

    def __init__(self, emitted: int = MIN_TIMESTAMP, floors: Int64Array | None = None) -> None:
        self.emitted = emitted
        self.floors = floors

    @classmethod
    def of_groups(cls, emitted: Mapping[int, int], max_parallelism: int) -> "Progress":
        """The progress of several key groups, each with its watermark; other groups have no windows yet."""
        lowest = min(emitted.values(), default=MIN_TIMESTAMP)
        if max(emitted.values(), default=MIN_TIMESTAMP) <= max(lowest, _LOWEST_FLOOR):
            return cls(lowest)
        floors = np.full(max_parallelism, _LOWEST_FLOOR)
        floors[list(emitted)] = list(emitted.values())
        return cls(lowest, floors)

    def of(self, slots: Int64Array, keys: WindowKeys) -> Any:
        """The watermark of the keys with these slots: one number for all, or an array with one for each."""
        if self.floors is None:
            return self.emitted
        floors = self.floors.take(keys.groups(len(self.floors)).take(slots))
        return np.maximum(floors, max(self.emitted, _LOWEST_FLOOR))

    def of_group(self, group: int) -> int:
        """The watermark of a key group."""
        return self.emitted if self.floors is None else max(self.emitted, int(self.floors[group]))

    def latest(self) -> int:
        """The watermark of the key that is furthest."""
        return self.emitted if self.floors is None else int(self.floors.max(initial=self.emitted))

    def advance(self, watermark: int) -> None:
        """Note that windows up to the watermark have been emitted."""
        self.emitted = max(self.emitted, watermark)
        if self.emitted >= self.latest():
            self.floors = None


# The rows of the windows, in runs; of a join, one table for each side.
TableRuns = tuple[tuple[Run, ...], ...]


@dataclass(frozen=True, slots=True)
class EmittedWindows:
    """A ``pyarrow.RecordBatch`` of results, and the end of each one's window, exclusive."""

    batch: Any
    ends_ms: Int64Array


Kind = TypeVar("Kind", bound=WindowShape)


class WindowTables(ABC, Generic[Kind]):
    """The keys of one subtask, and the tables that have a row for each key and window: of a join, one for each side.

    Args:
        shape: of the windows.
        key: the key's column; None: there are no keys.
        key_type: its Arrow type, of plain values.
        tables: the tables, which the subclass fills.

    ``progress``: how far windows have been emitted; it may be set before the first rows.
    """

    def __init__(self, shape: Kind, key: str | None, key_type: Any, *tables: WindowRuns) -> None:
        self.shape: Kind = shape
        self._is_keyed = key is not None
        self._keys = WindowKeys(key, key_type)
        self.progress = Progress()
        self._tables = tables

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {', '.join(map(repr, self._tables))}, {self._keys!r}>"

    @abstractmethod
    def _ended(self, watermark: int) -> Iterator[EmittedWindows]:
        """Emit the windows that end at or before a watermark, each once; forget the rows that no window needs."""

    def fire(self, watermark: int, batches: Iterable[None] = (None,)) -> Iterator[EmittedWindows]:
        """Emit the windows that end at or before a watermark, those of a key in the order of their ends.

        ``batches``: at each item all rows of some keys are loaded; the rows of every key are loaded at one of them.

        Raises:
            OverflowError: a sum is too large; names the column.
        """
        if watermark > self.progress.emitted:
            for _ in batches:
                yield from self._ended(watermark)
            # Behind all batches: each of them asks which windows had been emitted before this watermark.
            self.progress.advance(watermark)
            # Last, because it gives the keys other slots.
            self._forget_keys()

    def first_end(self, start: int) -> int:
        """A time before which no window ends that was not emitted and has a row that starts at ``start`` or later."""
        return self.shape.first_end(start, self.progress.emitted)

    def next_end(self) -> int | None:
        """A time before which no window ends; None: there are no rows."""
        firsts = [table.first for table in self._tables if table.first is not None]
        return self.first_end(min(firsts)) if firsts else None

    # -- all rows

    def state(self, *, in_order: bool = False) -> tuple[Any, Progress, TableRuns]:
        """The key of each slot, how far windows have been emitted, and the rows, for a snapshot; they never change.

        ``in_order``: join the rows of each table into one run first, in the order of their panes.
        """
        if in_order:
            for table in self._tables:
                if len(table):
                    table.joined()
        # A copy, since the next watermark changes the original.
        progress = Progress(self.progress.emitted, self.progress.floors)
        return self._keys.array(), progress, tuple([table.runs() for table in self._tables])

    def put_first(self, table: int, keys: Any, run: Run) -> None:
        """Take rows that arrived before all others; ``keys`` has the key of each as an Arrow array, in place of slots.

        Raises:
            TypeError: see ``WindowKeys.slots``.
        """
        self._tables[table].put_first(run.with_slots(self._keys.slots_of(keys)))

    def forget_rows(self) -> None:
        """Forget all rows and keys; how far windows have been emitted stays."""
        for table in self._tables:
            table.forget()
        self._keys.forget()

    @property
    def num_bytes(self) -> int:
        """The estimated size of rows and keys in bytes."""
        keys = self._keys.num_bytes + _KEY_BYTES * self._keys.num_slots
        return keys + sum([table.num_bytes for table in self._tables])

    def _forget_keys(self) -> None:
        """Forget the keys without rows, if most keys have none."""
        if not self._keys.are_sparse(sum(map(len, self._tables))):
            return
        is_live = np.zeros(self._keys.num_slots, np.bool_)
        for table in self._tables:
            for run in table.runs():
                is_live[run.slots] = True
        slots = self._keys.keep(is_live)
        for table in self._tables:
            table.replace_slots(slots)

    def _leading_columns(self, slots: Int64Array, starts_ms: Int64Array, ends_ms: Int64Array) -> list[Any]:
        """The key, if there is one, and the window, as ``pyarrow.Array`` s."""
        keys: list[Any] = [self._keys.array().take(pa.array(slots))] if self._is_keyed else []
        return [*keys, *[pa.array(each).view(WINDOW_TIME_TYPE) for each in (starts_ms, ends_ms)]]


def _taken(values: Sequence[Any], rows: IndexArray) -> Part:
    return tuple([each.take(rows) for each in values])


def _joined(parts: Sequence[Part]) -> Part:
    return tuple([join_values(arrays) for arrays in zip(*parts, strict=True)])


def _cut(values: Sequence[Any], start: int, stop: int) -> Part:
    return tuple([each[start:stop] for each in values])
