"""Fixtures of all rooms."""

import sys
from collections.abc import Iterator

import pytest

from tests.netstack.rigs import all_closed


@pytest.fixture
def tiny_switch_interval() -> Iterator[None]:
    """Let threads change places as often as the interpreter can manage."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.fixture(autouse=True)
def _rigs_end() -> Iterator[None]:
    with all_closed():
        yield
