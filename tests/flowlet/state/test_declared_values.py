"""A state takes only values of its declared type, in both back ends; a value that can be converted is converted where
it enters.
"""

import decimal
from collections.abc import Callable, Iterator
from enum import IntEnum, StrEnum
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flowlet.common import Time, Types
from flowlet.common.typeinfo import TypeInformation
from flowlet.common.types import Row
from flowlet.datastream import AggregateFunction
from flowlet.datastream.state import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateDescriptor,
    StateTtlConfig,
    ValueStateDescriptor,
)
from flowlet.errors import FlowletError
from flowlet.state import declared_values
from flowlet.state.heap_keyed_state_backend import HeapKeyedStateBackend
from flowlet.state.state_backends import KeyedStateBackend, OperatorStateBackend
from flowlet.state.state_snapshots import StateKind
from flowlet.timers.keyed_timer_service import KeyContext
from flowlet.typed.value_conversion import value_converter

GROUPS = range(8)
LONG = Types.LONG()
PAIR = Types.TUPLE([Types.STRING(), Types.LONG()])


class Size(IntEnum):
    BIG = 7


class Word(StrEnum):
    A = "a"


class Sum(AggregateFunction):
    def create_accumulator(self) -> Any:
        return 0

    def add(self, value: Any, accumulator: Any) -> Any:
        return accumulator + value if not isinstance(value, str) else value

    def get_result(self, accumulator: Any) -> Any:
        return accumulator

    def merge(self, acc_a: Any, acc_b: Any) -> Any:
        return acc_a + acc_b


@pytest.fixture(params=["hashmap", "rocksdb"])
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[KeyedStateBackend]:
    context = KeyContext()
    context.current_key = "k"
    made: KeyedStateBackend
    if request.param == "hashmap":
        made = HeapKeyedStateBackend(context, lambda: 5, GROUPS, len(GROUPS))
    else:
        pytest.importorskip("rocksdict")
        from flowlet.state.rocksdb.rocksdb_keyed_state_backend import RocksDBKeyedStateBackend, RocksDBPlace

        made = RocksDBKeyedStateBackend(context, lambda: 5, GROUPS, len(GROUPS), RocksDBPlace(str(tmp_path)))
    yield made
    made.check_invariants()
    made.close()


def declared(backend: KeyedStateBackend, descriptor: StateDescriptor, *, has_ttl: bool = False) -> Any:
    if has_ttl:
        descriptor.enable_time_to_live(StateTtlConfig.new_builder(Time.seconds(100)).build())
    return backend.state(descriptor, type(descriptor))


def serialized(backend: KeyedStateBackend) -> None:
    finish = backend.snapshot(1)
    assert finish is not None
    finish()


def long_map(name: str, of: TypeInformation) -> MapStateDescriptor:
    return MapStateDescriptor(name, LONG, of)


def last(name: str, of: TypeInformation) -> ReducingStateDescriptor:
    return ReducingStateDescriptor(name, lambda _, value: value, of)


Way = tuple[Callable[[str, TypeInformation], StateDescriptor], Callable[[Any, Any], Any], Callable[[Any], Any]]
WAYS: dict[str, Way] = {  # how a state is described, how a value enters, and how it is read
    "ValueState": (ValueStateDescriptor, lambda s, v: s.update(v), lambda s: s.value()),
    "ListState.add": (ListStateDescriptor, lambda s, v: s.add(v), lambda s: list(s)[-1]),
    "ListState.add_all": (ListStateDescriptor, lambda s, v: s.add_all([v]), lambda s: list(s)[-1]),
    "ListState.update": (ListStateDescriptor, lambda s, v: s.update([v]), lambda s: list(s)[-1]),
    "MapState.put": (long_map, lambda s, v: s.put(1, v), lambda s: s.get(1)),
    "MapState.put_all": (long_map, lambda s, v: s.put_all({1: v}), lambda s: s.get(1)),
    "ReducingState": (last, lambda s, v: s.add(v), lambda s: s.get()),
}
WRONG = [
    (LONG, "text"),
    (Types.INT(), None.__class__),
    (Types.SHORT(), [1]),
    (Types.FLOAT(), "1.5"),
    (Types.DOUBLE(), (1.0,)),
    (Types.STRING(), 5),
    (Types.BOOLEAN(), "True"),
    (Types.BIG_INT(), "7"),
    (Types.BIG_DEC(), "no number"),
]


