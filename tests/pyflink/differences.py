"""Why names of PyFlink differ here, for the page "Coming from PyFlink": patterns of names, and what to use instead.

Rules: the first pattern that matches the whole of ``module.Class.member`` counts; without one, the text of the error is
       used.
"""

from typing import Final

_FILES: Final = r"datastream\.connectors\.file_system\."
_ENVIRONMENT: Final = r"datastream\.stream_execution_environment\..*"
_CONFIG: Final = r"common\.execution_config\..*"

REASONS: Final[dict[str, str]] = {
    r".*\.get_java_\w+|.*\.(to_j_row_kind|get_transformer)": "nothing: there are no Java objects",
    r"common\.io\..*": "`from_source()`: it wraps a Java class",
    r"common\.typeinfo\.ExternalTypeInfo.*": "`Types.PICKLED_BYTE_ARRAY()`: it wraps a type of the Table API",
    r"common\.typeinfo\..*\.(need_conversion|to_internal_type|from_internal_type|EPOCH_ORDINAL)": (
        "nothing: values are converted where records are written, not by the type"
    ),
    r"common\.serializer\.VoidNamespaceSerializer.*": "nothing: state without a namespace needs no serializer",
    _CONFIG
    + "(kryo|avro|generic|pojo).*": "nothing: serializers follow from declared types; any other record is pickled",
    _CONFIG + "closure_cleaner.*": "nothing: functions are pickled as they are",
    _CONFIG + "auto_generated_uids.*": "`uid()`; without it the id follows from the operator's place in the program",
    _CONFIG + "snapshot_compression": "nothing: files of checkpoints are not compressed",
    r"common\.input_dependency_constraint.*": "nothing: it has no effect in Flink either",
    r"common\.serialization\.(BulkWriterFactory|RowDataBulkWriterFactory).*": "`ParquetBulkWriters`, `CsvBulkWriters`",
    r"datastream\.connectors\.base\.\w+\.__init__": "a `Source` or `Sink` of your own in Python",
    r"datastream\.data_stream\.\w+\.__init__": "the methods of streams: they make streams",
    r"datastream\.data_stream\.(CachedDataStream.*|\w+\.cache)": (
        "`execute_and_collect()` and `from_collection()`, or a file between two jobs"
    ),
    r"datastream\.(connectors\.(file_system\.FileSink|jdbc\.\w+|kafka\.Kafka\w+)|formats\.csv\.CsvSchema)\.__init__": "its builder",  # noqa: E501
    r"datastream\.functions\.SinkFunction\.__init__": "a subclass with `invoke()`: in PyFlink it names a Java class",
    r"datastream\.functions\.SourceFunction.*": (
        "`flowlet.datastream.SourceFunction`, a class of your own with `run()`; in PyFlink it names a Java class"
    ),
    r"common\.completable_future\.CompletableFuture\.__init__": "the methods of `JobClient`: they make it",
    r"datastream\.connectors\.kafka\.(FlinkKafka|Semantic).*": "`KafkaSource` and `KafkaSink`",
    r"datastream\.formats\.parquet\.(Avro\w+|ParquetColumnarRowInputFormat).*": "`from_arrow()`, `ParquetBulkWriters`",
    r"datastream\.formats\.parquet\..*": "the same without `hadoop_config`: there is no Hadoop",
    r"datastream\.formats\.csv\.CsvReaderFormat.*": "lines of a `FileSource`, and `map()` with Python's `csv`",
    r"datastream\.formats\.csv\.CsvSchemaBuilder\..*": "nothing: a `CsvSchema` is for files that are written",
    r"datastream\.formats\.json\..*json_schema": "`type_info()`: JSON schemas are not read",
    _FILES + r"(BulkFormat|FileSource\.for_bulk_file_format)": "`FileSource` with a `StreamFormat`",
    _FILES + r"FileSourceBuilder\.monitor_continuously": "a `SourceFunction`, or a job per set of files",
    _FILES + r"FileSourceBuilder\.set_\w+": "nothing: `FileSource` finds files and hands out their splits",
    _FILES
    + r"FileSink\.BaseBuilder\.with_rolling_policy": "the builder for rows has it; bulk files roll at each checkpoint",
    r"datastream\.state_backend\..*(set_options|get_options|PredefinedOptions|predefined_options).*": (
        "nothing: the options of RocksDB are fixed"
    ),
    r"datastream\.state_backend\..*transfer_threads": "nothing: one thread per TaskManager writes snapshots",
    r"datastream\.state_backend\.CustomStateBackend.*": "`HashMapStateBackend`, `EmbeddedRocksDBStateBackend`: it "
    "names a Java class",
    _ENVIRONMENT + r"\.serializer": "nothing: it is an inner detail of PyFlink",
    _ENVIRONMENT + "different_max_parallelism.*": "nothing: such operators are chained",
    _ENVIRONMENT + "create_input": "`from_source()`",
    r"datastream\.window\.Continuous\w+\.fire_timestamp_state": "nothing: it is an inner detail",
}
