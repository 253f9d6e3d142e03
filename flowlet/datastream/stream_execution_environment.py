"""``StreamExecutionEnvironment``: where programs begin and jobs are started.

Side:   pure.  The client package is loaded by name when a job starts, so that building a program needs no runtime.
Source: PyFlink ``pyflink.datastream.stream_execution_environment``; defaults from Flink's ``PipelineOptions`` and
        ``ExecutionOptions``.
Absent: jars and input formats, which run in a Java virtual machine.
"""

import atexit
import contextlib
import importlib
import os
import sys
import tempfile
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final, Self, TypeVar

from flowlet.common.checks import check_kind, check_number
from flowlet.common.configuration import Configuration
from flowlet.common.execution_config import EnvironmentSettings, ExecutionConfig, check_parallelism, config_of
from flowlet.common.flinks_options import CHANGELOG, IGNORED, warn_of_setter
from flowlet.common.job_client import JobClient, ProgressMode, SubmittedJob
from flowlet.common.job_execution_result import DetachedJobExecutionResult, JobExecutionResult
from flowlet.common.job_id import JobID
from flowlet.common.job_settings import (
    FAILURE_RATE_DELAY,
    CheckpointSettings,
    JobSettings,
    RestartKind,
    RestartSettings,
    StateSettings,
    check_rocksdb,
)
from flowlet.common.not_yet import ExplainsMissing
from flowlet.common.option import row_of, settings_of, view_of
from flowlet.common.options import python_options
from flowlet.common.options.client_options import (
    JOB_MANAGER,
    REST_ADDRESS,
    REST_PORT,
    ClientHeartbeat,
    ClientRetry,
    is_detached,
    progress_mode,
    run_options,
)
from flowlet.common.options.known_options import (
    BY_NAME,
    check_options,
    job_settings,
    refuse_gate_options,
    replace_options,
    state_settings,
)
from flowlet.common.options.python_options import DependencySettings
from flowlet.common.restart_strategy import RestartStrategies, RestartStrategyConfiguration
from flowlet.common.written_values import JOB_MANAGER_VARIABLE, checked_address, parse_address
from flowlet.datastream.checkpoint_config import CheckpointConfig
from flowlet.datastream.checkpointing_mode import CheckpointingMode
from flowlet.datastream.environment_sources import EnvironmentSources
from flowlet.datastream.execution_mode import RuntimeExecutionMode
from flowlet.datastream.remote_gate import RemoteGate
from flowlet.datastream.slot_sharing_group import SlotSharingGroup
from flowlet.datastream.state_backend import (
    PREDEFINED_OPTIONS,
    TRANSFER_THREADS,
    EmbeddedRocksDBStateBackend,
    HashMapStateBackend,
    StateBackend,
)
from flowlet.errors import ConfigError, FlowletError, JobGraphError, without_our_frames
from flowlet.graph.stream_graph import StreamGraph, StreamGraphSettings, build_stream_graph, check_uids, execution_plan
from flowlet.graph.transformation import CollectTransformation, SourceTransformation, Transformation
from netstack.late import import_many

if TYPE_CHECKING:
    from flowlet.client.running_job import RunningJob

__all__ = ["StreamExecutionEnvironment"]

LOCAL_VARIABLE = "FLOWLET_LOCAL"  # "inprocess": no child processes


def job_manager_address(configuration: Configuration, variables: Mapping[str, str]) -> tuple[str, int] | None:
    """Host and port of the JobManager; None: an embedded one.

    Raises:
        ConfigError: an option or variable is no address; the message names it.
    """
    own_address = JOB_MANAGER.find(configuration)
    if own_address is not None:
        return parse_address(own_address, f"option {JOB_MANAGER.name!r}")
    host = REST_ADDRESS.find(configuration)
    if host is not None:
        return checked_address(
            host, REST_PORT.get(configuration), f"options {REST_ADDRESS.is_set(configuration)!r} and {REST_PORT.name!r}"
        )
    if REST_PORT.is_set(configuration):
        raise ConfigError(f"option {REST_PORT.name!r} is set and has no effect: set {REST_ADDRESS.name!r}, too")
    address = variables.get(JOB_MANAGER_VARIABLE, "").strip()
    return parse_address(address, f"environment variable {JOB_MANAGER_VARIABLE}") if address else None