@pytest.mark.parametrize("has_ttl", [False, True])
@pytest.mark.parametrize("way", WAYS)
def test_a_plain_value_of_another_type_is_refused_where_it_enters(
    way: str, has_ttl: bool, backend: KeyedStateBackend
) -> None:
    """The error names state, declared type and value; the former value stays."""
    for number, (of, value) in enumerate(WRONG):
        describe, put, _ = WAYS[way]
        state = declared(backend, describe(f"s{number}", of), has_ttl=has_ttl)

        with pytest.raises(
            FlowletError,
            match=rf"state 's{number}' is declared as .* and cannot hold a value .* of type \w+: .*; store a",
        ):
            put(state, value)

    serialized(backend)


def test_an_accumulator_of_another_type_is_refused(backend: KeyedStateBackend) -> None:
    state = declared(backend, AggregatingStateDescriptor("s", Sum(), LONG))
    state.add(1)

    with pytest.raises(FlowletError, match="state 's' is declared as Long and cannot hold a value 'text' of type str"):
        state.add("text")

    assert state.get() == 1


CONVERTED: list[tuple[TypeInformation, Any, Any]] = [
    (LONG, np.int64(5), 5),
    (LONG, True, 1),
    (LONG, Size.BIG, 7),
    (Types.INT(), 1.5, 1),
    (Types.FLOAT(), 1, 1.0),
    (Types.FLOAT(), 1.1, 1.1),
    (Types.DOUBLE(), np.float32(0.5), 0.5),
    (Types.BOOLEAN(), np.bool_(True), True),
    (Types.STRING(), Word.A, "a"),
    (Types.STRING(), np.str_("a"), "a"),
    (Types.BIG_DEC(), 1.5, decimal.Decimal("1.5")),
    (Types.PICKLED_BYTE_ARRAY(), Size.BIG, Size.BIG),
]


@pytest.mark.parametrize("way", WAYS)
def test_a_value_that_can_become_one_of_the_type_is_converted(way: str, backend: KeyedStateBackend) -> None:
    """Values are converted where they enter, as records are (docs/types.md); a FLOAT is not rounded."""
    for number, (of, value, expected) in enumerate(CONVERTED):
        describe, put, get = WAYS[way]
        state = declared(backend, describe(f"s{number}", of))

        put(state, value)

        assert (type(get(state)), get(state)) == (type(expected), expected)
    serialized(backend)


def test_keys_of_a_map_are_checked_and_stay_what_they_are(backend: KeyedStateBackend) -> None:
    """Another key would be another entry."""
    state = declared(backend, MapStateDescriptor("s", LONG, LONG))

    state.put(True, 1)
    state.put(1, 2)
    with pytest.raises(
        FlowletError, match=r"state 's' is declared as MapTypeInfo<Long, Long> and cannot hold a key 'a' of type str"
    ):
        state.put("a", 3)

    assert sorted(state.items(), key=str) == [(1, 2), (True, 1)]
    assert state.get(True) == 1


def test_none_clears_a_value_and_may_be_a_value_of_a_map(backend: KeyedStateBackend) -> None:
    value, entries = (
        declared(backend, ValueStateDescriptor("v", LONG)),
        declared(backend, MapStateDescriptor("m", LONG, LONG)),
    )

    value.update(1)
    value.update(None)
    entries.put(1, None)

    assert (value.value(), entries.items()) == (None, [(1, None)])
    serialized(backend)


COMPOSITES = [
    (PAIR, ("a", 1), ("a", "b"), r"field 1 \(Long\): expected an int, got 'b'"),
    (PAIR, ["a", None], ["a"], "1 fields|expected a tuple"),
    (Types.LIST(LONG), [1, 2], [1, "b"], "element 1: expected an int, got 'b'"),
    (Types.LIST(PAIR), [["a", 1]], [("a", [])], "element 0"),
    (Types.MAP(Types.STRING(), LONG), {"a": 1}, {"a": "b"}, "the value of 'a'"),
    (Types.ROW_NAMED(["a"], [LONG]), Row(a=1), Row(a="b"), r"field 'a' \(Long\)"),
    (Types.ROW([LONG]), Row(None), ("a",), "expected a Row"),
    (Types.SQL_DATE(), None, "2020-01-01", "expected a datetime.date"),
    (Types.PRIMITIVE_ARRAY(Types.BYTE()), b"a", "a", "expected bytes"),
    (LONG, 2**63 - 1, 2**63, "does not fit into 64 bits"),
    (Types.INT(), -(2**31), 2**31, "does not fit into 32 bits"),
]


