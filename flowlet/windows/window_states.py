"""The states of one key and one window; the contents of a window in them; the context that triggers, assigners,
evictors and window functions get, and the calls of window functions.

``MergingWindowSet``: the windows of one key that may become one, and the window under which each keeps its state.  A
window that grew keeps its state where it was: under its *state window*, one of the windows that it was made of.

Side:       task.
Invariants: a state belongs to the key and window of ``key_context``, also after it was handed out.  Two windows never
            share a state window.  Every method of contents is about the window that was entered in ``WindowStates``.  A
            window without records has no entry in the state.  States that a context gives belong to the current key
            and, but for global ones, to its window.
Source:     Flink ``MergingWindowSet``; ``KeyedStateBackend.getPartitionedState`` with a namespace,
            ``InternalMergingState.mergeNamespaces``; ``WindowOperator.windowState``: a list, reducing or aggregating
            state of the name ``window-contents``; ``WindowOperator.Context``, ``WindowContext``,
            ``PerWindowStateStore``, ``MergingWindowStateStore``.  PyFlink's classes of these names,
            ``InternalIterableWindowFunction``, ``InternalSingleValueProcessWindowFunction`` and their like.
"""

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from flowlet.chain.stream_operator import OperatorContext
from flowlet.datastream.state import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    ReducingStateDescriptor,
    StateDescriptor,
)
from flowlet.datastream.states.runtime_context import KeyedStateStore
from flowlet.datastream.user_functions.process_functions import ProcessAllWindowFunction, ProcessWindowFunction
from flowlet.datastream.window.evictors import Evictor, TimestampedValue
from flowlet.datastream.window.triggers import Trigger
from flowlet.datastream.window.window_assigners import MergingWindowAssigner, WindowAssigner
from flowlet.datastream.window.window_spec import WindowSpec
from flowlet.errors import FlowletError
from flowlet.keys.exact_keys import NamespacedKey
from flowlet.state.state_backends import keyed_kind
from flowlet.timers.keyed_timer_service import KeyContext

__all__ = ["MergeFunction", "MergingWindowSet"]

# Gets the new window, the windows that became it, its state window, and the state windows whose contents must go there.
MergeFunction = Callable[[Any, list[Any], Any, list[Any]], None]


class MergingWindowSet:
    """The windows of the current key.

    Args:
        assigner: merges windows.
        mapping: from each window to its state window.

    ``is_changed``: whether the mapping has changed, so that its owner must write it.
    """

    def __init__(self, assigner: MergingWindowAssigner[Any, Any], mapping: Mapping[Any, Any]) -> None:
        self._assigner = assigner
        self.mapping = dict(mapping)
        self.is_changed = False

    def __repr__(self) -> str:
        return f"<MergingWindowSet of {list(self.mapping)}>"

    def state_window(self, window: Any) -> Any:
        """The window under which a window keeps its state; None: there is no such window."""
        return self.mapping.get(window)

    def retire(self, window: Any) -> None:
        """Forget a window that is over."""
        if self.mapping.pop(window, None) is not None:
            self.is_changed = True

    def add(self, window: Any, merge: MergeFunction) -> Any:
        """Add a window; returns the window that it became a part of, or the window itself.

        ``merge`` is called for windows that became one.

        Raises:
            FlowletError: the assigner merges windows that it was not given.
        """
        merges = MergingWindowAssigner.MergeCallback[Any]()
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


class SeparateWindows:
    """Takes the place of a ``MergingWindowSet`` for windows that stay apart."""

    def state_window(self, window: Any) -> Any:
        """The window itself."""
        return window

    def retire(self, window: Any) -> None:
        """Do nothing: there is no mapping."""

    def add(self, window: Any, merge: MergeFunction) -> Any:
        """The window itself."""
        return window


class WindowStates:
    """Gives the states of the operator's current key and a window; task thread only."""

    def __init__(self, ctx: OperatorContext) -> None:
        self._backend = ctx.keyed_state_backend
        self._keys = ctx.key_context
        self.key_context = KeyContext()

    def __repr__(self) -> str:
        return f"<WindowStates of {self.key_context!r}>"

    def enter(self, window: Any) -> None:
        """Let states belong to this window and to the operator's current key, from now on."""
        key, current = self._keys.current_key, self.key_context.current_key
        if type(current) is not NamespacedKey or current.namespace is not window or current.key is not key:
            self.key_context.current_key = NamespacedKey(key, window)

    def state(self, descriptor: StateDescriptor) -> Any:
        """The state of a descriptor; it always belongs to the window that was entered last.

        Raises:
            FlowletError: the name is taken by another state.
        """
        kind = keyed_kind(descriptor)
        if kind is None:
            raise FlowletError(f"a state needs a descriptor such as ValueStateDescriptor(name), got {descriptor!r}")
        return self._backend.state(descriptor, kind, self.key_context)

    def merge(self, descriptor: StateDescriptor, target: Any, sources: Sequence[Any]) -> None:
        """Merge the values of the windows ``sources`` behind the value of ``target``, which is entered in the end.

        Raises:
            FlowletError: values of this kind of state cannot be merged.
        """
        state = self.state(descriptor)
        is_list = isinstance(descriptor, ListStateDescriptor)
        if not is_list and not isinstance(descriptor, ReducingStateDescriptor | AggregatingStateDescriptor):
            raise FlowletError(
                f"state {descriptor.name!r} cannot be merged: only list, reducing and aggregating states can"
            )
        get = state.get if is_list else state.accumulator
        merge = operator.add if is_list else state.merge
        merged = None
        for source in sources:
            self.enter(source)
            value = get()
            state.clear()
            if value is not None:
                merged = value if merged is None else merge(merged, value)
        self.enter(target)
        if is_list:
            state.add_all(merged or ())
        elif merged is not None:
            before = get()
            state.update_accumulator(merged if before is None else merge(before, merged))


