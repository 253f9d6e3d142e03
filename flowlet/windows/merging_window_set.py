"""``MergingWindowSet``: the windows of one key that may become one, and under which window each keeps its state.

A window that grew keeps its state where it was: under the *state window*, one of the windows that it was made of.

Side:       pure.
Invariants: two windows never have the same state window.
Source:     Flink ``MergingWindowSet``.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from flowlet.datastream.window.window_assigners import MergingWindowAssigner
from flowlet.errors import FlowletError

__all__ = ["MergeFunction", "MergingWindowSet"]

# Gets the new window, the windows that became it, its state window, and the state windows whose contents must go there.
MergeFunction = Callable[[Any, list[Any], Any, list[Any]], None]


class _Merges(MergingWindowAssigner.MergeCallback[Any]):
    def __init__(self) -> None:
        self.found: list[tuple[Any, list[Any]]] = []

    def merge(self, to_be_merged: Iterable[Any], merge_result: Any) -> None:
        self.found.append((merge_result, list(to_be_merged)))


class MergingWindowSet:
    """The windows of the current key.

    Args:
        assigner: says which windows become one.
        mapping: from each window to its state window.

    ``is_changed``: whether it is another mapping now, which its owner must write.
    """

    def __init__(self, assigner: MergingWindowAssigner[Any, Any], mapping: Mapping[Any, Any]) -> None:
        self._assigner = assigner
        self.mapping = dict(mapping)
        self.is_changed = False

    def __repr__(self) -> str:
        return f"<MergingWindowSet of {list(self.mapping)}>"

    def state_window(self, window: Any) -> Any:
        """Where a window keeps its state; None: there is no such window."""
        return self.mapping.get(window)

    def retire(self, window: Any) -> None:
        """The window is over."""
        if self.mapping.pop(window, None) is not None:
            self.is_changed = True

    def add(self, window: Any, merge: MergeFunction) -> Any:
        """Add a window; returns the window that it became a part of, or itself.

        ``merge`` is told which windows became one.

        Raises:
            FlowletError: the assigner merges windows that it was not given.
        """
        merges = _Merges()
        self._assigner.merge_windows([*self.mapping, window], merges)
        result, is_merged = window, False
        for merged_window, parts in merges.found:
            if window in parts:
                is_merged, result = True, merged_window
                parts = [each for each in parts if each != window or each in self.mapping]
            self._merge(merged_window, parts, merge)
        if not is_merged and window not in self.mapping:
            self._set(window, window)
        return result

    def _merge(self, result: Any, parts: list[Any], merge: MergeFunction) -> None:
        unknown = [each for each in parts if each not in self.mapping]
        if unknown:
            raise FlowletError(f"merge_windows() of {self._assigner!r} merges {unknown}, which it was not given")
        if not parts:  # only the new window, which became another one
            self._set(result, result)
            return
        if parts == [result]:  # the new window lies in it
            return
        state_windows = [self.mapping.pop(each) for each in parts]
        self._set(result, state_windows[0])
        merge(result, parts, state_windows[0], state_windows[1:])

    def _set(self, window: Any, state_window: Any) -> None:
        self.mapping[window] = state_window
        self.is_changed = True

    def check_invariants(self) -> None:
        """Assert the invariants of the module header."""
        assert len(set(self.mapping.values())) == len(self.mapping), "two windows share a state window"
