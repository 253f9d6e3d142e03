"""The chain of a subtask whose operators had finished when the checkpoint that it is restored from was taken.

Side:   task.
Rules:  the operators have emitted all that they ever will, so none of them runs again.  Substitutes with their names,
        ids and edges only pass on watermarks and ends: the subtask emits the last watermark and the end of data, takes
        part in checkpoints as finished, and ends.  A sink still commits what that checkpoint holds.
Source: Flink ``FinishedOperatorChain``, ``FinishedOnRestoreMainOperatorOutput``, ``FinishedOnRestoreInput``, which skip
        the operators.
"""

from collections.abc import Sequence
from dataclasses import replace

from flowlet.chain.operator_chain import ChainedOperator
from flowlet.chain.stream_operator import StreamOperator
from flowlet.errors import StateRestoreError
from flowlet.operators.multiple_input_operator import MultipleInputStreamOperator
from flowlet.operators.source_operator import Source, SourceOperator, SourceReader
from flowlet.records import Chunk


def finished_chain(chain: Sequence[ChainedOperator]) -> list[ChainedOperator]:
    """The substitutes.  Takes over ``chain``, whose operators must not be used any more."""
    return [replace(item, operator=_substitute(item.operator), key_selector=None) for item in chain]


def _substitute(operator: StreamOperator) -> StreamOperator:
    if isinstance(operator, SourceOperator):
        # Itself, with its event time, so that the other sources of its alignment group do not wait for it.
        operator.source = _FinishedSource()
        operator.latency_tracking_interval_ms = 0
        return operator
    if operator.runs_after_finish:
        return operator.restored_after_finish()
    num_inputs = len(operator.inputs())
    if num_inputs > 1:
        return _FinishedMultipleInputOperator(operator, num_inputs)
    return _FinishedOperator(operator)


class _FinishedOperator(StreamOperator):
    """In the place of one that had finished."""

    def __init__(self, finished: StreamOperator) -> None:
        self.name = finished.name
        self.operator_id = finished.operator_id

    def process_chunk(self, chunk: Chunk) -> None:
        """No record may come.

        Raises StateRestoreError: a producer ran again, although this subtask had read all of it.
        """
        raise _unexpected(self.name, chunk)


class _FinishedMultipleInputOperator(MultipleInputStreamOperator):
    """In the place of one with several inputs that had finished."""

    def __init__(self, finished: StreamOperator, num_inputs: int) -> None:
        self.name = finished.name
        self.operator_id = finished.operator_id
        self.num_inputs = num_inputs

    def process_input_chunk(self, input_id: int, chunk: Chunk) -> None:
        """No record may come.  Raises StateRestoreError: as above."""
        raise _unexpected(self.name, chunk)


def _unexpected(name: str, chunk: Chunk) -> StateRestoreError:
    return StateRestoreError(
        f"operator {name!r} had finished when its checkpoint was taken, but a producer has sent it {len(chunk)} more "
        "records: "
        "was the producer restored from another checkpoint?"
    )


class _FinishedSource(Source):
    """Has come to its end."""

    def create_reader(self, subtask: int, parallelism: int) -> SourceReader:
        """A reader that has nothing."""
        return _FinishedReader()


class _FinishedReader:
    progress = 1.0
    never_waits = True

    def poll_chunk(self) -> Chunk | None:
        return None

    def snapshot_position(self) -> None:
        return None

    def restore_position(self, position: object) -> None:
        pass

    def close(self) -> None:
        pass
