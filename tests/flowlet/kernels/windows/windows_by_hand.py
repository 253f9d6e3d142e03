"""Windows and joins in plain loops, for comparison with those in arrays."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from flowlet.kernels.windows.window_shapes import AlignedWindows, SessionWindows, WindowShape
from flowlet.records import MIN_TIMESTAMP

Window = tuple[int, int]  # start, and end (exclusive)


@dataclass(frozen=True)
class InputRow:
    """One row."""

    key: Any
    timestamp: int
    number: int | None
    decimal: float | None
    text: str | None


@dataclass
class KeyState:
    """The windows of one key."""

    rows: dict[Window, list[InputRow]] = field(default_factory=dict)
    is_changed: set[Window] = field(default_factory=set)  # since it was emitted


def windows_of(shape: AlignedWindows, timestamp: int) -> list[Window]:
    """Return all windows that hold a timestamp."""
    last = timestamp - (timestamp - shape.offset) % shape.slide
    return [(start, start + shape.size) for start in range(last, timestamp - shape.size, -shape.slide)]


class WindowsByHand:
    """``ColumnarWindows`` row by row; the rows of a chunk have no order for sessions."""

    def __init__(self, shape: WindowShape, lateness_ms: int, group_of: Callable[[Any], int]) -> None:
        self.floors: dict[int, int] = {}  # by key group
        self.group_of = group_of
        self.shape = shape
        self.lateness_ms = lateness_ms
        self.keys: dict[Any, KeyState] = {}
        self.watermark = MIN_TIMESTAMP

    def emitted(self, key: Any) -> int:
        """How far the windows of a key were emitted."""
        return max(self.watermark, self.floors.get(self.group_of(key), MIN_TIMESTAMP))

    def add(self, rows: list[InputRow]) -> tuple[list[InputRow], list[tuple[Any, Window, list[InputRow]]]]:
        """Return the rows that are too late, and the windows that must be emitted again."""
        if isinstance(self.shape, SessionWindows):
            late = self._add_to_sessions(rows, self.shape.gap)
        else:
            late = self._add_to_windows(rows, self.shape)
        return late, self._take(lambda key, window: window[1] - 1 <= self.emitted(key))

    def fire(self, watermark: int) -> list[tuple[Any, Window, list[InputRow]]]:
        """Return the windows that end by then."""
        if watermark <= self.watermark:
            return []
        due = self._take(lambda key, window: window[1] - 1 <= watermark)
        self.watermark = watermark
        for state in self.keys.values():
            for window in [each for each in state.rows if each[1] - 1 + self.lateness_ms <= watermark]:
                del state.rows[window]
                state.is_changed.discard(window)
        return due

    def _add_to_windows(self, rows: list[InputRow], shape: AlignedWindows) -> list[InputRow]:
        late = []
        for row in rows:
            emitted = self.emitted(row.key)
            alive = [each for each in windows_of(shape, row.timestamp) if each[1] - 1 + self.lateness_ms > emitted]
            if not alive and row.timestamp + self.lateness_ms <= emitted:
                late.append(row)
            for window in alive:
                state = self.keys.setdefault(row.key, KeyState())
                state.rows.setdefault(window, []).append(row)
                state.is_changed.add(window)
        return late

    def _add_to_sessions(self, rows: list[InputRow], gap: int) -> list[InputRow]:
        late = []
        for key in {row.key for row in rows}:
            state = self.keys.setdefault(key, KeyState())
            pieces = [(window, list(held), window in state.is_changed) for window, held in state.rows.items()]
            pieces += [((row.timestamp, row.timestamp + gap), [row], True) for row in rows if row.key == key]
            state.rows, state.is_changed = {}, set()
            for window, held, is_changed in merged_sessions(pieces):
                if window[1] - 1 + self.lateness_ms <= self.emitted(key):
                    late += held
                    continue
                state.rows[window] = held
                if is_changed:
                    state.is_changed.add(window)
        return late

    def _take(self, is_due: Any) -> list[tuple[Any, Window, list[InputRow]]]:
        found = []
        for key, state in self.keys.items():
            for window in sorted(state.is_changed):
                if is_due(key, window):
                    found.append((key, window, list(state.rows[window])))
                    state.is_changed.discard(window)
        return found


def merged_sessions(pieces: list[tuple[Window, list[InputRow], bool]]) -> list[tuple[Window, list[InputRow], bool]]:
    """Pieces that touch become one."""
    found: list[tuple[Window, list[InputRow], bool]] = []
    for window, held, is_changed in sorted(pieces, key=lambda piece: piece[0][0]):
        if found and window[0] <= found[-1][0][1]:
            (start, end), earlier, was_changed = found[-1]
            found[-1] = ((start, max(end, window[1])), earlier + held, was_changed or is_changed)
        else:
            found.append((window, held, is_changed))
    return found


def aggregated(rows: list[InputRow], arrival: dict[int, int]) -> dict[str, Any]:
    """Return the results of a window; ``arrival``: by ``id`` of a row, when it came."""
    numbers = [row.number for row in rows if row.number is not None]
    decimals = [row.decimal for row in rows if row.decimal is not None]
    texts = [row.text for row in rows if row.text is not None]
    in_order = sorted((row for row in rows if row.text is not None), key=lambda row: (row.timestamp, arrival[id(row)]))
    return {
        "total": sum(numbers) if numbers else None,
        "mean": sum(numbers) / len(numbers) if numbers else None,
        "lowest": min(decimals, default=None),
        "highest": max(numbers, default=None),
        "text": max(texts, default=None),
        "first": in_order[0].text if in_order else None,
        "last": in_order[-1].text if in_order else None,
        "n": len(rows),
        "filled": len(decimals),
    }
