"""The bytes of a subtask's state.

Side:   pure.
Format: a magic number, a version, then the pickled ``SubtaskState``; only what a verified handle describes may be decoded.
"""

from flowlet.checkpoint.snapshots import SubtaskState


def encode_state(state: SubtaskState) -> bytes:
    """The bytes.  Raises FlowletError: a part cannot be pickled; the message names the operator."""
    raise NotImplementedError


def decode_state(content: bytes) -> SubtaskState:
    """The state.  Raises StateRestoreError: the bytes are of another version, or name what does not exist here."""
    raise NotImplementedError
