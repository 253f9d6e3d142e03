"""Fixtures of the JobManager's tests, by the names that the tests of savepoints have for them."""

import pytest

from flowlet.rpc.http import RpcClient
from tests.flowlet.jm.conftest import Cluster, Connect, cluster, unstarted

__all__ = ["cluster", "unstarted"]


@pytest.fixture
def address(cluster: Cluster) -> tuple[str, int]:
    return cluster.address


@pytest.fixture
def client(cluster: Cluster) -> RpcClient:
    return cluster.client


@pytest.fixture
def connect(cluster: Cluster) -> Connect:
    return lambda _address, *arguments: cluster.connect(*arguments)
