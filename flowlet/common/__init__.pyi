# The names of this package: type checkers read them here, and ``netstack.late`` when the package is imported.

from flowlet.common.completable_future import CompletableFuture as CompletableFuture
from flowlet.common.config_options import ConfigOption as ConfigOption
from flowlet.common.config_options import ConfigOptions as ConfigOptions
from flowlet.common.configuration import Configuration as Configuration
from flowlet.common.execution_config import ExecutionConfig as ExecutionConfig
from flowlet.common.flinks_options import IgnoredOptionWarning as IgnoredOptionWarning
from flowlet.common.job_client import JobClient as JobClient
from flowlet.common.job_execution_result import JobExecutionResult as JobExecutionResult
from flowlet.common.job_id import JobID as JobID
from flowlet.common.job_status import JobStatus as JobStatus
from flowlet.common.restart_strategy import RestartStrategies as RestartStrategies
from flowlet.common.restart_strategy import RestartStrategyConfiguration as RestartStrategyConfiguration
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
from flowlet.common.types import Row as Row
from flowlet.common.types import RowKind as RowKind
from flowlet.common.watermark_strategy import WatermarkStrategy as WatermarkStrategy
