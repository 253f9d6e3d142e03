"""All programs by name, and how one runs: to the savepoint, to its end, or from a savepoint to its end."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import chdir, contextmanager
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

from flowlet.common import Configuration
from flowlet.common.job_client import JobClient
from flowlet.common.job_status import JobStatus
from flowlet.datastream import StreamExecutionEnvironment
from flowlet.state_reader import SavedState
from tests.savepoints import gate_job, keyed_jobs, source_jobs, window_jobs
from tests.savepoints.stage import STAGE, Job
from tests.waiting import PATIENCE_S, all_run, spin_until

SECRET: Final = "5a" * 32
"""The secret of the cluster that wrote the stored savepoints: no other cluster has it."""
BOTH: Final = ("feed", "other")
CHECKPOINTS: Final = {
    "execution.checkpointing.interval": "200 ms",
    "execution.checkpointing.externalized-checkpoint-retention": "RETAIN_ON_CANCELLATION",
}
JOBS: Final[dict[str, Job]] = {
    "each-state": Job(keyed_jobs.each_state),
    "incremental": Job(
        keyed_jobs.each_state,
        takes_checkpoint=True,
        options={**CHECKPOINTS, "execution.checkpointing.incremental": "true"},
    ),
    "large-states": Job(keyed_jobs.large_states),
    "expiring-states": Job(keyed_jobs.expiring_states),
    "each-key": Job(keyed_jobs.each_key),
    "timers": Job(keyed_jobs.timers, sources=("feed", "with watermarks")),
    "two-inputs": Job(keyed_jobs.two_inputs, sources=BOTH),
    "broadcast-state": Job(keyed_jobs.broadcast_state, sources=("feed", "rules")),
    "subtask-state": Job(keyed_jobs.subtask_state, is_keyed=False),
    "aggregations": Job(keyed_jobs.aggregations),
    "time-windows": Job(window_jobs.time_windows),
    "session-windows": Job(window_jobs.session_windows),
    "other-windows": Job(window_jobs.other_windows),
    "clock-windows": Job(window_jobs.clock_windows),
    "joins": Job(window_jobs.joins, sources=BOTH),
    "column-aggregations": Job(window_jobs.column_aggregations),
    "column-batches": Job(window_jobs.column_batches, sources=("batches",), is_keyed=False),
    "column-windows": Job(window_jobs.column_windows, is_keyed=False),
    "column-joins": Job(window_jobs.column_joins, sources=BOTH, is_keyed=False),
    "collections": Job(source_jobs.collections, sources=("typed", "objects"), is_keyed=False),
    "sequences": Job(source_jobs.sequences, sources=("sequence", "numbers"), is_keyed=False),
    "generators": Job(source_jobs.generators, sources=("generator",), is_keyed=False),
    "arrow-tables": Job(source_jobs.arrow_tables, sources=("table", "function"), is_keyed=False),
    "files": Job(source_jobs.files, sources=("files",), is_keyed=False, prepare=source_jobs.write_files),
    "cut-files": Job(source_jobs.cut_files, sources=("cut files",), is_keyed=False, prepare=source_jobs.write_files),
    "splits": Job(source_jobs.splits, sources=("split at 110", "split at 310", "one by one"), is_keyed=False),
    "hybrid-first": Job(source_jobs.hybrid_first, sources=("hybrid",), is_keyed=False, prepare=source_jobs.write_files),
    "hybrid-second": Job(
        source_jobs.hybrid_second, sources=("hybrid",), is_keyed=False, prepare=source_jobs.write_files
    ),
    "replayed": Job(source_jobs.replayed, sources=("replayed",), is_keyed=False),
    "asynchronous": Job(source_jobs.asynchronous, sources=("feed", "with watermarks"), is_keyed=False),
    "file-sinks": Job(source_jobs.file_sinks, is_keyed=False, outcome=source_jobs.written_files),
    "sinks": Job(source_jobs.sinks, is_keyed=False, counts_first=False),
    "database-sink": Job(
        source_jobs.database_sink, is_keyed=False, prepare=source_jobs.make_database, outcome=source_jobs.written_rows
    ),
    "kafka": Job(
        source_jobs.kafka, sources=("kafka",), is_keyed=False, needs="confluent_kafka", around=source_jobs.broker
    ),
    "gate": Job(  # takes no savepoints
        gate_job.gate,
        sources=("gate",),
        is_keyed=False,
        around=gate_job.producers,
        takes_checkpoint=True,
        options={**CHECKPOINTS, **gate_job.OPTIONS},
        options_of_others={**gate_job.SELDOM, **gate_job.OPTIONS},
    ),
    "in-flight": Job(
        source_jobs.in_flight,
        sources=(*source_jobs.IN_FLIGHT, "columns"),
        is_keyed=False,
        counts_first=False,
        takes_checkpoint=True,
        options={**CHECKPOINTS, "execution.checkpointing.unaligned.enabled": "true"},
    ),
}


MAIN_PROGRAMS: Final = ("states", "in-flight")
"""What ``main_program.py`` can be."""


def names() -> list[tuple[str, str]]:
    """Return pairs of a program and a state back end, each with a stored savepoint."""
    found = [
        (name, backend)
        for name, job in JOBS.items()
        for backend in (("hashmap", "rocksdb") if job.is_keyed else ("hashmap",))
    ]
    return [each for each in found if each != ("incremental", "hashmap")]


@contextmanager
def at_work(folder: Path) -> Iterator[None]:
    """Run jobs in this process, with the secret and with ``folder`` as their working directory; put all back at the
    end.
    """
    secret = folder / "secret"
    secret.write_text(f"{SECRET}\n", encoding="ascii")
    secret.chmod(0o600)
    work = folder / "work"
    work.mkdir(exist_ok=True)
    with patch.dict(os.environ, {"FLOWLET_LOCAL": "inprocess", "FLOWLET_SECRET_FILE": str(secret)}), chdir(work):
        yield


def run_main_program(kind: str, step: str, folder: Path, *savepoint: str) -> Any:
    """Return the output of ``main_program.py``, which runs in a process of its own."""
    root = Path(__file__).parents[2]
    command = [sys.executable, "-m", "tests.savepoints.main_program", kind, step, str(folder), *savepoint]
    environment = {**os.environ, "PYTHONPATH": str(root)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def started(
    name: str, backend: str, *, former: Path | None = None, checkpoints: Path | None = None, parallelism: int = 1
) -> JobClient:
    """The job, which runs; ``former``: the savepoint that it starts from."""
    job = JOBS[name]
    options = {"state.backend.type": backend, "execution.checkpointing.savepoint-dir": "/nowhere"}
    options |= {"pipeline.max-parallelism": "128", "restart-strategy.type": "none"}
    if checkpoints is None:
        options |= job.options_of_others
    else:
        options |= {**job.options, "execution.checkpointing.dir": str(checkpoints)}
    if former is not None:
        options["execution.state-recovery.path"] = str(former)
    env = StreamExecutionEnvironment.get_execution_environment() if STAGE.environment is None else STAGE.environment()
    env.set_parallelism(parallelism).configure(Configuration.from_dict(options))
    job.build(env)
    return env.execute_async(name)


def run_to_its_end(name: str, backend: str, former: Path | None = None, parallelism: int = 1) -> list[str]:
    """The results of a run without a pause; ``former``: the savepoint that it starts from."""
    STAGE.reset()
    JOBS[name].prepare()
    with JOBS[name].around(True):
        started(name, backend, former=former, parallelism=parallelism).get_job_execution_result().result()
    return sorted([*STAGE.results, *JOBS[name].outcome()])


def run_to_the_savepoint(name: str, backend: str, folder: Path) -> tuple[Path, list[str]]:
    """Stop a job half-way; returns the savepoint, or the retained checkpoint, below ``folder``, and the results until
    then.
    """
    STAGE.reset(is_making=True)
    job = JOBS[name]
    job.prepare()
    with job.around(False):
        client = started(name, backend, checkpoints=folder / "checkpoints" if job.takes_checkpoint else None)
        spin_until(lambda: STAGE.halves >= set(job.sources) and all_run(client), f"the halves of {job.sources}")
        if job.takes_checkpoint:
            # One that is begun behind the halves is complete when the next one begins; before, a cancellation may
            # discard it.
            newest = max(_checkpoints(folder), default=0)
            spin_until(lambda: max(_checkpoints(folder), default=0) >= newest + 2, "a checkpoint behind the halves")
            client.cancel().result()
            spin_until(lambda: client.get_job_status().result() is JobStatus.CANCELED, "the end of the job")
            spin_until(lambda: len(_checkpoints(folder)) == 1, "the removal of the checkpoint that was cancelled")
            (found,) = folder.glob("checkpoints/*/chk-*")
        else:
            found = Path(client.stop_with_savepoint(False, str(folder)).result())  # PyFlink's signature
    return found, sorted(STAGE.results)


def _checkpoints(folder: Path) -> list[int]:
    """Return the numbers of all checkpoints, complete or not."""
    return [int(each.name.removeprefix("chk-")) for each in folder.glob("checkpoints/*/chk-*")]


def described(state: SavedState) -> list[str]:
    """Return the lines that ``flowlet.state_reader`` shows of a savepoint, without the times at which it was
    written.
    """
    found = []
    for operator in state.operators():
        uid = operator.uid
        found.append(
            f"{uid}: {operator.parallelism}/{operator.max_parallelism}, {operator.num_timers} timers, {operator.states}"
        )
        if uid is None:
            continue
        for each in operator.states:
            if each.kind == "position":
                continue  # its text describes internal objects
            found += [f"{uid}, {each.name}: {row}" for row in _rows(state.table(uid, each.name).to_pylist())]
        if operator.num_timers:
            found += [f"{uid}, timer: {row}" for row in _rows(state.timers(uid).to_pylist())]
    return found


def _rows(rows: list[dict[str, Any]]) -> list[str]:
    for row in rows:
        row.pop("last_used_ms", None)
    return sorted(str(row) for row in rows)