def is_in_process(variables: Mapping[str, str]) -> bool:
    """Whether an embedded cluster stays in this process.

    Raises ConfigError if the variable is set to anything but ``inprocess``.
    """
    value = variables.get(LOCAL_VARIABLE, "").strip().lower()
    if value not in ("", "inprocess"):
        raise ConfigError(f"environment variable {LOCAL_VARIABLE} is {value!r}; unset it, or set it to 'inprocess'")
    return value == "inprocess"


DEFAULT_JOB_NAME = "Flink Streaming Job"  # PyFlink's
NO_BUFFER_TIMEOUT = -1
_TO_THE_PROGRAM = 5  # calls from a warning about a graph to execute()'s caller
_CONFIG_FILE_MODULE = "flowlet.rpc.config_file"
_CLIENT_MODULE, _FRAMES_MODULE = "flowlet.client.translate", "flowlet.client.program.user_frames"

# Starts a job from the graph, the JobManager's address (None: an embedded cluster), whether that cluster stays in this
# process, and a function that gets the job before the JobManager is asked to run it.
Submit = Callable[[StreamGraph, tuple[str, int] | None, bool, Callable[["RunningJob"], None]], SubmittedJob]
_T = TypeVar("_T")


class StreamExecutionEnvironment(EnvironmentSources, ExplainsMissing):
    """Makes streams and runs the job that they form.

    Threading: one thread.
    Life cycle: a job that was started takes its operators out of the environment, even if it fails, as in PyFlink, and
    more streams may be made.  A job that could not be started (the graph was wrong, a function could not
    be sent, there was no JobManager, or it refused the job) can be tried again: if no operator was added, the call runs
    the operators of the failed attempt.  Once operators are added, or another stream is collected, the next job has
    only these and the operators that they read; the operators of the failed attempt are forgotten.  (PyFlink keeps them
    all if the graph was wrong, and forgets them all otherwise.)  ``close`` ends the jobs that still run.

    Args:
        configuration: options; see ``configure``.
        submit: starts jobs; left out, the client package does.
    """

    def __init__(self, configuration: Configuration | None = None, submit: Submit | None = None) -> None:
        self._configuration = Configuration()
        self._config = config_of(self._configuration)
        self._default_local_parallelism = len(os.sched_getaffinity(0))
        self._operators: list[Transformation] = []  # those added since the last attempt to start a job
        # The last attempt, if it failed: its operators, and the end of the stream that the client reads.
        self._unstarted: tuple[Sequence[Transformation], Transformation | None] = ((), None)
        self._token = object()  # for the streams that no job has had yet
        self._jobs: list[RunningJob] = []  # those that were not released yet
        self._submit_graph = submit or _submit_with_client
        for options in (_options_of_file(), run_options(os.environ), configuration):
            if options is not None:
                self.configure(options)

    @staticmethod
    def get_execution_environment(configuration: Configuration | None = None) -> "StreamExecutionEnvironment":
        """A new environment.

        Jobs go to the JobManager of the options ``flowlet.jobmanager`` (host:port) or ``rest.address`` (or
        ``jobmanager.rpc.address``) and ``rest.port``, or of the variable ``FLOWLET_JOBMANAGER``; without these each job
        gets a cluster of its own on this machine.
        """
        # Also a mistake in a program shows its own frames alone.
        importlib.import_module(_FRAMES_MODULE).install_exception_hook()
        return StreamExecutionEnvironment(configuration)

    def configure(self, configuration: Configuration) -> None:
        """Take over options; options that are not given stay as they are.  ``docs/options.md`` lists all.

        If one is wrong, none is changed.

        Raises:
            ConfigError: an option is not known here, or its value is not of its type.
            JobGraphError: a value is out of range.
        """
        check_options(configuration)
        settings_of(EnvironmentSettings, configuration)
        settings_of(JobSettings, configuration)
        for name in configuration.key_set() & BY_NAME.keys():
            # A value under another name of the option would count before this one.
            for former in BY_NAME[name].names:
                self._configuration.remove_config(former)
        if row_of(EnvironmentSettings, "buffer_timeout_ms").is_set(configuration):
            self._configuration.remove_config(row_of(EnvironmentSettings, "is_buffer_timeout_enabled").name)
        self._configuration.add_all(configuration)

    @property
    def _found(self) -> EnvironmentSettings:
        return view_of(EnvironmentSettings, self._configuration)

    def _set(self, field: str, value: object) -> Self:
        row_of(EnvironmentSettings, field).set(self._configuration, value)
        return self

    def enable_checkpointing(self, interval: int, mode: CheckpointingMode | None = None) -> Self:
        """Take a checkpoint every ``interval`` milliseconds, 10 or more; ``mode``: left out, it stays as it is.

        A job whose task or TaskManager is lost then starts again from the newest complete checkpoint.  More can be set
        by ``get_checkpoint_config`` and by the options ``execution.checkpointing.*`` and ``restart-strategy.*``.

        Raises:
            ConfigError: an argument is wrong.
        """
        if mode is not None:
            self.get_checkpoint_config().set_checkpointing_mode(mode)
        self.get_checkpoint_config().set_checkpoint_interval(interval)
        return self

    def get_checkpoint_config(self) -> CheckpointConfig:
        """The settings of checkpoints; changes count for jobs that are started later."""
        return CheckpointConfig(self._configuration)

    def set_default_savepoint_directory(self, directory: str) -> Self:
        """Set the directory for savepoints that are asked for without a directory.

        With it, jobs can take savepoints also if they take no checkpoints.
        """
        self._configuration.set_string(row_of(CheckpointSettings, "savepoint_directory").name, directory)
        return self

    def get_default_savepoint_directory(self) -> str | None:
        """The directory for savepoints; None: each request for a savepoint must name one."""
        return view_of(CheckpointSettings, self._configuration).savepoint_directory or None

    def set_state_backend(self, state_backend: StateBackend) -> Self:
        """Choose where keyed state is kept: sets the options ``state.backend.*``."""
        needs = "set_state_backend() needs HashMapStateBackend() or EmbeddedRocksDBStateBackend()"
        check_kind(state_backend, StateBackend, needs)
        former = ("state.backend", row_of(StateSettings, "directories").name, PREDEFINED_OPTIONS, TRANSFER_THREADS)
        replace_options(self._configuration, former, state_backend.options())
        return self

    def get_state_backend(self) -> StateBackend:
        """The back end that the options name."""
        settings = state_settings(self._configuration)
        if not settings.is_rocksdb:
            return HashMapStateBackend()
        backend = EmbeddedRocksDBStateBackend(settings.is_incremental)
        backend.take_options(self._configuration)
        return backend

    def get_checkpoint_interval(self) -> int:
        """The time from one checkpoint to the next in milliseconds; -1: none are taken."""
        return self.get_checkpoint_config().get_checkpoint_interval()

    def get_checkpointing_mode(self) -> CheckpointingMode:
        """Whether records count exactly once or at least once after a restart."""
        return self.get_checkpoint_config().get_checkpointing_mode()

    def get_checkpointing_consistency_mode(self) -> CheckpointingMode:
        """The result of ``get_checkpointing_mode``, of which this is another name."""
        return self.get_checkpointing_mode()

    def is_unaligned_checkpoints_enabled(self) -> bool:
        """Whether barriers may overtake records."""
        return self.get_checkpoint_config().is_unaligned_checkpoints_enabled()

    def is_force_unaligned_checkpoints(self) -> bool:
        """Whether forced unaligned checkpoints were asked for, which has no effect."""
        return self.get_checkpoint_config().is_force_unaligned_checkpoints()

    def get_config(self) -> ExecutionConfig:
        """The settings that operators inherit; changes count for operators made later."""
        return self._config

    def get_parallelism(self) -> int:
        """The parallelism of operators made from now on: the one that was set, else 1 on a remote cluster, or the
        number of usable cores on this machine.
        """
        parallelism = self._config.get_parallelism()
        if parallelism != ExecutionConfig.PARALLELISM_DEFAULT:
            return parallelism
        return self._default_local_parallelism if self._address() is None else 1

    def set_parallelism(self, parallelism: int) -> Self:
        """Set the parallelism of operators made from now on."""
        self._config.set_parallelism(parallelism)
        return self

    def get_default_local_parallelism(self) -> int:
        """The parallelism where none is set and no remote cluster is used: the cores that this process may use."""
        return self._default_local_parallelism

    def set_default_local_parallelism(self, parallelism: int) -> None:
        """Set the parallelism where none is set and no remote cluster is used."""
        check_parallelism(parallelism, "the environment's default local")
        self._default_local_parallelism = parallelism

    def get_max_parallelism(self) -> int:
        """The number of key groups of operators that set none; -1: derived from their parallelism."""
        return self._config.get_max_parallelism()

    def set_max_parallelism(self, max_parallelism: int) -> Self:
        """Set the number of key groups of operators that set none."""
        self._config.set_max_parallelism(max_parallelism)
        return self

    def set_runtime_mode(self, execution_mode: RuntimeExecutionMode) -> Self:
        """Set whether keyed aggregations give running results (the default) or final ones."""
        check_kind(execution_mode, RuntimeExecutionMode, "set_runtime_mode() needs a RuntimeExecutionMode")
        return self._set("runtime_mode", execution_mode.value)

    def get_buffer_timeout(self) -> int:
        """The longest time in milliseconds that a record waits for its buffer to fill; -1: without
        end, 0: not at all.
        """
        return self._found.buffer_timeout_ms if self._found.is_buffer_timeout_enabled else NO_BUFFER_TIMEOUT

    def set_buffer_timeout(self, timeout_millis: int) -> Self:
        """Set the longest time that a record waits for its buffer to fill."""
        check_number(
            timeout_millis, -1, "the environment's buffer timeout must be -1 (no limit), 0 (none) or milliseconds"
        )
        self._configuration.remove_config(row_of(EnvironmentSettings, "is_buffer_timeout_enabled").name)
        return self._set("buffer_timeout_ms", timeout_millis)

    def is_chaining_enabled(self) -> bool:
        """Whether operators may share a task."""
        return self._found.is_chaining_enabled

    def disable_operator_chaining(self) -> Self:
        """Run each operator in a task of its own."""
        return self._set("is_chaining_enabled", value=False)

    def register_slot_sharing_group(self, slot_sharing_group: SlotSharingGroup) -> Self:
        """Accept a group, and warn if it has resources: all slots are alike, so nothing has to be kept."""
        check_kind(slot_sharing_group, SlotSharingGroup, "register_slot_sharing_group() needs a SlotSharingGroup")
        slot_sharing_group.warn_of_resources()
        return self

    def add_python_file(self, file_path: str) -> None:
        """Ship a module, a zip archive or wheel of modules, or a folder of modules, which every task can import.

        Modules that lie beside the program, and that it has imported, are shipped anyway.
        """
        python_options.add_python_file(self._configuration, file_path)

    def set_python_requirements(self, requirements_file_path: str, requirements_cache_dir: str | None = None) -> None:
        """Install with pip, on every TaskManager, the packages that a requirements file names.

        Args:
            requirements_file_path: in pip's format.
            requirements_cache_dir: a folder of packages, as ``pip download -d`` makes it, which is shipped and has all
                that is needed; left out, pip asks its index.
        """
        python_options.set_requirements(self._configuration, requirements_file_path, requirements_cache_dir)

    def add_python_archive(self, archive_path: str, target_dir: str | None = None) -> None:
        """Unpack a zip or tar archive, or a folder, on every TaskManager; functions find it below their working
        directory.

        Args:
            archive_path: on this machine.
            target_dir: its folder there; left out, the archive's file name, with its ending.
        """
        python_options.add_archive(self._configuration, archive_path, target_dir)

    def set_python_executable(self, python_exec: str) -> None:
        """Run the TaskManagers that this program starts with another interpreter, which has flowlet and this version of
        Python.

        A job for a cluster that runs already is refused then: its interpreter is chosen where TaskManagers are started.
        """
        python_options.set_executable(self._configuration, python_exec)

    def register_cached_file(self, file_path: str, name: str, executable: bool = False) -> None:  # noqa: FBT001, FBT002  # PyFlink's
        """Ship a file or folder that functions find by ``name``; ``executable``: it is a program."""
        python_options.add_cached_file(self._configuration, file_path, name, is_executable=executable)

    def set_restart_strategy(self, restart_strategy_configuration: RestartStrategyConfiguration) -> Self:
        """Set how jobs start again after a failure: sets the options ``restart-strategy.*``."""
        needs = "set_restart_strategy() needs a strategy such as RestartStrategies.fixed_delay_restart(3, 1000)"
        check_kind(restart_strategy_configuration, RestartStrategyConfiguration, needs, ConfigError)
        former = [name for name in self._configuration.key_set() if name.split(".")[0] == "restart-strategy"]
        replace_options(self._configuration, former, restart_strategy_configuration.options())
        return self

    def get_restart_strategy(self) -> RestartStrategyConfiguration:
        """The strategy that the options name.

        Raises:
            ConfigError: it is the strategy with exponential delays, which has no class in PyFlink.
        """
        found = view_of(RestartSettings, self._configuration)
        match found.kind:
            case RestartKind.DEFAULT:
                return RestartStrategies.fall_back_restart()
            case RestartKind.NONE:
                return RestartStrategies.no_restart()
            case RestartKind.FIXED_DELAY:
                return RestartStrategies.fixed_delay_restart(found.attempts, found.delay_ms)
            case RestartKind.FAILURE_RATE:
                delay_ms = FAILURE_RATE_DELAY.get(self._configuration)
                return RestartStrategies.failure_rate_restart(found.max_failures, found.interval_ms, delay_ms)
            case kind:
                raise ConfigError(
                    f"the restart strategy is {kind.value!r}, which has no class; look at the options "
                    "restart-strategy.*"
                )

    def enable_changelog_state_backend(self, enabled: bool) -> Self:  # noqa: FBT001  # PyFlink's signature
        """Keep the setting, and warn that it has no effect: checkpoints hold the state itself.

        Raises ConfigError: it is no bool.
        """
        check_kind(enabled, bool, "enable_changelog_state_backend() needs True or False", ConfigError)
        self._configuration.set_boolean(CHANGELOG, enabled)
        if enabled:
            warn_of_setter("enable_changelog_state_backend()", IGNORED[CHANGELOG])
        return self

    def is_changelog_state_backend_enabled(self) -> bool | None:
        """Whether a changelog was asked for; None: the option is not set.  Without an effect."""
        found = self._configuration.get_boolean(CHANGELOG, default_value=False)
        return found if self._configuration.contains_key(CHANGELOG) else None

    def is_chaining_of_operators_with_different_max_parallelism_enabled(self) -> bool:
        """Return True: a max parallelism never parts a chain, which always has one parallelism."""
        return True

    def get_execution_plan(self) -> str:
        """The job that ``execute`` would run now as JSON, for people and for Flink's plan visualizer.

        No job runs, and the operators stay for ``execute``.
        """
        plan = execution_plan(self._stream_graph(None, None))
        _UNEXECUTED.pop(self._token, None)  # a program may want no more than the plan
        return plan

    def execute(self, job_name: str | None = None) -> JobExecutionResult:
        """Run the job and wait for its end.  An interrupt (Ctrl-C) cancels it.

        If standard error is a terminal, it shows where to look at the job, and a line of figures while the job runs;
        the environment variable ``FLOWLET_PROGRESS`` (``auto``, ``on``, ``off``) forbids that, or asks for it
        elsewhere.

        If the job could not be started, the next call runs the operators that the class describes ("Life cycle").

        Raises:
            ConfigError: that variable has another value.
            JobGraphError: the program is not valid.
            JobSubmissionError: the JobManager did not take the job, or a function cannot be sent to it.
            RpcConnectError: there is no JobManager, or it is gone before the end of the job.
            JobExecutionError: the job failed or was cancelled; ``__cause__`` has the traceback of a user's function.
        """
        if is_detached(os.environ):
            return self._execute_detached(job_name)
        try:
            progress = progress_mode(os.environ)
            return self._start(lambda submitted: self._wait(submitted.job, progress), job_name, progress=progress)
        except FlowletError as error:
            raise without_our_frames(error) from error.__cause__

    def _wait(self, job: "RunningJob", progress: ProgressMode) -> JobExecutionResult:
        # waits for the end of the job; ended by the job, a lost JobManager, or Ctrl-C
        result = job.wait(progress=progress)
        self._release(job)
        return result

    def _execute_detached(self, job_name: str | None) -> JobExecutionResult:
        if self._address() is None:
            raise ConfigError(
                "a job that nobody waits for (flowlet run -d) needs a cluster that runs already: name it with -m "
                "host:port"
            )
        job = self._start(lambda submitted: submitted.job, job_name)
        result = DetachedJobExecutionResult(JobID(job.job_id))
        self._release(job)
        sys.stdout.write(f"{result}\n")
        return result

    def execute_async(self, job_name: str = DEFAULT_JOB_NAME) -> JobClient:
        """Start the job and return at once.

        Raises:
            JobGraphError: the program is not valid.
            JobSubmissionError: the JobManager did not take it.
        """
        return self._start(lambda submitted: JobClient(submitted.job, self._release), job_name)

    def close(self) -> None:
        """Release the resources of this environment's jobs; jobs that still run in an embedded cluster end with it."""
        for job in list(self._jobs):
            self._release(job)

    def _add_operator(self, transformation: Transformation) -> None:
        self._operators.append(transformation)
        if not _UNEXECUTED:
            atexit.unregister(_tell_unexecuted)
            atexit.register(_tell_unexecuted, os.getpid())
        _UNEXECUTED[self._token] = transformation.operator_name

    def _next_attempt(self, collect: CollectTransformation | None) -> Sequence[Transformation]:
        """The operators added since the last attempt to start a job.

        If none were added, and no other stream is collected, they are the operators of the last attempt that failed.
        """
        operators, collected = self._unstarted
        is_same_call = not self._operators and (collect is None or collect.input is collected)
        return operators if is_same_call else self._operators

    def _stream_graph(
        self,
        job_name: str | None,
        collect: CollectTransformation | None,
        client_heartbeat: ClientHeartbeat | None = None,
    ) -> StreamGraph:
        environment = settings_of(EnvironmentSettings, self._configuration)
        settings = StreamGraphSettings(
            environment=replace(environment, buffer_timeout_ms=self.get_buffer_timeout()),
            client_heartbeat=client_heartbeat,
            client_retry=settings_of(ClientRetry, self._configuration),
            dependencies=settings_of(DependencySettings, self._configuration),
        )
        roots = [*self._next_attempt(collect), *([] if collect is None else [collect])]
        graph = build_stream_graph(roots, job_name or environment.job_name or DEFAULT_JOB_NAME, settings)
        steps = (node.transformation for node in graph.nodes.values())
        if not any(isinstance(each, SourceTransformation) and isinstance(each.source, RemoteGate) for each in steps):
            refuse_gate_options(self._configuration)
        if not environment.has_auto_generated_uids:
            check_uids(graph)
        return replace(graph, settings=replace(settings, job=self._job_settings(is_batch=graph.is_batch)))

    def _job_settings(self, *, is_batch: bool) -> JobSettings:
        """The job's settings; a BATCH job takes no checkpoints, as in Flink, even if options ask for them."""
        default_directory = _local_checkpoints() if self._address() is None else None
        find = partial(job_settings, self._configuration, default_directory, self._found.runtime_mode)
        try:
            settings = find()
            if not is_batch or settings.checkpoints is None:
                return settings
        except JobGraphError:
            if not is_batch:
                raise
        settings = find(takes_checkpoints=False)
        if settings.recovery_path:
            raise JobGraphError(
                "a job in BATCH mode starts from no checkpoint or savepoint: use set_runtime_mode(STREAMING)"
            )
        warnings.warn(
            "checkpoints and savepoints are not taken in BATCH mode, as in Flink: their options have no effect",
            stacklevel=_TO_THE_PROGRAM,
        )
        return settings

    def _start(
        self,
        use: Callable[[SubmittedJob], _T],
        job_name: str | None,
        collect: CollectTransformation | None = None,
        *,
        progress: ProgressMode | None = None,
    ) -> _T:
        """Start the next job (the class says which operators it has) and use it.

        If that raises, the job is released; after Ctrl-C it is cancelled, too.
        """
        jobs: list[RunningJob] = []

        def keep(job: "RunningJob") -> None:
            jobs.append(job)
            job.announce(ProgressMode.OFF if progress is None else progress)

        try:
            return use(self._submit(job_name, collect, keep, is_attached=progress is not None))
        except BaseException as error:
            for job in jobs:
                if isinstance(error, KeyboardInterrupt):
                    job.cancel_after_interrupt()
                self._release(job)
            raise

    def _submit(
        self,
        job_name: str | None,
        collect: CollectTransformation | None,
        keep: "Callable[[RunningJob], None]",
        *,
        is_attached: bool,
    ) -> SubmittedJob:
        heartbeat = ClientHeartbeat.of_options(
            self._configuration, is_collecting=collect is not None, is_attached=is_attached
        )
        # Before anything can fail: the next call may try these operators again.
        self._unstarted = (self._next_attempt(collect), None if collect is None else collect.input)
        self._operators = []
        _UNEXECUTED.pop(self._token, None)
        try:
            graph = self._stream_graph(job_name, collect, heartbeat)
            if graph.settings.job.state.is_rocksdb:
                check_rocksdb()
            submitted = self._submit_graph(graph, self._address(), is_in_process(os.environ), keep)
        except FlowletError as error:
            raise without_our_frames(error) from error.__cause__
        self._unstarted = ((), None)
        self._jobs.append(submitted.job)
        return submitted

    def _release(self, job: "RunningJob") -> None:
        if job in self._jobs:
            self._jobs.remove(job)
        job.close()

    def _address(self) -> tuple[str, int] | None:
        return job_manager_address(self._configuration, os.environ)


