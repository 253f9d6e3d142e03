"""Handlers that note what happens to them."""

from netstack.transport.handler import ChannelHandler, ChannelHandlerContext


class Recorder(ChannelHandler):
    """Notes every event and operation as ``name:event`` and passes it on."""

    def __init__(self, name: str, log: list[str]) -> None:
        self.name = name
        self.log = log
        self.ctx: ChannelHandlerContext | None = None

    def note(self, what: str) -> None:
        self.log.append(f"{self.name}:{what}")

    def handler_added(self, ctx: ChannelHandlerContext) -> None:
        self.note("added")
        self.ctx = ctx

    def handler_removed(self, ctx: ChannelHandlerContext) -> None:
        self.note("removed")

    def channel_active(self, ctx: ChannelHandlerContext) -> None:
        self.note("active")
        super().channel_active(ctx)

    def channel_inactive(self, ctx: ChannelHandlerContext) -> None:
        self.note("inactive")
        super().channel_inactive(ctx)

    def channel_read(self, ctx: ChannelHandlerContext, message: object) -> None:
        self.note(f"read {message}")
        super().channel_read(ctx, message)

    def channel_read_complete(self, ctx: ChannelHandlerContext) -> None:
        self.note("read complete")
        super().channel_read_complete(ctx)

    def channel_writability_changed(self, ctx: ChannelHandlerContext) -> None:
        self.note(f"writable {ctx.channel.is_writable}")
        super().channel_writability_changed(ctx)

    def exception_caught(self, ctx: ChannelHandlerContext, error: Exception) -> None:
        self.note(f"error {error}")
        super().exception_caught(ctx, error)

    def write(self, ctx: ChannelHandlerContext, message: object) -> None:
        self.note(f"write {message}")
        super().write(ctx, message)
