"""Fixtures of all tests that run parts of a task; a folder takes those that it needs into its ``conftest.py``."""

from collections.abc import Iterator

import pytest

from tests.flowlet.task.local_network import LocalNetwork
from tests.flowlet.task.local_tasks import Tasks
from tests.flowlet.task.writer_rig import Make, Rig
from tests.waiting import LONG_S


@pytest.fixture(autouse=True)
def no_time_slice_comes_to_the_rescue(monkeypatch: pytest.MonkeyPatch) -> None:
    """A wake-up that got lost fails the test; one that takes its time on a busy machine is not taken for lost."""
    monkeypatch.setattr("flowlet.mailbox.task_mailbox._PARK_SLICE_S", LONG_S)


@pytest.fixture
def network() -> Iterator[LocalNetwork]:
    """Checks at the end that every buffer was given back."""
    with LocalNetwork() as made:
        yield made


@pytest.fixture
def tasks(network: LocalNetwork) -> Tasks:
    return Tasks(network)


@pytest.fixture
def make() -> Iterator[Make]:
    """Makes a writer from a partitioner, a number of channels and options; at the end every buffer must have been given
    back.
    """
    with LocalNetwork(num_segments=2_200) as network:
        yield lambda partitioner, num_channels=1, **options: Rig(network, partitioner, num_channels, **options)
