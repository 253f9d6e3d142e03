"""The guards that look for what a test leaves behind.

Side: any.
"""

import threading

import pytest

from tests.conftest import live_threads
from tests.waiting import PATIENCE_S


class Connection:
    """Runs a thread of its own until it is let go."""

    def __init__(self) -> None:
        self.may_end = threading.Event()

    def run(self) -> None:
        self.may_end.wait(PATIENCE_S)


@pytest.mark.parametrize(("module", "is_ours"), [("py4j.clientserver", False), ("py4just", True), (__name__, True)])
def test_connections_of_the_jvm_are_no_threads_of_a_test(
    monkeypatch: pytest.MonkeyPatch, module: str, *, is_ours: bool
) -> None:
    """The JVM of Spark opens one whenever it has collected an object of Python's."""
    monkeypatch.setattr(Connection, "__module__", module)
    connection = Connection()
    thread = threading.Thread(target=connection.run)
    thread.start()
    try:
        assert (thread in live_threads()) == is_ours
    finally:
        connection.may_end.set()
        thread.join()
