"""The layer below the signatures of a WebSocket, for tests that send what no peer may."""

import aiohttp
from aiohttp import web

from flowlet.rpc.signed_websocket import SignedWebSocket


def frames_of(websocket: SignedWebSocket) -> web.WebSocketResponse | aiohttp.ClientWebSocketResponse:
    """Return the WebSocket that carries the signed messages."""
    return websocket.websocket