WINDOW_STATE_NAME: Final = "window-contents"


class WindowContents:
    """The records of windows, with their timestamps for an evictor; or the one value that they are combined to.

    Args:
        spec: of the windows.
        states: the states, which know the window that was entered.
    """

    def __init__(self, spec: WindowSpec, states: WindowStates) -> None:
        self.states = states
        self.are_combined = spec.combine is not None and spec.evictor is None
        self._have_timestamps = spec.evictor is not None
        if self.are_combined:
            kind = AggregatingStateDescriptor if spec.aggregates else ReducingStateDescriptor
            self._descriptor: StateDescriptor = kind(WINDOW_STATE_NAME, spec.combine, spec.state_type)
        else:
            self._descriptor = ListStateDescriptor(
                WINDOW_STATE_NAME, None if self._have_timestamps else spec.state_type
            )
        self.state = states.state(self._descriptor)

    def add(self, value: Any, timestamp: int | None) -> None:
        """Add a record."""
        self.state.add((value, timestamp) if self._have_timestamps else value)

    def write(self, kept: Any) -> None:
        """Add the records of a cell; where records are combined, replace the accumulator by the cell's, which includes
        it.
        """
        if self.are_combined:
            self.state.update_accumulator(kept)
        else:
            self.state.add_all(kept)

    def get(self) -> list[Any] | None:
        """The records in the order in which they came (for an evictor each is a ``TimestampedValue``), or the one value
        that they were combined to; None: the window is empty.
        """
        found = self.state.get()
        if self.are_combined:
            return None if found is None else [found]
        return ([TimestampedValue(*each) for each in found] if self._have_timestamps else found) or None

    def clear(self) -> None:
        """Forget the contents."""
        self.state.clear()

    def replace(self, elements: Sequence[TimestampedValue[Any]]) -> None:
        """Keep these records and no others, for an evictor."""
        self.state.update([(each.value, each.timestamp) for each in elements])

    def merge(self, target: Any, sources: Sequence[Any]) -> None:
        """Combine the contents of the windows ``sources`` with those of ``target``, or put their records behind."""
        self.states.merge(self._descriptor, target, sources)


class PerWindowStates(KeyedStateStore):
    """The states of one key and one window; refused if windows merge, since a state would end up in another window."""

    def __init__(self, states: WindowStates, *, merges: bool) -> None:
        self._states = states
        self._merges = merges

    def _state(self, descriptor: StateDescriptor, kind: type[StateDescriptor]) -> Any:
        if self._merges:
            raise FlowletError("windows that merge, such as sessions, have no state per window; use global_state()")
        return self._states.state(descriptor)


class WindowContext(
    WindowAssigner.WindowAssignerContext,
    Evictor.EvictorContext,
    Trigger.OnMergeContext,
    ProcessAllWindowFunction.Context[Any],
):
    """The context that assigners, evictors, triggers and window functions get: one object for all."""


# Gets the key, the window, and the records, or the one value that they were combined to.
WindowCall = Callable[[Any, Any, list[Any]], Iterable[Any] | None]


def has_context(spec: WindowSpec) -> bool:
    """Whether the function is called by ``process``, with a context."""
    return hasattr(spec.function, "process")


def window_call_of(spec: WindowSpec, context: WindowContext) -> WindowCall:
    """The function that calls the window function with the key, the window and its contents.

    ``context``: the caller sets it to the window before each call.
    """
    function = spec.function
    if function is None:
        return lambda _key, _window, elements: elements
    if has_context(spec):
        process = function.process
        if spec.is_keyed:
            return lambda key, _window, elements: process(key, context, elements)
        return lambda _key, _window, elements: process(context, elements)
    apply = function.apply
    return apply if spec.is_keyed else lambda _key, window, elements: apply(window, elements)


def clears(spec: WindowSpec) -> bool:
    """Whether the window function has a ``clear`` of its own, to be called when a window ends."""
    if not has_context(spec):
        return False
    own = getattr(type(spec.function), "clear", None)
    return own not in (None, ProcessWindowFunction.clear, ProcessAllWindowFunction.clear)
