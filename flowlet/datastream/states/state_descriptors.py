"""State as users name it: the states, their descriptors, and how long an entry of keyed state lives.

Side:   pure.  The runtime makes the states themselves.
Source: PyFlink ``pyflink.datastream.state``; list state of an operator is Flink's ``OperatorStateStore``.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Generic, TypeVar

from flowlet.common.checks import check_kind, check_name
from flowlet.common.typeinfo import ListTypeInfo, MapTypeInfo, TypeInformation
from flowlet.datastream.states.state_ttl_config import StateTtlConfig
from flowlet.datastream.user_functions.argument_checks import checked_object, declared_type
from flowlet.datastream.user_functions.record_functions import AggregateFunction, ReduceFunction
from flowlet.errors import JobGraphError

T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")
IN = TypeVar("IN")
OUT = TypeVar("OUT")


class State(ABC):
    """State of the current key."""

    __slots__ = ()

    @abstractmethod
    def clear(self) -> None:
        """Remove the state of the current key."""


class ValueState(State, Generic[T]):
    """One value per key."""

    __slots__ = ()

    @abstractmethod
    def value(self) -> T:
        """The value of the current key; None if it has none."""

    @abstractmethod
    def update(self, value: T) -> None:
        """Replace the value of the current key; None clears it."""


class AppendingState(State, Generic[IN, OUT]):
    """State to which values are added."""

    __slots__ = ()

    @abstractmethod
    def get(self) -> OUT:
        """The result of the values of the current key."""

    @abstractmethod
    def add(self, value: IN) -> None:
        """Add a value for the current key."""


class MergingState(AppendingState[IN, OUT]):
    """State to which values are added in any grouping."""

    __slots__ = ()


class ReducingState(MergingState[T, T]):
    """The values of each key combined by a ``ReduceFunction``; ``get`` returns None for a key without values."""

    __slots__ = ()


class AggregatingState(MergingState[IN, OUT]):
    """The values of each key combined by an ``AggregateFunction``; ``get`` returns None for a key without values."""

    __slots__ = ()


class ListState(MergingState[T, Iterable[T]]):
    """A list per key; ``get`` returns its elements, none for a key without a list."""

    __slots__ = ()

    @abstractmethod
    def update(self, values: list[T]) -> None:
        """Replace the list of the current key; an empty one clears it."""

    @abstractmethod
    def add_all(self, values: list[T]) -> None:
        """Append values to the list of the current key."""

    def __iter__(self) -> Iterator[T]:
        return iter(self.get())


class _Map(State, Generic[K, V]):
    """A map that can be read; keys of the map differ if their types do, so 1 and True are two keys."""

    __slots__ = ()

    @abstractmethod
    def get(self, key: K) -> V:
        """The value of a key of the map; None if there is none."""

    @abstractmethod
    def contains(self, key: K) -> bool:
        """Whether the map has a key."""

    @abstractmethod
    def items(self) -> Iterable[tuple[K, V]]:
        """Keys and values of the map as it is now."""

    def keys(self) -> Iterable[K]:
        """The keys of the map as it is now."""
        return [key for key, _ in self.items()]

    def values(self) -> Iterable[V]:
        """The values of the map as it is now."""
        return [value for _, value in self.items()]

    @abstractmethod
    def is_empty(self) -> bool:
        """Whether the map has no keys."""

    def __getitem__(self, key: K) -> V:
        return self.get(key)

    def __contains__(self, key: K) -> bool:
        return self.contains(key)

    def __iter__(self) -> Iterator[K]:
        return iter(self.keys())


class _MutableMap(_Map[K, V]):
    """A map that can be changed."""

    __slots__ = ()

    @abstractmethod
    def put(self, key: K, value: V) -> None:
        """Set the value of a key of the map."""

    def put_all(self, dict_value: dict[K, V] | Iterable[tuple[K, V]]) -> None:
        """Set the values of many keys of the map: a dictionary or pairs."""
        for key, value in dict_value.items() if hasattr(dict_value, "items") else dict_value:
            self.put(key, value)

    @abstractmethod
    def remove(self, key: K) -> None:
        """Remove a key of the map, if it is there."""

    def __setitem__(self, key: K, value: V) -> None:
        self.put(key, value)

    def __delitem__(self, key: K) -> None:
        self.remove(key)


class MapState(_MutableMap[K, V]):
    """A map per key of the stream."""

    __slots__ = ()


class ReadOnlyBroadcastState(_Map[K, V]):
    """A map that is equal in every subtask."""

    __slots__ = ()


class BroadcastState(_MutableMap[K, V], ReadOnlyBroadcastState[K, V]):
    """A ``ReadOnlyBroadcastState`` that can be changed: by records of the broadcast stream alone."""

    __slots__ = ()


class StateDescriptor(ABC):  # noqa: B024  # abstract as in PyFlink: only the kinds below are states
    """The name and the declared type of a state.

    Values are kept as they are; the declared type is written into checkpoints, and a restart with another one is
    refused.

    Raises:
        JobGraphError: the name is no text or empty, or the type is no type information.
    """

    def __init__(self, name: str, type_info: TypeInformation) -> None:
        check_name(name, "a state needs a name")
        self.name = name
        self.type_info = declared_type(type_info)
        self._ttl_config: StateTtlConfig | None = None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}, {self.type_info!r})"

    def get_name(self) -> str:
        """The name of the state, unique in its function."""
        return self.name

    def enable_time_to_live(self, ttl_config: StateTtlConfig) -> None:
        """Let entries expire.  Raises JobGraphError: it is no ``StateTtlConfig``."""
        check_kind(ttl_config, StateTtlConfig, f"state {self.name!r}: enable_time_to_live() needs a StateTtlConfig")
        self._ttl_config = ttl_config

    @property
    def ttl_config(self) -> StateTtlConfig | None:
        """How long entries live; None: for ever.  Not in PyFlink."""
        config = self._ttl_config
        return config if config is not None and config.is_enabled() else None


class ValueStateDescriptor(StateDescriptor):
    """Describes a ``ValueState``; without a type, values are any Python objects."""

    def __init__(self, name: str, value_type_info: TypeInformation | None = None) -> None:
        super().__init__(name, declared_type(value_type_info))


class ListStateDescriptor(StateDescriptor):
    """Describes a ``ListState``; without a type, elements are any Python objects."""

    def __init__(self, name: str, elem_type_info: TypeInformation | None = None) -> None:
        super().__init__(name, ListTypeInfo(declared_type(elem_type_info)))


class MapStateDescriptor(StateDescriptor):
    """Describes a ``MapState``; without types, keys and values are any Python objects."""

    def __init__(
        self, name: str, key_type_info: TypeInformation | None = None, value_type_info: TypeInformation | None = None
    ) -> None:
        super().__init__(name, MapTypeInfo(declared_type(key_type_info), declared_type(value_type_info)))


class ReducingStateDescriptor(StateDescriptor):
    """Describes a ``ReducingState``; ``reduce_function``: a ``ReduceFunction``, or a callable of two values."""

    def __init__(
        self,
        name: str,
        reduce_function: ReduceFunction | Callable[[Any, Any], Any],
        type_info: TypeInformation | None = None,
    ) -> None:
        super().__init__(name, declared_type(type_info))
        function: Any = reduce_function
        if isinstance(function, type) or not (isinstance(function, ReduceFunction) or callable(function)):
            raise JobGraphError(f"state {name!r} needs a ReduceFunction or a callable of two values, got {function!r}")
        self._reduce_function = reduce_function

    def get_reduce_function(self) -> Any:
        """The function."""
        return self._reduce_function


class AggregatingStateDescriptor(StateDescriptor):
    """Describes an ``AggregatingState``; the type is that of the accumulator."""

    def __init__(
        self, name: str, agg_function: AggregateFunction, state_type_info: TypeInformation | None = None
    ) -> None:
        super().__init__(name, declared_type(state_type_info))
        self._agg_function = checked_object(
            agg_function, f"the descriptor of state {name!r}: AggregatingStateDescriptor", AggregateFunction
        )

    def get_agg_function(self) -> Any:
        """The function."""
        return self._agg_function


class OperatorStateStore(ABC):
    """Makes states of a subtask, which belong to no key.

    Each method gives one state object for all calls with one name.

    Raises:
        FlowletError: the descriptor is of another kind, has a time to live, or the name is taken by another state.
        StateRestoreError: the checkpoint has a state of this name of another kind or type.
    """

    @abstractmethod
    def get_list_state(self, state_descriptor: ListStateDescriptor) -> ListState[Any]:
        """A list of this subtask; a restart with another parallelism deals the elements of all subtasks out anew.

        Not in PyFlink.
        """

    @abstractmethod
    def get_union_list_state(self, state_descriptor: ListStateDescriptor) -> ListState[Any]:
        """A list of this subtask; after a restart every subtask gets the elements of all, and keeps those it needs.

        Not in PyFlink.
        """

    @abstractmethod
    def get_broadcast_state(self, state_descriptor: MapStateDescriptor) -> BroadcastState[Any, Any]:
        """A map that the function must keep equal in every subtask."""
