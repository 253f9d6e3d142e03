"""Errors between a producer and a remote gate.

Side: pure.
"""

from flowlet.errors import FlowletError


class GateError(FlowletError):
    """Base class; every message names the gate and says what to do."""


class GateUnreachableError(GateError):
    """No JobManager answers, or one of the gate's TaskManagers cannot be reached."""

    is_one_line = True


class GateNotFoundError(GateError):
    """No job has a gate of this name, or its tasks do not run yet."""


class GateEndedError(GateError):
    """The gate's job has ended, or the gate accepts no more partitions."""


class GateAccessError(GateError):
    """The secret or the token is wrong."""

    is_one_line = True


class GateTypeError(GateError):
    """The producer's records are not of the gate's type; names the column if there is one."""


class AttemptRefusedError(GateError):
    """The gate does not accept this attempt of this partition; the message says why."""


class GateWriteError(GateError):
    """The gate does not take a write as committed: it was aborted, or has not as many partitions as
    the gate waits for.
    """


class GateLostError(GateError):
    """The connection to the gate was lost, or the gate did not answer in time.

    This attempt is aborted; the producer may start another.
    """
