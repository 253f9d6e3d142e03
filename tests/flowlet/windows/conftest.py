from collections.abc import Iterator

import pytest

from flowlet.datastream.window.window_spec import WindowSpec
from flowlet.testing import OneInputOperatorHarness
from flowlet.windows.window_operator import WindowOperator
from tests.flowlet.windows.opened_windows import Opened, first


@pytest.fixture
def opened() -> Iterator[Opened]:
    """Opens window operators, with the state of another one if it is given, which ends then; all are closed at last."""
    made: list[OneInputOperatorHarness] = []

    def open_one(spec: WindowSpec, before: OneInputOperatorHarness | None = None) -> OneInputOperatorHarness:
        made.append(OneInputOperatorHarness(WindowOperator(spec, first)))
        if before is not None:
            snapshot = before.snapshot()
            before.close()
            made[-1].initialize_state(snapshot)
        made[-1].open()
        return made[-1]

    yield open_one
    for each in made:
        each.close()
