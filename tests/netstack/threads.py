"""Threads of stress tests."""

import threading
from collections.abc import Callable

from tests.waiting import PATIENCE_S


def run_together(*calls: Callable[[], object]) -> None:
    """Make each call on a thread of its own, all at once; every one of them has to end."""
    threads = [threading.Thread(target=call) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
        assert not thread.is_alive(), f"{thread.name} never ended"
