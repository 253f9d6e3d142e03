"""What the stress tests of the shared modules need."""

import sys
from collections.abc import Iterator

import pytest


@pytest.fixture
def tiny_switch_interval() -> Iterator[None]:
    """Threads change places as often as the interpreter can manage."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)
