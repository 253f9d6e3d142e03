"""Real processes for the integration tests."""

from pathlib import Path

import pytest

from tests.integration.jobs import cluster_fixture

cluster = cluster_fixture()


@pytest.fixture
def secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a secret file of this test's own, so that no test touches the user's."""
    file = tmp_path / "secret"
    monkeypatch.setenv("FLOWLET_SECRET_FILE", str(file))
    return file
