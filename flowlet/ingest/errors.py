"""What can go wrong between a producer and a remote gate.

Side: pure.
"""

from flowlet.errors import FlowletError


class GateError(FlowletError):
    """Base class; every message names the gate, and says what to do."""


class GateUnreachableError(GateError):
    """No JobManager answers, or one of the gate's TaskManagers cannot be reached."""


class GateNotFoundError(GateError):
    """No job has a gate of this name, or its tasks do not run yet."""


class GateEndedError(GateError):
    """The gate's job has ended, or the gate takes no more partitions."""


class GateAccessError(GateError):
    """The secret, or the token, is not the right one."""


class GateTypeError(GateError):
    """The producer's records are not of the gate's type; names the column where there is one."""


class AttemptRefusedError(GateError):
    """The gate does not take this attempt of this partition; the message says why."""


class GateLostError(GateError):
    """The connection to the gate was lost, or it did not answer in time: this attempt is aborted, a new one may be made."""
