# The names of this package: type checkers read them here, and ``netstack.late`` when the package is imported.

from flowlet.columns.column import Column as Column
from flowlet.columns.column import ColumnVisitor as ColumnVisitor
from flowlet.columns.column_kinds import ArrayColumn as ArrayColumn
from flowlet.columns.column_kinds import ArrowColumn as ArrowColumn
from flowlet.columns.column_kinds import CodedColumn as CodedColumn
from flowlet.columns.column_kinds import ConstantColumn as ConstantColumn
from flowlet.columns.column_kinds import ListColumn as ListColumn
from flowlet.columns.column_kinds import NameTable as NameTable
from flowlet.columns.column_kinds import OffsetColumn as OffsetColumn
from flowlet.columns.column_kinds import narrowed as narrowed
from flowlet.columns.short_text_column import ShortTextColumn as ShortTextColumn
from flowlet.columns.table import Columns as Columns
from flowlet.columns.table import Shape as Shape
from flowlet.columns.table import column_of as column_of
from flowlet.columns.table import columns_of as columns_of
from flowlet.columns.table import concatenated as concatenated
from flowlet.columns.table import try_concatenate as try_concatenate
