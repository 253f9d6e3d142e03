"""Records as a struct of arrays: columns, the tables of dictionary codes, and what a list of records looks like."""

from flowlet.columns.column import ArrayColumn, ArrowColumn, CodedColumn, Column, ConstantColumn, ListColumn, NameTable
from flowlet.columns.concatenation import try_concatenate
from flowlet.columns.inspection import column_of, columns_of
from flowlet.columns.narrow import OffsetColumn, narrowed
from flowlet.columns.short_texts import ShortTextColumn
from flowlet.columns.table import Columns, Shape

__all__ = [
    "ArrayColumn",
    "ArrowColumn",
    "CodedColumn",
    "Column",
    "Columns",
    "ConstantColumn",
    "ListColumn",
    "NameTable",
    "OffsetColumn",
    "Shape",
    "ShortTextColumn",
    "column_of",
    "columns_of",
    "narrowed",
    "try_concatenate",
]
