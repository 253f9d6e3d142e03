"""A job is stopped with a savepoint in the middle of its data, and another one goes on from it with as many, more or
fewer subtasks.
"""

import importlib
import shutil
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from flowlet.common import Configuration
from flowlet.common.job_client import JobClient
from flowlet.common.job_status import JobStatus
from flowlet.common.typeinfo import Types
from flowlet.datastream import CloseableIterator, KeyedProcessFunction, RuntimeContext
from flowlet.datastream.state import ValueStateDescriptor
from flowlet.errors import JobExecutionError, SavepointError
from flowlet.former_names import FIRST_NAMES, RENAMED, present_name
from flowlet.state_reader import read_state
from flowlet.storage.checkpoint_storage import SavepointStorage
from flowlet.storage.manifest import manifest_key
from flowlet.testing.mini_cluster import MiniCluster
from tests.flowlet.former_places import FORMER_PLACE, under_former_names
from tests.frozen.pickled_names import names_in
from tests.frozen.test_state_names import STATE_NAMES
from tests.integration import savepoint_programs as programs
from tests.waiting import all_run, spin_until

pytestmark = pytest.mark.slow

PARALLELISMS = (1, 2, 3, 5)
QUICK = [("process", 2, 3), ("flat_map", 2, 3), ("files", 2, 1), ("async", 1, 2), ("broadcast", 2, 5), ("sum", 3, 2)]
MATRIX = [(kind, former, now) for kind in programs.PROGRAMS for former in (2, 3) for now in PARALLELISMS]


@pytest.fixture
def cluster() -> Iterator[MiniCluster]:
    with MiniCluster(num_task_managers=2, slots_per_task_manager=3) as cluster:
        yield cluster


@pytest.fixture(autouse=True)
def folder(tmp_path: Path) -> Path:
    programs.reset()
    files = tmp_path / "files"
    files.mkdir()
    programs.write_files(files)
    return tmp_path


def started(
    cluster: MiniCluster, folder: Path, kind: str, parallelism: int, savepoint: str = "", **options: str
) -> JobClient:
    env = cluster.environment().set_parallelism(parallelism)
    settings = {"execution.checkpointing.savepoint-dir": str(folder / "savepoints"), **options}
    if savepoint:
        settings["execution.state-recovery.path"] = savepoint
    env.configure(Configuration.from_dict(settings))
    build, _ = programs.PROGRAMS[kind]
    programs.keep(build(env, folder / "files"))
    return env.execute_async(kind)


def suspended(cluster: MiniCluster, folder: Path, kind: str, parallelism: int, **options: str) -> str:
    """Stop the job once it has given results."""
    job = started(cluster, folder, kind, parallelism, **options)
    spin_until(lambda: programs.num_seen() >= 20 and all_run(job), "some results")
    path = job.stop_with_savepoint(False).result()
    assert {FIRST_NAMES.get(name, name) for name in our_names_in(path)} <= {*STATE_NAMES.read(), FORMER_PLACE}, (
        "python -m tests.frozen --write cannot find these: add them by hand"
    )
    assert job.get_job_status().result() is JobStatus.FINISHED
    assert len(programs.results) < programs.NUM_RECORDS, "there is something left to do"
    return path


def our_names_in(path: str) -> set[str]:
    """The names of ours that a savepoint has; ``FORMER_PLACE`` stands for all in it."""
    names = {
        name
        for file in Path(path).iterdir()
        for name in names_in(file.read_bytes())
        if name.startswith(("flowlet.", "netstack."))
    }
    return {FORMER_PLACE if name.startswith(f"{FORMER_PLACE}:") else name for name in names}


def finished(job: JobClient) -> None:
    programs.go_on.set()
    job.get_job_execution_result().result()


def check_going_on(
    cluster: MiniCluster, folder: Path, kind: str, parallelism: int, savepoint: str, **options: str
) -> None:
    """Check that a job goes on from the savepoint of another to the right results."""
    finished(started(cluster, folder, kind, parallelism, savepoint, **options))

    _, is_right = programs.PROGRAMS[kind]
    assert is_right(), programs.results


