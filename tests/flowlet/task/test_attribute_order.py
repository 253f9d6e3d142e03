"""Records of one class whose attributes are in another order than those of the record for which the loop was made."""

import dataclasses
from typing import Any

from flowlet.chain.chunking_output import KeyExtractor
from flowlet.io.record_writer import beside_keys, sendable
from tests.flowlet.operators.chains import Emission, KeyedRecordingOutput


@dataclasses.dataclass
class Event:
    name: Any
    value: Any


def swapped(number: int) -> Event:
    event = object.__new__(Event)
    event.value, event.name = number, f"k{number}"
    return event


def test_the_key_takes_the_place_of_no_other_attribute() -> None:
    """The writer puts the column of keys of a whole chunk of such records in the place of ``value``."""

    def select(event: Event) -> Any:
        return event.name

    output = KeyedRecordingOutput(KeyExtractor(select, "key_by", 0))
    emission = Emission(output)
    emission.run(Event(f"k{number}", number) for number in range(40))
    output.elements.clear()

    emission.run(swapped(number) for number in range(40))

    (chunk,) = output.chunks
    assert sendable(beside_keys(chunk)).values == [swapped(number) for number in range(40)]
