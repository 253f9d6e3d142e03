"""The operators of windows and joins of columns.

Side:   shared.  Loaded by name for jobs that have any: only these need pyarrow, whose import takes longer than all of
        ours.
"""

from flowlet.chain.stream_operator import StreamOperator
from flowlet.graph.transformation import (
    JoinColumnsTransformation,
    LocalWindowColumnsTransformation,
    SelectColumnsTransformation,
    WindowColumnsTransformation,
)
from flowlet.operators.record_batches import SelectColumnsOperator
from flowlet.windows.window_columns_operator import (
    JoinColumnsOperator,
    LocalWindowColumnsOperator,
    WindowColumnsOperator,
)

ColumnStep = (
    SelectColumnsTransformation
    | LocalWindowColumnsTransformation
    | WindowColumnsTransformation
    | JoinColumnsTransformation
)


def operator_on_columns(step: ColumnStep, name: str, *, is_batch: bool) -> StreamOperator:
    """The operator that does what a transformation says."""
    match step:
        case SelectColumnsTransformation():
            return SelectColumnsOperator(step.positions, step.schema, name=name)
        case LocalWindowColumnsTransformation():
            return LocalWindowColumnsOperator(step.aggregation, step.schema, step.layout, name=name)
        case WindowColumnsTransformation():
            return WindowColumnsOperator(
                step.aggregation, step.schema, step.late_tag, layout=step.layout, is_batch=is_batch, name=name
            )
        case JoinColumnsTransformation():
            return JoinColumnsOperator(step.function, name=name)
