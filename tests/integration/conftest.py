"""Real processes for the integration tests."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import forked_processes
from tests.forked_processes import ClusterStarter
from tests.integration.jobs import cluster_fixture
from tests.integration.signals import Signals

cluster = cluster_fixture()


@pytest.fixture(scope="module")
def forked_servers(_cluster_starter: ClusterStarter) -> Iterator[None]:
    """The processes from which a module's clusters fork TaskManagers begin with everything imported."""
    with forked_processes.forked_servers(_cluster_starter.server):
        yield


@pytest.fixture
def secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a secret file of this test's own, so that no test touches the user's."""
    file = tmp_path / "secret"
    monkeypatch.setenv("FLOWLET_SECRET_FILE", str(file))
    return file


@pytest.fixture
def signals(tmp_path: Path) -> Iterator[Signals]:
    with Signals(tmp_path / "signals") as signals:
        yield signals
