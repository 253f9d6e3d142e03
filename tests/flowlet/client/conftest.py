"""The embedded cluster of a test sets up logging, and hears Ctrl-C, as it does in a user's program."""

import signal
from collections.abc import Iterator

import pytest

from tests.flowlet.client.quiet_logging import unconfigured_logging

__all__ = ["unconfigured_logging"]


@pytest.fixture(autouse=True)
def interruptible() -> Iterator[None]:
    """Shells start background commands with SIGINT ignored, and programs pass that on: then Ctrl-C would be waited for in vain."""
    former = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, former)
