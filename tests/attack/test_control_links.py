"""The connections of TaskManagers and clients to the JobManager stand still, lie or break: as in ``test_links``."""

from typing import Final

import pytest

from tests.attack.arena import Arena
from tests.attack.test_links import FAULTS, Fault, break_links

IS_ROUTED: Final = True
_LEFT_OUT: Final = ("0.2 s", "50%", "half")


@pytest.mark.parametrize(
    "fault", [each for each in FAULTS if not any(map(each.name.__contains__, _LEFT_OUT))], ids=lambda fault: fault.name
)
def test_control_link(arena: Arena, fault: Fault) -> None:
    break_links(arena, "control", fault)
