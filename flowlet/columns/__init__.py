"""Records as a struct of arrays: columns, the tables of dictionary codes, and what a list of records looks like.

Internal: not a public API, and may change with any version; programs import flowlet.common and flowlet.datastream.
"""

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