@pytest.mark.parametrize(("kind", "former", "now"), QUICK)
def test_a_job_goes_on_from_the_savepoint_of_another(
    cluster: MiniCluster, folder: Path, kind: str, former: int, now: int
) -> None:
    """Each record counts once, timers fire once, and the rest of the source is read."""
    check_going_on(cluster, folder, kind, now, suspended(cluster, folder, kind, former))


def named_in_state(names: str) -> list[Any]:
    """Return classes and functions of ours by the last part of their names."""
    keys = [key for name in names.split() for key in STATE_NAMES.read() if key.endswith(f":{name}")]
    assert len(keys) == len(names.split())
    places = [present_name(*key.split(":")) for key in keys]
    return [getattr(importlib.import_module(module), name) for module, name in places]


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        ("process", "KeyedStateSnapshot StateDescription StateKind StateRows TypeForm KeyGroupTimers Timer"),
        ("files", "TextPosition FileSplit PositionWithRest KeptRecords"),
        ("sum", "KeyedStateSnapshot StateRows OperatorStateSnapshot OperatorStateRows Redistribution"),
        ("async", "Chunk"),
    ],
)
def test_a_savepoint_names_our_classes_as_they_were_called(
    cluster: MiniCluster, folder: Path, monkeypatch: pytest.MonkeyPatch, kind: str, names: str
) -> None:
    """A savepoint names our classes by former names if they have moved since then: a table has both names."""
    with under_former_names(*named_in_state(names)) as renamed:
        path = suspended(cluster, folder, kind, 2)
    assert FORMER_PLACE in our_names_in(path)

    for former, today in renamed.items():
        monkeypatch.setitem(RENAMED, former, today)
    check_going_on(cluster, folder, kind, 3, path)


@pytest.mark.long
@pytest.mark.parametrize(("kind", "former", "now"), MATRIX)
def test_each_kind_of_operator_goes_on_with_each_parallelism(
    cluster: MiniCluster, folder: Path, kind: str, former: int, now: int
) -> None:
    check_going_on(cluster, folder, kind, now, suspended(cluster, folder, kind, former))


def take(job: JobClient) -> str:
    spin_until(lambda: programs.num_seen() >= programs.HALF and all_run(job), "the first half")
    return job.trigger_savepoint().result()


def test_a_job_goes_on_while_and_after_a_savepoint_is_taken(cluster: MiniCluster, folder: Path) -> None:
    """A savepoint beside periodic checkpoints stays when the job has ended, and counts for nothing."""
    options = {"execution.checkpointing.interval": "20 ms", "execution.checkpointing.dir": str(folder / "checkpoints")}
    job = started(cluster, folder, "process", 2, **options)

    path = take(job)
    finished(job)

    assert programs.process_is_right()
    assert list((folder / "savepoints").iterdir()) == [Path(path)]
    programs.results.clear()
    finished(started(cluster, folder, "process", 3, path))
    assert sum(kind == "counted" for kind, *_ in programs.results) == programs.NUM_RECORDS - programs.HALF


def test_a_savepoint_of_a_job_with_unaligned_checkpoints_is_aligned(cluster: MiniCluster, folder: Path) -> None:
    options = {
        "execution.checkpointing.interval": "20 ms",
        "execution.checkpointing.dir": str(folder / "checkpoints"),
        "execution.checkpointing.unaligned.enabled": "true",
    }
    path = suspended(cluster, folder, "sum", 2, **options)

    assert cluster.target.secret is not None
    manifest = SavepointStorage(path, manifest_key(cluster.target.secret)).read_manifest()
    assert all(entry.channels is None for entry in manifest.subtasks)
    check_going_on(cluster, folder, "sum", 3, path)


def test_a_savepoint_that_was_moved_is_restored(cluster: MiniCluster, folder: Path) -> None:
    moved = shutil.move(suspended(cluster, folder, "process", 2), folder / "elsewhere")

    check_going_on(cluster, folder, "process", 2, str(moved))


def test_draining_fires_all_timers_of_event_time(cluster: MiniCluster, folder: Path) -> None:
    """Suspending fires no timers: a job that goes on fires them.  A job that starts from a drained one has no timers
    left.
    """
    job = started(cluster, folder, "process", 2)
    spin_until(lambda: programs.num_seen() >= programs.HALF and all_run(job), "the first half")

    path = job.stop_with_savepoint(True).result()

    kinds = Counter(kind for kind, *_ in programs.results)
    assert (kinds["counted"], kinds["timer"]) == (programs.HALF, programs.NUM_KEYS)
    programs.results.clear()
    finished(started(cluster, folder, "process", 2, path))
    assert programs.results == []


