"""What every program uses: types, configuration, the client of a job."""

from typing import TYPE_CHECKING

from flowlet.common.not_yet import missing_names
from netstack.late import late_names

if TYPE_CHECKING:
    from flowlet.common.completable_future import CompletableFuture as CompletableFuture
    from flowlet.common.config_options import *  # noqa: F403 - they are all below
    from flowlet.common.configuration import Configuration as Configuration
    from flowlet.common.execution_config import ExecutionConfig as ExecutionConfig
    from flowlet.common.flinks_options import IgnoredOptionWarning as IgnoredOptionWarning
    from flowlet.common.job_client import JobClient as JobClient
    from flowlet.common.job_execution_result import JobExecutionResult as JobExecutionResult
    from flowlet.common.job_id import JobID as JobID
    from flowlet.common.job_status import JobStatus as JobStatus
    from flowlet.common.restart_strategy import *  # noqa: F403 - they are all below
    from flowlet.common.serialization import ByteArraySchema as ByteArraySchema
    from flowlet.common.serialization import DeserializationSchema as DeserializationSchema
    from flowlet.common.serialization import Encoder as Encoder
    from flowlet.common.serialization import SerializationSchema as SerializationSchema
    from flowlet.common.serialization import SimpleStringSchema as SimpleStringSchema
    from flowlet.common.serializer import TypeSerializer as TypeSerializer
    from flowlet.common.time import Duration as Duration
    from flowlet.common.time import Instant as Instant
    from flowlet.common.time import Time as Time
    from flowlet.common.typeinfo import TypeInformation as TypeInformation
    from flowlet.common.typeinfo import Types as Types
    from flowlet.common.types import *  # noqa: F403 - they are all below
    from flowlet.common.watermark_strategy import WatermarkStrategy as WatermarkStrategy

if not TYPE_CHECKING:
    __getattr__, __dir__, __all__ = late_names(
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
