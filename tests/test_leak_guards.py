"""The guards that look for what a test leaves behind."""

import os
import socket
import sys
import threading
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from tests.conftest import describe_fd, leads_to_the_jvm, live_threads, open_fds
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


@pytest.mark.parametrize("is_ours", [False, True], ids=["of the JVM's port", "of another port"])
def test_a_connection_to_the_jvm_is_not_left_behind_by_a_test(
    monkeypatch: pytest.MonkeyPatch, *, is_ours: bool
) -> None:
    """A thread that collects an object of Java's opens one, whenever that is."""
    before = open_fds()
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_connection(listener.getsockname()):
        pyspark: Any = ModuleType("pyspark")
        parameters = SimpleNamespace(port=listener.getsockname()[1] + is_ours)
        pyspark.SparkContext = SimpleNamespace(_gateway=SimpleNamespace(gateway_parameters=parameters))
        monkeypatch.setitem(sys.modules, "pyspark", pyspark)
        found = [each for each in sorted(open_fds() - before) if leads_to_the_jvm(*each)]

        assert [describe_fd(*each).partition(" -> ")[2] for each in found] == (
            [] if is_ours else [f"{listener.getsockname()}"]
        )


def test_a_socket_that_is_left_behind_is_described_by_its_addresses() -> None:
    before = open_fds()
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_connection(listener.getsockname()) as client:
        described = [describe_fd(*each) for each in sorted(open_fds() - before)]

        assert [each.partition(", ")[2] for each in described] == [
            f"AF_INET, {listener.getsockname()} -> 'no peer'",
            f"AF_INET, {client.getsockname()} -> {listener.getsockname()}",
        ]
    assert open_fds() == before, "a description closes what it looks at through"


def test_a_pipe_that_is_left_behind_is_described_by_its_number() -> None:
    read, write = os.pipe()
    try:
        target = os.readlink(f"/proc/self/fd/{read}")

        assert describe_fd(read, target) == f"{read}: {target}"
    finally:
        os.close(read)
        os.close(write)
