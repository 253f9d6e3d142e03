"""Records as a struct of arrays: columns, the tables of dictionary codes, and what a list of records looks like.

Internal: not a public API, and may change with any version; programs import flowlet.common and flowlet.datastream.
"""

from typing import TYPE_CHECKING

from netstack.late import late_names

if TYPE_CHECKING:
    from flowlet.columns.coded_column import CodedColumn, NameTable
    from flowlet.columns.column import Column, ColumnVisitor
    from flowlet.columns.column_kinds import (
        ArrayColumn,
        ArrowColumn,
        ConstantColumn,
        ListColumn,
        OffsetColumn,
        narrowed,
    )
    from flowlet.columns.short_text_column import ShortTextColumn
    from flowlet.columns.table import Columns, Shape, column_of, columns_of, concatenated, try_concatenate

__all__ = [
    "ArrayColumn",
    "ArrowColumn",
    "CodedColumn",
    "Column",
    "ColumnVisitor",
    "Columns",
    "ConstantColumn",
    "ListColumn",
    "NameTable",
    "OffsetColumn",
    "Shape",
    "ShortTextColumn",
    "column_of",
    "columns_of",
    "concatenated",
    "narrowed",
    "try_concatenate",
]

if not TYPE_CHECKING:
    __getattr__, __dir__ = late_names(
        __name__,
        {
            "columns.coded_column": "CodedColumn NameTable",
            "columns.column": "Column ColumnVisitor",
            "columns.column_kinds": "ArrayColumn ArrowColumn ConstantColumn ListColumn OffsetColumn narrowed",
            "columns.short_text_column": "ShortTextColumn",
            "columns.table": "Columns Shape column_of columns_of concatenated try_concatenate",
        },
    )
