"""``WindowStates``: the states of one key and one window.

Side:       task.
Invariants: a state belongs to the key and window of ``key_context``, also after it was handed out.
Source:     Flink ``KeyedStateBackend.getPartitionedState`` with a namespace, ``InternalMergingState.mergeNamespaces``.
"""

from collections.abc import Sequence
from typing import Any, Final

from flowlet.chain.stream_operator import OperatorContext
from flowlet.datastream.state import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    State,
    StateDescriptor,
    ValueStateDescriptor,
)
from flowlet.errors import FlowletError
from flowlet.keys.namespaced_key import NamespacedKey
from flowlet.timers.time_api import KeyContext

_KINDS: Final = (
    ValueStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    AggregatingStateDescriptor,
)


class WindowStates:
    """Gives the states of the operator's current key and a window; task thread only."""

    def __init__(self, ctx: OperatorContext) -> None:
        self._backend = ctx.keyed_state_backend
        self._keys = ctx.key_context
        self.key_context = KeyContext()

    def __repr__(self) -> str:
        return f"<WindowStates of {self.key_context!r}>"

    def enter(self, window: Any) -> None:
        """From now on states belong to this window, and to what is now the operator's current key."""
        key, current = self._keys.current_key, self.key_context.current_key
        if type(current) is not NamespacedKey or current.namespace is not window or current.key is not key:
            self.key_context.current_key = NamespacedKey(key, window)

    def state(self, descriptor: StateDescriptor) -> Any:
        """The state of a descriptor, for the window that was entered, and for those that will be.

        Raises:
            FlowletError: the name is taken by another state.
        """
        kind = next((each for each in _KINDS if isinstance(descriptor, each)), None)
        if kind is None:
            raise FlowletError(f"a state needs a descriptor such as ValueStateDescriptor(name), got {descriptor!r}")
        return self._backend.state(descriptor, kind, self.key_context)

    def merge(self, descriptor: StateDescriptor, target: Any, sources: Sequence[Any]) -> None:
        """Put what is kept for the windows ``sources`` behind what is kept for ``target``, which is entered in the end.

        Raises:
            FlowletError: it is a state whose values cannot be put together.
        """
        state = self.state(descriptor)
        match descriptor:
            case ListStateDescriptor():
                self._merge_lists(state, target, sources)
            case ReducingStateDescriptor():
                function = descriptor.get_reduce_function()
                self._merge_values(
                    state, target, sources, state.get, state.update, getattr(function, "reduce", function)
                )
            case AggregatingStateDescriptor():
                merge = descriptor.get_agg_function().merge
                self._merge_values(state, target, sources, state.accumulator, state.update_accumulator, merge)
            case _:
                raise FlowletError(
                    f"state {descriptor.name!r} cannot be merged: only list, reducing and aggregating states can"
                )

    def _merge_lists(self, state: Any, target: Any, sources: Sequence[Any]) -> None:
        elements: list[Any] = []
        for source in sources:
            self.enter(source)
            elements += state.get()
            state.clear()
        self.enter(target)
        if elements:
            state.add_all(elements)

    def _merge_values(
        self, state: State, target: Any, sources: Sequence[Any], get: Any, update: Any, merge: Any
    ) -> None:
        merged = None
        for source in sources:
            self.enter(source)
            value = get()
            state.clear()
            if value is not None:
                merged = value if merged is None else merge(merged, value)
        self.enter(target)
        if merged is not None:
            before = get()
            update(merged if before is None else merge(before, merged))
