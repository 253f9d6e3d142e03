"""Leaves only the handlers of the peer's role in the pipeline of an accepted connection.

Side:       loop.
Invariants: a peer with a gate's token reaches no handler that serves partitions; a peer with the secret reaches none
            that takes offers.  This handler, too, leaves the pipeline when the connection is active.
"""

from collections.abc import Sequence

from netstack.handlers.offered_partitions_handler import OfferedPartitionsHandler
from netstack.transport.authentication_handler import PeerAuthenticated
from netstack.transport.handler import ChannelHandler, ChannelHandlerContext


class ConnectionRoles(ChannelHandler):
    """The handler right behind the authentication.

    Args:
        of_consumers: the handlers that serve partitions.
        of_gates: the handler that takes offers.
    """

    def __init__(self, of_consumers: Sequence[ChannelHandler], of_gates: OfferedPartitionsHandler) -> None:
        self._of_consumers = of_consumers
        self._of_gates = of_gates
        self._is_of_gate = False

    def __repr__(self) -> str:
        return "<ConnectionRoles>"

    def user_event_triggered(self, ctx: ChannelHandlerContext, event: object) -> None:
        """Remember the gate of the peer's token, if it has one."""
        if isinstance(event, PeerAuthenticated) and event.gate is not None:
            self._is_of_gate = True
            self._of_gates.identity = event.gate
        ctx.fire_user_event_triggered(event)

    def channel_active(self, ctx: ChannelHandlerContext) -> None:
        """Remove the handlers of the other role, then pass the event on."""
        for handler in self._of_consumers if self._is_of_gate else (self._of_gates,):
            ctx.pipeline.remove_handler(handler)
        ctx.pipeline.remove(ctx)
        ctx.fire_channel_active()