# The newest operator of each environment whose streams no job has had yet, for one line when the program ends.
# By a token: the environment may be gone by then, as most programs build their streams in a function.
_UNEXECUTED: Final[dict[object, str]] = {}


def _tell_unexecuted(process_id: int) -> None:
    """Write to stderr that streams were built and never executed, if there are any.

    Not in processes that only import or fork the program, not in tests and interactive sessions, and not after an
    exception, which says enough.
    """
    main = sys.modules.get("__main__")  # of another name in processes of multiprocessing
    package = (getattr(main, "__package__", None) or "").split(".")[0]
    is_program = (
        getattr(main, "__name__", "") == "__main__"
        and package not in {"flowlet", "unittest"}
        and "pytest" not in sys.modules
    )
    has_failed = getattr(sys, "last_value", None) is not None
    if _UNEXECUTED and is_program and not has_failed and not hasattr(sys, "ps1") and os.getpid() == process_id:
        operator = next(reversed(_UNEXECUTED.values()))
        with contextlib.suppress(OSError, ValueError, AttributeError):  # stderr is closed, or there is none
            sys.stderr.write(
                f"flowlet: the streams up to {operator!r} were built and never executed: call execute() of their "
                "environment\n"
            )


def _options_of_file() -> Configuration | None:
    """The options of ``config.yaml`` in the directory that ``FLOWLET_CONF_DIR`` names; None: it is not set."""
    if not os.environ.get("FLOWLET_CONF_DIR"):
        return None
    found: Configuration | None = importlib.import_module(_CONFIG_FILE_MODULE).client_options(os.environ)
    return found


def _submit_with_client(
    stream_graph: StreamGraph,
    address: tuple[str, int] | None,
    in_process: bool,  # noqa: FBT001  # Submit
    keep: "Callable[[RunningJob], None]",
) -> SubmittedJob:
    # Before the imports, which take a third of a second.
    importlib.import_module(_FRAMES_MODULE).install_exception_hook()
    submitted: SubmittedJob = import_many(_CLIENT_MODULE).submit(stream_graph, address, in_process, keep)
    return submitted


def _local_checkpoints() -> str:
    """The directory in which clusters on this machine keep checkpoints; each user has a directory of their own."""
    return os.path.join(tempfile.gettempdir(), f"flowlet-checkpoints-{os.getuid()}")
