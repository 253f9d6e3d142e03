"""Records as a struct of arrays: columns, the tables of dictionary codes, and what a list of records looks like.

Internal: not a public API, and may change with any version; programs import flowlet.common and flowlet.datastream.
"""

from typing import TYPE_CHECKING

from netstack.late import late_names

if TYPE_CHECKING:
    from flowlet.columns.array_column import ArrayColumn
    from flowlet.columns.arrow_column import ArrowColumn
    from flowlet.columns.coded_column import CodedColumn
    from flowlet.columns.column import Column, ColumnVisitor
    from flowlet.columns.concatenation import concatenated, try_concatenate
    from flowlet.columns.constant_column import ConstantColumn
    from flowlet.columns.inspection import column_of, columns_of
    from flowlet.columns.list_column import ListColumn
    from flowlet.columns.name_table import NameTable
    from flowlet.columns.offset_column import OffsetColumn, narrowed
    from flowlet.columns.short_text_column import ShortTextColumn
    from flowlet.columns.table import Columns, Shape

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
            "columns.array_column": "ArrayColumn",
            "columns.arrow_column": "ArrowColumn",
            "columns.coded_column": "CodedColumn",
            "columns.column": "Column ColumnVisitor",
            "columns.concatenation": "concatenated try_concatenate",
            "columns.constant_column": "ConstantColumn",
            "columns.inspection": "column_of columns_of",
            "columns.list_column": "ListColumn",
            "columns.name_table": "NameTable",
            "columns.offset_column": "OffsetColumn narrowed",
            "columns.short_text_column": "ShortTextColumn",
            "columns.table": "Columns Shape",
        },
    )
