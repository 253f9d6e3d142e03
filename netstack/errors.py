"""The error tree of the network stack.

Side:   pure.
Rules:  ``LocalProtocolError``: this side broke the protocol.  ``RemoteProtocolError``: the peer did.
        ``ResourceClosedError``: this side closed the resource.  ``ResourceBrokenError``: something outside this process
        broke it.
"""


class NetstackError(Exception):
    """Base class of every error that this package raises on purpose."""


class ConfigError(NetstackError):
    """A setting is out of range or contradicts another one; the message names the option and the range."""


class ProtocolError(NetstackError):
    """The base of the two protocol errors; never raised itself."""


class LocalProtocolError(ProtocolError):
    """This side broke the protocol or misused this API; nothing wrong was sent."""


class RemoteProtocolError(ProtocolError):
    """The peer broke the protocol (bad magic, credit below one, wrong sequence number, ...)."""


class TransportError(NetstackError):
    """A connection failed."""


class ConnectError(TransportError):
    """No connection could be made; the message names the address and the reason."""


class AuthenticationError(ConnectError):
    """The peer failed the handshake; nothing else was exchanged."""


class ConnectionLostError(TransportError):
    """An established connection ended before its channels did; the message names the peer."""


class PartitionNotFoundError(NetstackError):
    """The requested result partition is not (or no longer) registered at its producer."""


class ProducerFailedError(NetstackError):
    """The producer of a partition failed or was cancelled before its end of partition."""


class InsufficientNetworkBuffersError(NetstackError):
    """Fewer network buffers are free than a task needs; the message says how many, and which option to raise."""


class CheckpointSubsumedError(NetstackError):
    """A later checkpoint has started on the channel already."""


class BufferOwnershipError(NetstackError):
    """A buffer was released twice or used after its release: always a bug."""


class ResourceClosedError(NetstackError):
    """This side closed the resource."""


class ResourceBrokenError(NetstackError):
    """Something outside this process broke the resource: a disk, a kernel limit, a blocked thread."""


class WouldBlock(NetstackError):  # noqa: N818 - a signal like ``StopIteration``, not a fault
    """A ``*_nowait`` call could not be served at once."""