@pytest.mark.parametrize("has_ttl", [False, True])
@pytest.mark.parametrize("way", ["ValueState", "ListState.add", "MapState.put", "ReducingState"])
def test_a_composite_of_another_type_is_refused_where_it_is_serialized(
    way: str, has_ttl: bool, backend: KeyedStateBackend
) -> None:
    """A checkpoint fails with state, type, value and place within; parts may be None, a list may be a tuple."""
    for number, (of, right, wrong, said) in enumerate(COMPOSITES):
        describe, put, get = WAYS[way]
        state = declared(backend, describe(f"s{number}", of), has_ttl=has_ttl)
        if right is not None:
            put(state, right)
            assert get(state) == right
        put(state, wrong)

        with pytest.raises(
            FlowletError, match=rf"state 's{number}' is declared as .* and cannot hold a value .*({said})"
        ):
            serialized(backend)

        state.clear()
    serialized(backend)


@pytest.mark.parametrize("form", ["list", "union", "broadcast"])
def test_operator_state_takes_only_its_declared_type(form: str) -> None:
    """Plain values where they enter, others where they are serialized."""

    def state_of(of: TypeInformation) -> tuple[OperatorStateBackend, Callable[[Any], None]]:
        backend = OperatorStateBackend()
        if form == "broadcast":
            broadcast = backend.get_broadcast_state(MapStateDescriptor("s", Types.STRING(), of))
            return backend, lambda value: broadcast.put("k", value)
        get = backend.get_list_state if form == "list" else backend.get_union_list_state
        return backend, get(ListStateDescriptor("s", of)).add

    _, put = state_of(LONG)
    with pytest.raises(
        FlowletError, match=r"state 's' is declared as .*Long.* and cannot hold a value 'text' of type str"
    ):
        put("text")
    backend, put = state_of(PAIR)
    put(("a", "b"))
    with pytest.raises(FlowletError, match=r"state 's' .* cannot hold a value .*field 1 \(Long\): expected an int"):
        backend.snapshot()


def test_the_error_names_the_operator() -> None:
    """A function of the job puts a text into a LONG state."""
    from flowlet.datastream import KeyedProcessFunction, RuntimeContext, StreamExecutionEnvironment
    from flowlet.errors import JobExecutionError

    class Texts(KeyedProcessFunction):
        def open(self, runtime_context: RuntimeContext) -> None:
            self.count = runtime_context.get_state(ValueStateDescriptor("count", LONG))

        def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> None:
            self.count.update("text")

    env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(1)
    env.from_collection([1]).key_by(lambda value: value).process(Texts()).name("count words").print()

    with pytest.raises(
        JobExecutionError, match=r"(?s)count words.*state 'count' is declared as Long and cannot hold a value 'text'"
    ):
        env.execute()


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[TypeInformation]:
    """The types for which conversions are made."""
    types: list[TypeInformation] = []

    def counted(type_info: TypeInformation, **options: Any) -> Any:
        types.append(type_info)
        return value_converter(type_info, **options)

    monkeypatch.setattr(declared_values, "value_converter", counted)
    return types


def test_the_conversion_of_keys_is_made_once(made: list[TypeInformation]) -> None:
    """A conversion for each key of a snapshot took 0.2 ms."""
    values = declared_values.DeclaredValues("s", Types.MAP(PAIR, Types.STRING()), StateKind.MAP)
    values.check_rows(StateKind.MAP, [{("a", 1): "x", ("b", 2): "y"}.items()], has_ttl=False)

    assert made == [Types.STRING(), PAIR]
    with pytest.raises(FlowletError, match="cannot hold a key"):
        values.check_rows(StateKind.MAP, [{("a", "b"): "x"}.items()], has_ttl=False)


def test_the_conversion_of_a_value_is_made_once(made: list[TypeInformation]) -> None:
    """A value with None among its parts makes no conversion of its own."""
    values = declared_values.DeclaredValues("s", PAIR, StateKind.VALUE)
    values.check_rows(StateKind.VALUE, [("a", None), ("b", None), (None, 3)], has_ttl=False)

    assert made == [PAIR]
    with pytest.raises(FlowletError, match="cannot hold a value"):
        values.check_rows(StateKind.VALUE, [(1, None)], has_ttl=False)


@pytest.mark.parametrize("key", [Types.LIST(Types.INT()), Types.PRIMITIVE_ARRAY(Types.BYTE())])
def test_a_tuple_is_a_key_where_a_list_is_declared(key: TypeInformation) -> None:
    """Lists themselves can be no keys."""
    values = declared_values.DeclaredValues("s", Types.MAP(key, Types.INT()), StateKind.VALUE)

    values.check_rows(StateKind.VALUE, [{(1, 2): 3, None: 4}], has_ttl=False)

    with pytest.raises(FlowletError, match="cannot hold a value"):
        values.check_rows(StateKind.VALUE, [{("a",): 3}], has_ttl=False)
