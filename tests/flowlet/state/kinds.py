"""States of every kind, and what a dictionary would hold in their place."""

from collections.abc import Callable
from typing import Any

from flowlet.common import Types
from flowlet.common.typeinfo import TypeInformation
from flowlet.datastream import AggregateFunction
from flowlet.datastream.state import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateDescriptor,
    ValueStateDescriptor,
)
from flowlet.keys.exact_keys import exact_key
from flowlet.state.state_backends import KeyedStateBackend


class Collecting(AggregateFunction):
    """An aggregate whose accumulator is a list that it changes."""

    def create_accumulator(self) -> list[Any]:
        return []

    def add(self, value: Any, accumulator: list[Any]) -> list[Any]:
        accumulator.append(value)
        return accumulator

    def get_result(self, accumulator: list[Any]) -> Any:
        return list(accumulator)

    def merge(self, acc_a: list[Any], acc_b: list[Any]) -> list[Any]:
        return acc_a + acc_b


DESCRIBED: dict[str, Callable[[], StateDescriptor]] = {
    "value": lambda: ValueStateDescriptor("s"),
    "list": lambda: ListStateDescriptor("s"),
    "map": lambda: MapStateDescriptor("s"),
    "reducing": lambda: ReducingStateDescriptor("s", lambda first, second: [first, second]),
    "aggregating": lambda: AggregatingStateDescriptor("s", Collecting()),
}
KINDS = list(DESCRIBED)


def of_type(kind: str, of: TypeInformation) -> StateDescriptor:
    """Describe a state of this kind whose values, elements or values of a map are of a type."""
    descriptors: dict[str, StateDescriptor] = {
        "value": ValueStateDescriptor("s", of),
        "list": ListStateDescriptor("s", of),
        "map": MapStateDescriptor("s", Types.INT(), of),
        "reducing": ReducingStateDescriptor("s", lambda _, new: new, of),
        "aggregating": AggregatingStateDescriptor("s", Collecting(), Types.LIST(of)),
    }
    return descriptors[kind]


NOTHING: dict[str, Any] = {"value": None, "list": [], "map": {}, "reducing": None, "aggregating": None}


def declared(backend: KeyedStateBackend, descriptor: StateDescriptor) -> Any:
    return backend.state(descriptor, type(descriptor))


def content_of(state: Any, kind: str) -> Any:
    match kind:
        case "value":
            return state.value()
        case "map":
            # What tells the types apart, too: True == 1.
            return {exact_key(key): (type(key), value) for key, value in state.items()}
        case _:
            return state.get()


def put(state: Any, kind: str, value: Any, inner: Any = "x") -> None:
    """Update a state, or add to it; in a map the value has the key ``inner``."""
    match kind:
        case "value":
            state.update(value)
        case "map":
            state.put(inner, value)
        case _:
            state.add(value)


def step(state: Any, kind: str, model: Any, value: Any, inner: Any, action: str = "set") -> Any:
    """Do one thing to a state and to its model; the model is what ``content_of`` must give then."""
    if action == "clear":
        state.clear()
        return {"map": {}, "list": []}.get(kind)
    if action == "remove" and kind == "map":
        state.remove(inner)
        return {key: each for key, each in (model or {}).items() if key != exact_key(inner)}
    put(state, kind, value, inner)
    match kind:
        case "value":
            return value
        case "map":
            assert state.get(inner) == value
            assert state.contains(inner)
            return {**(model or {}), exact_key(inner): (type(inner), value)}
        case "reducing":
            return value if model is None else [model, value]
        case _:
            return [*(model or []), value]
