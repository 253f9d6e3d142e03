"""The error tree of the network stack.

Side:   pure.
Rules:  ``ProtocolError`` is never raised itself, only its two children: *we* broke the rules, or the *peer* did.
        ``ResourceClosedError`` says that our own side closed a thing, ``ResourceBrokenError`` that the world did.
"""


class NetstackError(Exception):
    """Base class of every error that this package raises on purpose."""


class ConfigError(NetstackError):
    """A setting is out of range or contradicts another one; the message names the option and the range."""


class ProtocolError(NetstackError):
    """Base of the two protocol errors; never raised itself."""


class LocalProtocolError(ProtocolError):
    """This side broke the protocol: a bug of ours, stopped before it reached the wire."""


class RemoteProtocolError(ProtocolError):
    """The peer broke the protocol (bad magic, credit below one, wrong sequence number, ...)."""


class TransportError(NetstackError):
    """The connection, not the protocol, failed."""


class ConnectError(TransportError):
    """No connection could be made; the message names the address and the reason."""


class AuthenticationError(ConnectError):
    """The other end did not prove that it may be talked to; nothing but the handshake was exchanged."""


class ConnectionLostError(TransportError):
    """An established connection ended before its channels did; the message names the peer."""


class PartitionNotFoundError(NetstackError):
    """The requested result partition is not (or no longer) registered at its producer."""


class ProducerFailedError(NetstackError):
    """The producer of a partition failed or was cancelled before its end of partition."""


class InsufficientNetworkBuffersError(NetstackError):
    """Fewer network buffers are free than a task needs; the message says how many, and which option to raise."""


class CheckpointSubsumedError(NetstackError):
    """A checkpoint was started on a channel where a later one is under way already."""


class BufferOwnershipError(NetstackError):
    """A buffer was released twice or used after its release: always a bug."""


class ResourceClosedError(NetstackError):
    """The thing was closed by this side."""


class ResourceBrokenError(NetstackError):
    """The thing was broken by the world outside."""


class WouldBlock(NetstackError):  # noqa: N818 - a signal like ``StopIteration``, not a fault
    """A ``*_nowait`` call could not be served at once."""
