"""Promises of ``Types`` and the type information classes."""

import functools
import pickle
from collections.abc import Callable

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowlet.common import TypeInformation, Types
from flowlet.common.typeinfo import InstantTypeInfo, LocalTimeTypeInfo

PRIMITIVES = [Types.BOOLEAN, Types.BYTE, Types.SHORT, Types.INT, Types.LONG, Types.FLOAT, Types.DOUBLE, Types.CHAR]
BASICS = [*PRIMITIVES, Types.STRING, Types.BIG_INT, Types.BIG_DEC, Types.INSTANT]
LEAVES: list[Callable[[], TypeInformation]] = [
    *BASICS,
    *(functools.partial(LocalTimeTypeInfo, kind) for kind in LocalTimeTypeInfo.TimeType),
    lambda: Types.ARROW(pa.schema([("a", pa.int64())])),
    lambda: Types.ARROW(pa.schema([pa.field("a", pa.int64(), nullable=False)])),
    lambda: Types.ARROW(pa.schema([("a", pa.int64()), ("b", pa.string())])),
    Types.SQL_DATE,
    Types.SQL_TIME,
    Types.SQL_TIMESTAMP,
    Types.PICKLED_BYTE_ARRAY,
]


def nested_types() -> st.SearchStrategy[TypeInformation]:
    leaves = st.sampled_from(LEAVES).map(lambda make: make())
    return st.recursive(
        leaves,
        lambda inner: st.one_of(
            st.lists(inner, max_size=3).map(Types.ROW),
            st.lists(inner, max_size=3).map(Types.TUPLE),
            inner.map(Types.LIST),
            inner.map(Types.OBJECT_ARRAY),
            st.tuples(inner, inner).map(lambda pair: Types.MAP(*pair)),
        ),
        max_leaves=6,
    )


@pytest.mark.parametrize("make", LEAVES)
def test_a_leaf_equals_only_itself(make: Callable[[], TypeInformation]) -> None:
    assert [other for other in LEAVES if other() == make()] == [make]


@given(left=nested_types(), right=nested_types())
def test_types_are_equal_exactly_when_they_print_alike(left: TypeInformation, right: TypeInformation) -> None:
    """Equality, hash and text agree: two types are interchangeable or visibly different."""
    assert (left == right) is (repr(left) == repr(right))
    assert left != right or hash(left) == hash(right)


@given(type_info=nested_types())
def test_types_survive_pickling(type_info: TypeInformation) -> None:
    assert pickle.loads(pickle.dumps(type_info)) == type_info


def test_types_print_as_in_flink() -> None:
    row = Types.ROW_NAMED(["name", "age"], [Types.STRING(), Types.INT()])

    assert repr(row) == "RowTypeInfo(name: String, age: Integer)"
    assert (
        repr(Types.TUPLE([Types.LONG(), Types.LIST(Types.BOOLEAN())])) == "TupleTypeInfo(Long, ListTypeInfo<Boolean>)"
    )
    assert repr(Types.MAP(Types.STRING(), Types.DOUBLE())) == "MapTypeInfo<String, Double>"
    assert repr(Types.PICKLED_BYTE_ARRAY()) == "PickledByteArrayTypeInfo"
    assert repr(Types.SQL_DATE()) == "DateTypeInfo"


def test_fields_of_a_row_are_named_by_position_unless_told_otherwise() -> None:
    row = Types.ROW([Types.STRING(), Types.INT()])

    assert row.get_field_names() == ["f0", "f1"]
    assert row.get_field_types() == [Types.STRING(), Types.INT()]
    assert [row.get_field_index(name) for name in ("f0", "f1", "f2")] == [0, 1, -1]
    assert repr(row) == "RowTypeInfo(String, Integer)"
    assert row == Types.ROW_NAMED(["f0", "f1"], [Types.STRING(), Types.INT()])
    with pytest.raises(ValueError, match="not in"):
        Types.ROW_NAMED(["a"], [Types.INT()]).get_field_index("b")
    assert row != Types.ROW_NAMED(["f0", "x"], [Types.STRING(), Types.INT()])
    assert row != Types.TUPLE([Types.STRING(), Types.INT()])
    assert Types.TUPLE([Types.STRING()]).get_field_types() == [Types.STRING()]


def test_a_row_type_needs_one_name_of_its_own_for_each_field() -> None:
    with pytest.raises(ValueError, match="1 types, 2 names"):
        Types.ROW_NAMED(["a", "b"], [Types.INT()])
    with pytest.raises(ValueError, match="differ"):
        Types.ROW_NAMED(["a", "a"], [Types.INT(), Types.INT()])


@pytest.mark.parametrize("make", PRIMITIVES)
def test_arrays_of_primitives_hold_primitives(make: Callable[[], TypeInformation]) -> None:
    assert repr(Types.PRIMITIVE_ARRAY(make())) == f"PrimitiveArrayTypeInfo<{make()!r}>"


def test_arrays_refuse_what_they_cannot_hold() -> None:
    with pytest.raises(TypeError, match=r"cannot hold String: use Types\.BASIC_ARRAY"):
        Types.PRIMITIVE_ARRAY(Types.STRING())
    with pytest.raises(TypeError, match=r"cannot hold DateTypeInfo: use Types\.OBJECT_ARRAY"):
        Types.BASIC_ARRAY(Types.SQL_DATE())
    with pytest.raises(TypeError, match=r"cannot hold DateTypeInfo"):
        Types.PRIMITIVE_ARRAY(Types.SQL_DATE())
    assert Types.BASIC_ARRAY(Types.STRING()) != Types.OBJECT_ARRAY(Types.STRING())


@pytest.mark.parametrize(
    "make", [Types.LIST, Types.OBJECT_ARRAY, lambda part: Types.ROW([part]), lambda part: Types.TUPLE([part])]
)
def test_types_are_made_of_types(make: Callable[[object], TypeInformation]) -> None:
    with pytest.raises(TypeError, match="made of type information"):
        make(Types.STRING)


def test_arrow_types_are_made_of_schemas_and_compared_by_them() -> None:
    schema = pa.schema([("a", pa.int64()), pa.field("b", pa.list_(pa.string()), nullable=False)])

    assert repr(Types.ARROW(schema)) == "ArrowTypeInfo(a: int64, b: list<item: string> not null)"
    assert Types.ARROW(schema) == Types.ARROW(schema.with_metadata({"made": "elsewhere"}))
    with pytest.raises(TypeError, match=r"made of a pyarrow\.Schema, got \[1\]"):
        Types.ARROW([1])


def test_an_instant_type_is_pyflinks_class() -> None:
    assert isinstance(Types.INSTANT(), InstantTypeInfo)
    assert repr(Types.INSTANT()) == "Instant"


def test_a_type_of_a_users_own_may_have_slots_of_any_form() -> None:
    """A class with slots in a list is accepted; it defines itself how its instances are compared."""

    class Mine(TypeInformation):
        __slots__ = ["name"]

    assert Mine() == Mine()
    assert hash(Mine()) == hash(Mine())
