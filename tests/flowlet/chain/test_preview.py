from typing import Any

import pytest
from hypothesis import given

from flowlet.common.typeinfo import TypeInformation, Types
from flowlet.serde.type_serializer import MAX_PREVIEW_CHARACTERS, ValueMismatchError, last_of, preview
from flowlet.types.declared_records import DeclaredRecords
from tests.flowlet.serde.exact import NESTED


class Hostile:
    def __repr__(self) -> str:
        raise RuntimeError("no")


class Evil(type):
    @property
    def __name__(cls) -> str:  # type: ignore[override]
        raise RuntimeError("no name either")

    def __repr__(cls) -> str:
        raise RuntimeError("nor this")


class Nameless(metaclass=Evil):
    def __repr__(self) -> str:
        raise RuntimeError("no")


class Leaving:
    def __repr__(self) -> str:
        raise SystemExit(3)


class ReprSubclass(str):
    def encode(self, *args: Any, **kwargs: Any) -> bytes:
        raise RuntimeError("no")


class Sly:
    def __repr__(self) -> str:
        return ReprSubclass("sly\r\n\ud83d")


class Multiline:
    """A value that shows itself in lines, as arrays and tables do."""

    def __repr__(self) -> str:
        return "[[1, 0],\r\n [0, 1]]" + "x" * 1_000


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        (("word", 1), "('word', 1)"),
        ("a\nb\ud83d", r"'a\nb\ud83d'"),
        (Hostile(), "<a Hostile whose repr raised RuntimeError>"),
        (Nameless(), "<a Nameless whose repr raised RuntimeError>"),
        (Leaving(), "<a Leaving whose repr raised SystemExit>"),
        (Sly(), r"sly\r\n\ud83d"),
        (10**5000, "<a int whose repr raised ValueError>"),
        (b"ab", "b'ab'"),
        (None, "None"),
    ],
    ids=["tuple", "surrogate", "hostile", "nameless", "leaving", "sly", "huge int", "bytes", "None"],
)
def test_a_preview_never_fails(record: Any, expected: str) -> None:
    assert preview(record) == expected


@pytest.mark.parametrize(
    "record",
    ["x" * 10_000, list(range(10_000)), b"x" * 10_000, Multiline(), dict.fromkeys(range(99), "y" * 99)],
    ids=["str", "list", "bytes", "lines", "dict"],
)
def test_a_preview_is_one_short_line(record: Any) -> None:
    text = preview(record)

    assert 30 < len(text) <= MAX_PREVIEW_CHARACTERS
    assert "..." in text
    assert "\n" not in text


def test_a_record_that_contains_itself_or_is_deep_has_a_preview() -> None:
    loop: list[Any] = []
    loop.append(loop)
    deep: Any = 1
    for _ in range(100_000):
        deep = [deep]

    assert preview(loop)
    assert preview(deep)


@given(NESTED)
def test_a_preview_can_be_sent_as_utf8(record: Any) -> None:
    assert preview(record).encode()


def test_the_last_record_is_the_one_that_the_iterator_gave() -> None:
    """The last record is known at every position, the last one included."""
    values = ["a", "b", "c"]
    position = iter(values)

    found = [last_of(values, position) for _ in position]

    assert found == values


@pytest.mark.parametrize(
    "type_info", [Types.STRING(), Types.LONG(), Types.TUPLE([Types.STRING()]), Types.LIST(Types.LONG())], ids=str
)
def test_a_value_of_the_wrong_type_is_an_error_whatever_its_repr_does(type_info: TypeInformation) -> None:
    """The value may stand inside of a record, too."""
    for value in (Leaving(), (Leaving(),), [Leaving()]):
        with pytest.raises(ValueMismatchError, match=r"Leaving|whose repr raised SystemExit"):
            DeclaredRecords(type_info).chunk_of([value])


@pytest.mark.parametrize(
    "value",
    [Multiline(), (Multiline(),), {"m": Multiline()}, "first\nsecond" + "x" * 1_000],
    ids=["itself", "in a tuple", "in a dict", "text"],
)
def test_a_value_of_the_wrong_type_is_shown_in_one_line(value: object) -> None:
    with pytest.raises(ValueMismatchError) as caught:
        DeclaredRecords(Types.LONG()).chunk_of([value])

    assert not set("\r\n") & set(str(caught.value))
    assert len(str(caught.value)) < 300
