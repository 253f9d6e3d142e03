"""Tests of ``flowlet.former_names``: every reader of stored state finds a class of ours by its former name."""

import enum
import importlib
from collections.abc import Callable
from operator import attrgetter
from typing import Any

import pytest

from flowlet.common import Instant, Row, Types
from flowlet.common.types import RowKind
from flowlet.former_names import FIRST_NAMES, RENAMED, first_name, first_names, present_name
from flowlet.keys.exact_keys import key_group
from flowlet.serde.deploy_blobs import DeploymentError, load_object
from flowlet.serde.pickles import program_pickle
from flowlet.serde.pickles.former_classes import RunningClasses, loads_former
from flowlet.serde.pickles.program_pickle import dumps
from flowlet.serde.pickles.record_pickle import (
    PickleWithClasses,
    class_of,
    dumps_record,
    dumps_value,
    loads_all,
    loads_record,
    loads_value,
)
from tests.flowlet.former_places import FORMER_PLACE, under_former_names

VALUE = (Instant(1, 2), Row.of_kind(RowKind.DELETE, "a"))
Read = Callable[[bytes], Any]


def with_class_table(data: bytes) -> bytes:
    marked = PickleWithClasses(data)
    marked.table = b""
    return marked


READERS: dict[str, Read] = {
    "a value": loads_value,
    "a record": loads_record,
    "a record with classes": lambda data: loads_record(with_class_table(data)),
    "a column": lambda data: loads_all([memoryview(data)], (), ())[0],
    "a column with classes": lambda data: loads_all([memoryview(data)], (), (0,))[0],
    "the state of another program": lambda data: loads_former(data, RunningClasses(lambda _module, _name: None)),
}


@pytest.mark.parametrize("reader", READERS)
def test_values_that_name_our_classes_by_former_names_are_read(reader: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A former name that is not explained is refused; today's names are still read."""
    with under_former_names(Instant, RowKind) as renamed:
        data = dumps_record(VALUE)
    assert FORMER_PLACE.encode() in data
    with pytest.raises(ImportError):
        READERS[reader](data)

    for former, today in renamed.items():
        monkeypatch.setitem(RENAMED, former, today)

    assert READERS[reader](data) == VALUE
    assert READERS[reader](dumps_record(VALUE)) == VALUE


def test_a_name_that_leads_nowhere_is_the_error_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(RENAMED, "flowlet.other:Name", "flowlet.common.types:Row")
    with under_former_names(Instant):
        data = dumps_value(VALUE)

    with pytest.raises(ImportError, match="former_place"):
        loads_value(data)


def test_a_class_by_value_is_made_of_bases_with_former_names(monkeypatch: pytest.MonkeyPatch) -> None:
    with under_former_names(Instant) as renamed:

        class Derived(Instant):
            pass

        reference = dumps(Derived, 5)
        del Derived
    for former, today in renamed.items():
        monkeypatch.setitem(RENAMED, former, today)

    found = class_of(reference)

    assert found.__name__ == "Derived"
    assert issubclass(found, Instant)


def test_a_job_of_a_job_store_is_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    kind = type(Types.LONG())
    with under_former_names(kind) as renamed:
        blob = program_pickle.dumps(Types.TUPLE([Types.LONG()]))
    with pytest.raises(DeploymentError, match="former_place"):
        load_object(blob, "the type of a gate")

    for former, today in renamed.items():
        monkeypatch.setitem(RENAMED, former, today)

    assert load_object(blob, "the type of a gate") == Types.TUPLE([Types.LONG()])


def test_a_key_of_a_class_that_has_moved_stays_in_its_key_group(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first name counts, however often the class was renamed."""

    def colors() -> Any:
        return enum.Enum("Color", "RED GREEN", module=__name__)

    former = colors()
    former.__qualname__ = "FormerColor"
    monkeypatch.setitem(FIRST_NAMES, f"{__name__}:Color", f"{__name__}:FormerColor")

    groups = [key_group(each, 32_768) for each in former]
    assert [key_group(each, 32_768) for each in colors()] == groups
    monkeypatch.delitem(FIRST_NAMES, f"{__name__}:Color")
    assert [key_group(each, 32_768) for each in colors()] != groups


def test_names_without_a_line_stay() -> None:
    assert present_name("module", "Class.Inner") == ("module", "Class.Inner")
    assert first_name("module", "Class.Inner") == "module.Class.Inner"
    assert first_names({"a:First": "c:Now", "b:Second": "c:Now"}) == {"c:Now": "a:First"}


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("flowlet.datastream.connectors.kafka_source", "KafkaTopicPartition"),
        ("flowlet.datastream.connectors.kafka_sink", "KafkaTopicSelector"),
        ("flowlet.datastream.connectors.file_sink", "BucketAssigner"),
        ("flowlet.datastream.connectors.file_sink", "OutputFileConfig.OutputFileConfigBuilder"),
    ],
)
def test_a_class_that_moved_twice_is_found_by_the_name_between(module: str, name: str) -> None:
    """A class that moved twice keeps its first name for the hashes of keys."""
    place, present = present_name(module, name)

    assert attrgetter(present)(importlib.import_module(place)) is not None
    assert first_name(place, present) != f"{module}.{name}"