@pytest.mark.parametrize(
    ("kind", "former", "now"),
    [
        *(("process", *each) for each in (("rocksdb", "hashmap"), ("hashmap", "rocksdb"), ("incremental", "hashmap"))),
        ("sum", "incremental", "hashmap"),
        ("max", "hashmap", "rocksdb"),
        *(
            pytest.param(kind, *each, marks=pytest.mark.long)
            for kind in ("reduce", "count", "arrow")
            for each in (("rocksdb", "hashmap"), ("hashmap", "rocksdb"), ("rocksdb", "rocksdb"))
        ),
    ],
)
def test_the_state_back_end_may_change(cluster: MiniCluster, folder: Path, kind: str, former: str, now: str) -> None:
    """A savepoint is never incremental, even if the checkpoints of its job are."""
    pytest.importorskip("rocksdict")
    periodic = {
        "execution.checkpointing.interval": "20 ms",
        "execution.checkpointing.dir": str(folder / "checkpoints"),
        "execution.checkpointing.incremental": "true",
    }
    options = {"state.backend.type": "hashmap" if former == "hashmap" else "rocksdb"} | (
        periodic if former == "incremental" else {}
    )
    path = suspended(cluster, folder, kind, 2, **options)

    check_going_on(cluster, folder, kind, 3, path, **{"state.backend.type": now})


def test_a_directory_that_cannot_be_written_leaves_the_job_alone(cluster: MiniCluster, folder: Path) -> None:
    """No task hears of a directory that cannot be written, also if the job is to be stopped."""
    (folder / "file").write_text("no directory")
    job = started(cluster, folder, "sum", 2)
    spin_until(lambda: all_run(job), "the start")

    for future in (job.trigger_savepoint(str(folder / "file")), job.stop_with_savepoint(True, str(folder / "file"))):
        with pytest.raises(SavepointError, match="cannot be written"):
            future.result()
    finished(job)

    assert programs.counts_are_right()


def changed(
    cluster: MiniCluster, path: str, *, uid: str = "counts", more: bool = False, ignores_unclaimed: bool = False
) -> JobClient:
    """The program ``process`` with another uid, or with one more operator with state."""
    env = cluster.environment().set_parallelism(2)
    options = {"execution.state-recovery.ignore-unclaimed-state": "true"} if ignores_unclaimed else {}
    env.configure(Configuration.from_dict({"execution.state-recovery.path": path, **options}))
    counted = programs.keyed(env).process(programs.CountInEachState()).uid(uid)
    if more:
        counted = counted.key_by(lambda found: found[1], Types.STRING()).process(programs.PassOn()).uid("new")
    programs.keep(counted)
    return env.execute_async("changed")


def test_an_operator_may_be_added(cluster: MiniCluster, folder: Path) -> None:
    """An added operator begins without state."""
    finished(changed(cluster, suspended(cluster, folder, "process", 2), more=True))

    assert programs.process_is_right()


def test_an_operator_with_another_uid_is_refused_with_both(cluster: MiniCluster, folder: Path) -> None:
    """The error names both uids and says what to do; an operator whose state is not wanted begins anew."""
    path = suspended(cluster, folder, "process", 2)

    with pytest.raises(
        JobExecutionError,
        match=r"'KeyedProcess' \(uid 'counts', .*'KeyedProcess' \(uid 'totals', .*uid\('counts'\) again",
    ):
        changed(cluster, path, uid="totals").get_job_execution_result().result()
    programs.results.clear()
    finished(changed(cluster, path, uid="totals", ignores_unclaimed=True))

    assert min(count for kind, _, count in programs.results if kind == "counted") == 1
    assert sum(kind == "counted" for kind, *_ in programs.results) < programs.NUM_RECORDS


def test_an_operator_that_was_removed_is_refused(cluster: MiniCluster, folder: Path) -> None:
    path = suspended(cluster, folder, "process", 2)
    env = cluster.environment().set_parallelism(2)
    env.configure(Configuration.from_dict({"execution.state-recovery.path": path}))
    programs.keep(programs.numbers(env))

    with pytest.raises(
        JobExecutionError, match=r"does not have: 'KeyedProcess' \(uid 'counts'.*--allow-non-restored-state"
    ):
        env.execute_async("smaller").get_job_execution_result().result()


