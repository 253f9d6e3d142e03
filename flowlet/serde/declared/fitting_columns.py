"""Columns that come from elsewhere, as columns of a declared type.

Side:   pure.
"""

from flowlet.columns import ArrayColumn, ArrowColumn, Column, ColumnVisitor, ConstantColumn, ListColumn
from flowlet.serde.declared.declared_column import DeclaredColumn


def fitting(declared: DeclaredColumn, column: Column) -> Column:
    """The column itself or one with the same values.

    Raises ValueMismatchError: a value or the representation does not fit.
    """
    return column.accept(_Fitting(declared))


class _Fitting(ColumnVisitor[Column]):
    __slots__ = ("_declared",)

    def __init__(self, declared: DeclaredColumn) -> None:
        self._declared = declared

    def visit_any(self, column: Column) -> Column:
        return self._declared.column_of(column.as_list())

    def visit_array(self, column: ArrayColumn) -> Column:
        return column if self._declared.takes_array(column.array) else self.visit_any(column)

    def visit_list(self, column: ListColumn) -> Column:
        return column if self._declared.takes_list_of(column.value_type) else self.visit_any(column)

    def visit_constant(self, column: ConstantColumn) -> Column:
        if not len(column):
            return self.visit_any(column)
        self._declared.column_of([column.value])
        return column

    def visit_arrow(self, column: ArrowColumn) -> Column:
        from flowlet.serde.declared.arrow_values import fitting_array, python_values  # here, because it imports pyarrow

        array = fitting_array(column.array, self._declared.type_info)
        return self._declared.column_of(python_values(column.array)) if array is None else ArrowColumn(array)
