"""Real processes for the integration tests."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.cluster import Cluster


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """Yield one JobManager and two TaskManagers with one slot each, started by hand; end them after the test."""
    folder = tmp_path / "cluster"
    folder.mkdir()
    with Cluster(folder) as running:
        yield running


@pytest.fixture
def secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a secret file of this test's own, so that no test touches the user's."""
    file = tmp_path / "secret"
    monkeypatch.setenv("FLOWLET_SECRET_FILE", str(file))
    return file
