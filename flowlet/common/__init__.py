"""What every program uses: types, configuration, the client of a job."""

from typing import TYPE_CHECKING

from flowlet.common.not_yet import missing_names
from netstack.late import late_names

if TYPE_CHECKING:
    from flowlet.common.completable_future import CompletableFuture
    from flowlet.common.config_options import ConfigOption, ConfigOptions
    from flowlet.common.configuration import Configuration
    from flowlet.common.execution_config import ExecutionConfig
    from flowlet.common.flinks_options import IgnoredOptionWarning
    from flowlet.common.job_client import JobClient
    from flowlet.common.job_execution_result import JobExecutionResult
    from flowlet.common.job_id import JobID
    from flowlet.common.job_status import JobStatus
    from flowlet.common.restart_strategy import RestartStrategies, RestartStrategyConfiguration
    from flowlet.common.serialization import (
        ByteArraySchema,
        DeserializationSchema,
        Encoder,
        SerializationSchema,
        SimpleStringSchema,
    )
    from flowlet.common.serializer import TypeSerializer
    from flowlet.common.time import Duration, Instant, Time
    from flowlet.common.typeinfo import TypeInformation, Types
    from flowlet.common.types import Row, RowKind
    from flowlet.common.watermark_strategy import WatermarkStrategy

__all__ = [
    "ByteArraySchema",
    "CompletableFuture",
    "ConfigOption",
    "ConfigOptions",
    "Configuration",
    "DeserializationSchema",
    "Duration",
    "Encoder",
    "ExecutionConfig",
    "IgnoredOptionWarning",
    "Instant",
    "JobClient",
    "JobExecutionResult",
    "JobID",
    "JobStatus",
    "RestartStrategies",
    "RestartStrategyConfiguration",
    "Row",
    "RowKind",
    "SerializationSchema",
    "SimpleStringSchema",
    "Time",
    "TypeInformation",
    "TypeSerializer",
    "Types",
    "WatermarkStrategy",
]

if not TYPE_CHECKING:
    __getattr__, __dir__ = late_names(
        __name__,
        {
            "common.completable_future": "CompletableFuture",
            "common.config_options": "ConfigOption ConfigOptions",
            "common.configuration": "Configuration",
            "common.execution_config": "ExecutionConfig",
            "common.job_client": "JobClient",
            "common.job_execution_result": "JobExecutionResult",
            "common.job_id": "JobID",
            "common.job_status": "JobStatus",
            "common.restart_strategy": "RestartStrategies RestartStrategyConfiguration",
            "common.serialization": (
                "ByteArraySchema DeserializationSchema Encoder SerializationSchema SimpleStringSchema"
            ),
            "common.serializer": "TypeSerializer",
            "common.flinks_options": "IgnoredOptionWarning",
            "common.time": "Duration Instant Time",
            "common.typeinfo": "TypeInformation Types",
            "common.types": "Row RowKind",
            "common.watermark_strategy": "WatermarkStrategy",
        },
        missing_names(__name__),
    )
