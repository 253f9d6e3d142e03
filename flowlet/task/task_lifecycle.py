"""The states of one task attempt; the thread that runs it and a thread that cancels it meet here.

Side:       shared.
Invariants: every step is one of ``_STEPS``.  Exactly one terminal state is reached.  A refused step changes nothing.
Source:     Flink ``Task`` (transitions of ``ExecutionState``), reduced to those inside the task.
"""

import threading

from flowlet.messages.execution_state import ExecutionState

_STEPS: dict[ExecutionState, frozenset[ExecutionState]] = {
    ExecutionState.CREATED: frozenset((ExecutionState.INITIALIZING, ExecutionState.CANCELED)),
    ExecutionState.INITIALIZING: frozenset((ExecutionState.RUNNING, ExecutionState.CANCELING, ExecutionState.FAILED)),
    ExecutionState.RUNNING: frozenset((ExecutionState.FINISHED, ExecutionState.CANCELING, ExecutionState.FAILED)),
    ExecutionState.CANCELING: frozenset((ExecutionState.CANCELED,)),
}


class TaskLifecycle:
    """The state of one attempt, and its allowed steps; any thread."""

    __slots__ = ("_lock", "_state")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._state = ExecutionState.CREATED  # Guarded by _lock; read anywhere, one step stale is fine.

    def __repr__(self) -> str:
        return f"<TaskLifecycle {self._state}>"

    @property
    def state(self) -> ExecutionState:
        """The present state."""
        return self._state

    def try_advance(self, target: ExecutionState) -> bool:
        """Change to ``target``; False if no step leads there."""
        with self._lock:
            if target not in _STEPS.get(self._state, ()):
                return False
            self._state = target
            return True

    def cancel(self) -> ExecutionState:
        """Change towards CANCELED, unless the attempt has ended; returns the state before."""
        with self._lock:
            before = self._state
            if before is ExecutionState.CREATED:
                self._state = ExecutionState.CANCELED
            elif ExecutionState.CANCELING in _STEPS.get(before, ()):
                self._state = ExecutionState.CANCELING
            return before

    def end(self, target: ExecutionState) -> ExecutionState:
        """Change to a terminal state: ``target``, or CANCELED if the attempt was being cancelled; returns it."""
        assert target in (ExecutionState.FINISHED, ExecutionState.FAILED), (
            f"{target} is not how an attempt ends by itself"
        )
        with self._lock:
            assert not self._state.is_terminal, f"ended twice: {self._state} -> {target}"
            self._state = ExecutionState.CANCELED if self._state is ExecutionState.CANCELING else target
            return self._state
