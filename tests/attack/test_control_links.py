"""The connections of TaskManagers and clients to the JobManager stand still, lie or break: as in ``test_links``."""

from collections.abc import Iterator
from typing import Final

import pytest

from tests.attack.arena import Arena
from tests.attack.routed import ROUTES, routed_loops
from tests.attack.test_links import FAULTS, Fault, break_links, links_arena

_LEFT_OUT: Final = ("0.2 s", "50%", "half")


@pytest.fixture(scope="module")
def arena(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Arena]:
    folder = tmp_path_factory.mktemp("control links")
    with links_arena(folder) as running, pytest.MonkeyPatch.context() as patch, routed_loops():
        patch.setenv("FLOWLET_SECRET_FILE", str(running.secret_file))
        patch.setenv(ROUTES, str(folder / "routes"))
        yield running


@pytest.mark.parametrize(
    "fault", [each for each in FAULTS if not any(map(each.name.__contains__, _LEFT_OUT))], ids=lambda fault: fault.name
)
def test_control_link(arena: Arena, fault: Fault) -> None:
    break_links(arena, "control", fault)
