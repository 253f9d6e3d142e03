from collections.abc import Iterator

import pytest

from tests.flowlet.task.local_network import LocalNetwork
from tests.flowlet.task.local_tasks import Tasks


@pytest.fixture
def network() -> Iterator[LocalNetwork]:
    """Checks at the end that every buffer was given back."""
    with LocalNetwork() as made:
        yield made


@pytest.fixture
def tasks(network: LocalNetwork) -> Tasks:
    return Tasks(network)
