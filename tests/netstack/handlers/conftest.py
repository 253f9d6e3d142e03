"""Both ends of a connection, each over an embedded channel."""

import pytest

from tests.netstack.handlers.client_side import Client
from tests.netstack.handlers.server_side import ServerSide


@pytest.fixture
def server() -> ServerSide:
    return ServerSide()


@pytest.fixture
def client() -> Client:
    return Client()
