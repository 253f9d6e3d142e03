"""``ParquetBulkWriters``: records as Parquet files.

Side:   pure.  It describes; the task that runs it opens files.
Source: PyFlink ``pyflink.datastream.formats.parquet``.
Absent: readers, Avro, and the Hadoop configuration.
"""

from flowlet.common.checks import check_kind
from flowlet.common.not_yet import explain_missing_names
from flowlet.common.typeinfo import RowTypeInfo, TupleTypeInfo, named_fields
from flowlet.connectors.files.api import BulkWriterFactory
from flowlet.datastream.formats.bulk_formats import ParquetWriterFactory
from flowlet.errors import JobGraphError

__all__ = ["ParquetBulkWriters", "ParquetWriterFactory"]


class ParquetBulkWriters:
    """Makes Parquet writers."""

    # PyFlink's signature has the flag positional.
    @staticmethod
    def for_row_type(row_type: RowTypeInfo | TupleTypeInfo, utc_timestamp: bool = False) -> BulkWriterFactory:  # noqa: FBT001, FBT002
        """Files of records of this type: ``Row`` s, or tuples of as many fields, whose columns are named f0, f1, ...

        Raises:
            JobGraphError: it is no row type, or Parquet has no type for a field.
        """
        # Here, because it imports pyarrow, which most programs do not need.
        from flowlet.types.leaf_forms import arrow_type_of

        if isinstance(row_type, TupleTypeInfo):
            row_type = RowTypeInfo(row_type.get_field_types())
        check_kind(row_type, RowTypeInfo, "for_row_type() needs a type such as Types.ROW_NAMED(...)")
        for name, field_type in named_fields(row_type):
            if arrow_type_of(field_type) is None:
                raise JobGraphError(
                    f"for_row_type(): field {name!r} is {field_type!r}, for which no Parquet column is known"
                )
        return ParquetWriterFactory(row_type, utc_timestamp)


explain_missing_names(__name__)
