"""A cluster in this process, a file with its secret, and an end for the producers of this process."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from flowlet.ingest.runtime import close_producers
from flowlet.testing.mini_cluster import MiniCluster
from tests.flowlet.client.quiet_logging import unconfigured_logging

__all__ = ["unconfigured_logging"]


class GateCluster(MiniCluster):
    """Knows how producers find it."""

    secret_file: Path

    @property
    def address(self) -> str:
        return f"{self.target.host}:{self.target.port}"


def write_secret(cluster: MiniCluster, folder: Path) -> Path:
    path = folder / "secret"
    path.touch(mode=0o600)
    assert cluster.target.secret is not None
    path.write_text(cluster.target.secret.hex() + "\n")
    return path


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[GateCluster]:
    with GateCluster(num_task_managers=1) as cluster:
        cluster.secret_file = write_secret(cluster, tmp_path)
        yield cluster
        close_producers()
