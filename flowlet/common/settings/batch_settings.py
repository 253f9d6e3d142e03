"""``BatchSettings``: how a job in BATCH mode exchanges and sorts its records.

Side:   pure.
Source: Flink ``ExecutionOptions.BATCH_SHUFFLE_MODE``, ``SORT_INPUTS``, ``USE_BATCH_STATE_BACKEND``,
        ``SORTED_INPUTS_MEMORY``.
"""

from typing import Final

from netstack.late import dataclass

DEFAULT_SORT_MEMORY_BYTES: Final = 128 << 20  # Flink's


@dataclass(frozen=True, slots=True)
class BatchSettings:
    """What ``execution.batch-shuffle-mode`` and ``execution.sorted-inputs.*`` decide.

    Args:
        is_blocking: results between tasks are written completely before they are read, and stages run one after the
            other.
        sorts_inputs: keyed inputs are sorted by key.
        ends_keys: timers fire and state is dropped at the end of each key; else at the end of the input.
        sort_memory_bytes: of one task, for all its inputs.
    """

    is_blocking: bool = True
    sorts_inputs: bool = True
    ends_keys: bool = True
    sort_memory_bytes: int = DEFAULT_SORT_MEMORY_BYTES
