"""Fixtures for the tests of gates."""

import sys
from collections.abc import Iterator

import pytest

from tests.netstack.gate.remote_gate import RemoteGate


@pytest.fixture
def tiny_switch_interval() -> Iterator[None]:
    """Let threads change places as often as the interpreter can manage."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.fixture
def it() -> Iterator[RemoteGate]:
    """A gate of two remote channels that were requested; many files have a rig of their own."""
    rig = RemoteGate()
    rig.gate.request_partitions()
    yield rig
    rig.end()
