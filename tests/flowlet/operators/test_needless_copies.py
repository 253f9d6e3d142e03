"""A record of a dataclass with a default is copied though nobody else holds it: the loop's own variable holds its
``__dict__``.
"""

import dataclasses
from typing import Any

import pytest

from tests.flowlet.operators.chains import Emission
from tests.flowlet.operators.harness import RecordingOutput


@dataclasses.dataclass
class WithDefault:
    name: Any
    value: Any = 1


@dataclasses.dataclass
class Without:
    name: Any
    value: Any


class One:
    def __init__(self, value: Any, _: Any) -> None:
        self.value = value


@pytest.mark.parametrize("kind", [Without, WithDefault, One])
def test_a_record_that_nobody_holds_is_not_copied(kind: Any) -> None:
    """Copies would only be slower, not wrong (``record_shape._write_attributes`` binds ``d``, ``owned`` counts the
    references of the dict).
    """
    made: list[int] = []

    def records() -> Any:
        for number in range(40):
            boxed = [kind(f"k{number}", number)]
            made.append(id(boxed[0]))
            yield boxed.pop()

    output = RecordingOutput()
    emission = Emission(output)
    emission.run(records())
    output.elements.clear()
    made.clear()

    emission.run(records())

    assert [id(record) for record in output.values] == made
