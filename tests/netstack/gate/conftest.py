"""Fixtures for the tests of gates."""

import pytest

from tests.netstack.gate.remote_gate import RemoteGate, requested_gate


@pytest.fixture
def it() -> RemoteGate:
    """A gate of two remote channels that were requested; many files have a rig of their own."""
    return requested_gate()
