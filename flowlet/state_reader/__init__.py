"""Shows the state in a savepoint or checkpoint, as Arrow tables."""

from flowlet.state_reader.saved_state import SavedOperator, SavedState, SavedStateInfo, read_state

__all__ = ["SavedOperator", "SavedState", "SavedStateInfo", "read_state"]
