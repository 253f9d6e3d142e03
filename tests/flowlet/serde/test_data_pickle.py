"""Pickles from those who may send plain values alone."""

import datetime
import decimal
import os
import pickle
import uuid
from collections import OrderedDict
from typing import Any

import cloudpickle
import pytest

from flowlet.common.time import Instant
from flowlet.common.types import Row
from flowlet.errors import SerdeError
from flowlet.records import Chunk
from flowlet.serde.data_pickle import load_values, plain_values_alone
from flowlet.serde.element_deserializer import ElementDeserializer
from flowlet.serde.element_serializer import StreamElementSerializer

PLAIN = [
    None,
    True,
    10**30,
    -0.0,
    "text",
    b"bytes",
    bytearray(b"b"),
    (1, [2], {"three": {4}}),
    frozenset({5}),
    1j,
    OrderedDict(a=1),
    Row(user="a", clicks=None),
    Instant(1, 2),
    datetime.date(2026, 1, 2),
    datetime.time(1, 2, 3, 4),
    datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC),
    datetime.timedelta(1, 2, 3),
    decimal.Decimal("1.50"),
    uuid.UUID(int=7),
]


class Call:
    """Rebuilt by a call."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self._call = (function, arguments)

    def __reduce__(self) -> Any:
        return self._call


def payload_of(values: list[Any]) -> memoryview:
    return memoryview(cloudpickle.dumps(values, protocol=pickle.HIGHEST_PROTOCOL))


@pytest.mark.parametrize("value", PLAIN, ids=repr)
def test_plain_values_come_back_as_they_are(value: object) -> None:
    with plain_values_alone():
        [found] = load_values(payload_of([value]))

    assert (type(found), repr(found)) == (type(value), repr(value))


@pytest.mark.parametrize(
    "value",
    [Call(os._exit, 3), Call(getattr, datetime, "sys"), Call(eval, "1"), Call(__import__, "os"), lambda: 1, type("Own", (), {})()],
    ids=["a call", "a look-up", "eval", "an import", "a function", "an object"],
)
def test_nothing_else_is_built(value: object) -> None:
    with plain_values_alone(), pytest.raises(SerdeError, match="is no plain value, and this sender may send nothing else"):
        load_values(payload_of([value]))


def test_the_restriction_ends_with_its_block() -> None:
    with pytest.raises(SerdeError), plain_values_alone():
        load_values(payload_of([print]))
    assert load_values(payload_of([print])) == [print]


def test_a_channel_of_a_stranger_refuses_and_another_one_takes() -> None:
    """Also where the object is deep inside of records."""
    data = StreamElementSerializer().serialize(Chunk([(1, ("a", [print]))]))
    with pytest.raises(SerdeError, match=r"gate: corrupt stream .*builtins\.print is no plain value"):
        ElementDeserializer("gate", is_sender_trusted=False).feed(memoryview(data))
    [chunk] = ElementDeserializer("channel").feed(memoryview(data))
    assert isinstance(chunk, Chunk)
    assert chunk.values == [(1, ("a", [print]))]
