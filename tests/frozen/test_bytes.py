"""The bytes that Flink's processes and stored files have: messages, events, stream elements, windows.

``make flink-wire`` compares with Flink itself, and the tests beside the code have a golden value each.  This list has
what they encode as plain text, apart from all code: a value whose golden bytes were changed together with the code is
seen here.

Items:  ``WHAT CLASS NUMBER`` and the bytes in hexadecimal digits, long ones as their size and SHA-256.
"""

import hashlib
from collections import Counter
from collections.abc import Iterator
from io import BytesIO
from typing import Any, Final, cast, get_args

from flowlet.datastream import CountWindow, GlobalWindow, TimeWindow
from flowlet.datastream.window import CountWindowSerializer, GlobalWindowSerializer, TimeWindowSerializer
from flowlet.records import StreamElement
from flowlet.serde.element_serializer import StreamElementSerializer
from netstack.wire.events import serialize_event
from netstack.wire.messages import Message
from tests.flowlet.serde import test_element_serializer as elements
from tests.frozen.frozen_list import FrozenList
from tests.netstack.wire import samples, test_events, test_message_bytes

_MAX_SHOWN_BYTES: Final = 300
WINDOWS: Final[list[tuple[Any, Any]]] = [
    (TimeWindowSerializer(), TimeWindow(-(2**63), 2**63 - 1)),
    (TimeWindowSerializer(), TimeWindow(1000, 2000)),
    (CountWindowSerializer(), CountWindow(7)),
    (CountWindowSerializer(), CountWindow(-1)),
    (GlobalWindowSerializer(), GlobalWindow()),
]


def encodings() -> Iterator[tuple[str, bytes]]:
    """Yield the name of each encoded object, and its bytes."""
    for message in [*samples.ALL_MESSAGES, *(message for message, _ in test_message_bytes.GOLDEN)]:
        yield f"message {type(message).__name__}", samples.frame_of(message)
    for event, _, data_type in test_events.GOLDEN:
        yield f"event {type(event).__name__} {data_type.name}", serialize_event(event)
    for element, _ in cast("list[tuple[StreamElement, str]]", elements.GOLDEN):
        yield f"element {type(element).__name__}", StreamElementSerializer().serialize(element)
    for serializer, window in WINDOWS:
        stream = BytesIO()
        serializer.serialize(window, stream)
        yield f"window {type(window).__name__}", stream.getvalue()


def frozen_bytes() -> Iterator[str]:
    seen: Counter[str] = Counter()
    for name, data in encodings():
        key = " ".join(name.split())
        seen[key] += 1
        told = (
            data.hex(" ", -4)
            if len(data) <= _MAX_SHOWN_BYTES
            else f"{len(data)} bytes, {hashlib.sha256(data).hexdigest()}"
        )
        yield f"{key} {seen[key]:02}  {told or '(none)'}"


BYTES: Final = FrozenList(
    "bytes", "Bytes of messages, events, elements and windows", frozen_bytes, "Flink's processes read and write them."
)


def test_bytes_stay_as_flink_has_them() -> None:
    BYTES.check()


def test_each_kind_of_message_is_in_the_list() -> None:
    assert {each.__name__ for each in get_args(Message)} - {
        key.split(" ")[1] for key in BYTES.read() if key.startswith("message ")
    } == set()
