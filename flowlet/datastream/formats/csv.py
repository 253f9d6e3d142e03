"""``CsvSchema`` and ``CsvBulkWriters``: records as lines of comma-separated values.

Side:   pure.  It describes; the task that runs it opens files.
Source: PyFlink ``pyflink.datastream.formats.csv``.
Absent: readers of files.
"""

from flowlet.common.checks import check_kind
from flowlet.common.not_yet import explain_missing_names
from flowlet.connectors.files.api import BulkWriterFactory
from flowlet.datastream.formats.bulk_formats import CsvSchema, CsvSchemaBuilder, CsvWriterFactory
from flowlet.datastream.formats.csv_schemas import CsvRowDeserializationSchema, CsvRowSerializationSchema

__all__ = [
    "CsvBulkWriters",
    "CsvRowDeserializationSchema",
    "CsvRowSerializationSchema",
    "CsvSchema",
    "CsvSchemaBuilder",
    "CsvWriterFactory",
]


class CsvBulkWriters:
    """Makes CSV writers."""

    @staticmethod
    def for_schema(schema: CsvSchema) -> BulkWriterFactory:
        """Files of rows, or of tuples, with the columns of a schema, in UTF-8.

        Raises JobGraphError: it is no ``CsvSchema``.
        """
        check_kind(schema, CsvSchema, "for_schema() needs a schema such as CsvSchema.builder()...build()")
        return CsvWriterFactory(schema)


explain_missing_names(__name__)