def test_the_reader_shows_what_is_in_a_savepoint(cluster: MiniCluster, folder: Path) -> None:
    """The reader shows each kind of state, as tables with the declared types."""
    job = started(cluster, folder, "process", 2)
    found = read_state(take(job), secret=cluster.target.secret)
    job.cancel().result()

    by_uid = {each.uid: each for each in found.operators()}
    assert [state.name for state in by_uid["counts"].states] == ["value", "list", "map", "reducing", "aggregating"]
    assert by_uid["counts"].num_timers == programs.NUM_KEYS
    sizes = Counter(map(programs.key_of, range(programs.HALF)))
    value = found.keyed_state("counts", "value")
    assert value.schema == pa.schema([("key", pa.string()), ("value", pa.int64())])
    assert dict(zip(*value.to_pydict().values(), strict=True)) == sizes
    lists = found.keyed_state("counts", "list").to_pylist()
    assert {row["key"]: row["value"] for row in lists} == {key: list(range(1, size + 1)) for key, size in sizes.items()}
    entries = found.keyed_state("counts", "map")
    assert entries.schema == pa.schema([("key", pa.string()), ("map_key", pa.string()), ("value", pa.int64())])
    assert entries.num_rows == programs.HALF
    for name in ("reducing", "aggregating"):
        assert dict(zip(*found.keyed_state("counts", name).to_pydict().values(), strict=True)) == sizes
    assert set(found.timers("counts")["timestamp_ms"].to_pylist()) == {programs.AT_THE_END}
    assert found.list_state("numbers", "position")["element"].to_pylist() == [programs.HALF]


class KeepsALock(KeyedProcessFunction):
    """A function whose state cannot be written."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.state = runtime_context.get_state(ValueStateDescriptor("lock", Types.PICKLED_BYTE_ARRAY()))

    def process_element(self, value: tuple[str, int], ctx: KeyedProcessFunction.Context) -> Iterator[tuple[str, int]]:
        self.state.update(threading.Lock())
        yield value


def test_a_savepoint_that_fails_on_its_way_leaves_the_job_running(cluster: MiniCluster, folder: Path) -> None:
    """A failed savepoint leaves no files; periodic checkpoints would restart the job."""
    env = cluster.environment().set_parallelism(2).set_default_savepoint_directory(str(folder / "savepoints"))
    programs.keep(programs.keyed(env).process(KeepsALock()))
    job = env.execute_async("locks")

    with pytest.raises(SavepointError, match=r"KeyedProcess.*cannot be pickled.*cannot pickle '_thread.lock' object"):
        take(job)

    assert job.get_job_status().result() is JobStatus.RUNNING
    spin_until(lambda: not list((folder / "savepoints").iterdir()), "the removal of what was written")
    finished(job)
    assert programs.records_are_right()


@pytest.mark.parametrize("is_periodic", [False, True])
def test_a_client_that_reads_the_results_gets_each_once_over_both_jobs(
    cluster: MiniCluster, folder: Path, is_periodic: bool
) -> None:
    """The client must go on reading: the savepoint waits until the client has the results in front of it."""

    def results_of(savepoint: str) -> CloseableIterator:
        env = cluster.environment().set_parallelism(2)
        env.configure(Configuration.from_dict({"execution.checkpointing.savepoint-dir": str(folder / "savepoints")}))
        if savepoint:
            env.configure(Configuration.from_dict({"execution.state-recovery.path": savepoint}))
        if is_periodic:
            env.configure(Configuration.from_dict({"execution.checkpointing.dir": str(folder / "checkpoints")}))
            env.enable_checkpointing(50)
        results = programs.keyed(env).sum(1).uid("sum").execute_and_collect()
        assert isinstance(results, CloseableIterator)
        return results

    with results_of("") as results:
        first = [next(results) for _ in range(20)]
        stopped = results.job_client.stop_with_savepoint(False)
        first += results
        path = stopped.result()
    programs.go_on.set()
    with results_of(path) as results:
        second = list(results)

    assert 20 <= len(first) <= programs.HALF
    assert Counter(first + second) == programs.RUNNING_COUNTS
