"""``flowlet savepoint``, ``stop``, ``list`` and ``state`` against a cluster in this process."""

import json
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from flowlet.common import Configuration
from flowlet.common.job_client import JobClient
from flowlet.common.job_status import JobStatus
from flowlet.testing.mini_cluster import MiniCluster
from tests.flowlet.cli.test_main import Cli
from tests.integration import savepoint_programs as programs
from tests.waiting import spin_until

pytestmark = pytest.mark.slow


@pytest.fixture
def cluster() -> Iterator[MiniCluster]:
    programs.reset()
    with MiniCluster(num_task_managers=1, slots_per_task_manager=2) as cluster:
        yield cluster


@pytest.fixture
def cli(cluster: MiniCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Cli:
    return Cli(cluster, tmp_path, capsys)


@pytest.fixture
def job(cluster: MiniCluster, tmp_path: Path) -> JobClient:
    """Start a job; it has seen the first half."""
    env = cluster.environment()
    env.configure(Configuration.from_dict({"execution.checkpointing.savepoint-dir": str(tmp_path / "savepoints")}))
    programs.keep(programs.process(env, tmp_path))
    job = env.execute_async("counting")
    spin_until(lambda: len(programs.results) == programs.HALF, "the first half")
    return job


def savepoint_in(out: str) -> str:
    (path,) = out.splitlines()
    assert (Path(path) / "_metadata").exists()
    return path


def test_a_savepoint_is_taken_and_its_place_is_printed(
    cli: Cli, job: JobClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The place is below the job's directory or another one, which may be relative; the job goes on."""
    monkeypatch.chdir(tmp_path)
    job_id = str(job.get_job_id())

    code, out, err = cli("savepoint", job_id[:6])
    other_code, other_out, _ = cli("savepoint", job_id, "other")

    assert (code, err, other_code) == (0, "", 0)
    assert Path(savepoint_in(out)).parent == tmp_path / "savepoints"
    assert Path(savepoint_in(other_out)).parent == tmp_path / "other"
    assert job.get_job_status().result() is JobStatus.RUNNING


@pytest.mark.parametrize("drain", [False, True])
def test_a_job_is_stopped(cli: Cli, job: JobClient, tmp_path: Path, drain: bool) -> None:
    options = ["--drain"] if drain else []

    code, out, _ = cli("stop", *options, "-p", str(tmp_path / "here"), str(job.get_job_id()))

    assert code == 0
    assert Path(savepoint_in(out)).parent == tmp_path / "here"
    assert job.get_job_status().result() is JobStatus.FINISHED
    assert sum(kind == "timer" for kind, *_ in programs.results) == (programs.NUM_KEYS if drain else 0)
    code, _, error = cli("stop", str(job.get_job_id()))
    assert (code, error) == (2, "flowlet: the job is FINISHED\n")


def test_what_has_ended_is_listed_if_that_is_wanted(cli: Cli, job: JobClient) -> None:
    running = cli("list")[1], cli("list", "-r")[1]
    job.cancel().result()
    spin_until(lambda: job.get_job_status().result() is JobStatus.CANCELED, "the end")

    ended = cli("list")[1], cli("list", "-r")[1], cli("list", "-a")[1]

    assert all("counting" in each for each in running)
    assert ["counting" in each for each in ended] == [False, False, True]


class State:
    """``flowlet state`` of one savepoint."""

    def __init__(self, cli: Cli, path: str) -> None:
        self._cli, self._path = cli, path

    def __call__(self, *arguments: str) -> tuple[int, str, str]:
        secret_file = self._cli.variables["FLOWLET_SECRET_FILE"]
        return self._cli.alone("state", self._path, *arguments, "--secret-file", secret_file)


@pytest.fixture
def state(cli: Cli, job: JobClient) -> State:
    return State(cli, savepoint_in(cli("savepoint", str(job.get_job_id()))[1]))


def test_the_operators_and_states_of_a_savepoint_are_shown(state: State) -> None:
    code, out, _ = state()

    lines = out.splitlines()
    assert code == 0
    assert lines[0].startswith("savepoint 1 of job counting")
    assert lines[1].split() == ["uid", "operator", "parallelism", "bytes", "state", "kind", "type", "entries"]
    (counts,) = [line for line in lines if line.startswith("counts")]
    assert counts.split()[1:3] == ["KeyedProcess", "2/128"]
    kinds = "ValueState", "MapState", "timers"
    assert [line.split()[-1] for line in lines if any(kind in line for kind in kinds)] == ["7", "7", "7"]


@pytest.mark.parametrize("output_format", ["table", "csv", "json", "arrow"])
def test_entries_of_a_state_in_every_format(state: State, output_format: str, tmp_path: Path) -> None:
    file = tmp_path / "entries"
    options = ["--output", str(file)] if output_format == "arrow" else []

    code, out, error = state("--operator", "counts", "--state", "value", "--format", output_format, *options)

    assert (code, error) == (0, "")
    expected = {programs.key_of(each): programs.HALF // programs.NUM_KEYS for each in range(programs.NUM_KEYS)}
    match output_format:
        case "table":
            found = {line[:5]: int(line[5:]) for line in out.splitlines()[1:]}
        case "csv":
            found = {line.split(",")[0]: int(line.split(",")[1]) for line in out.splitlines()[1:]}
        case "json":
            found = {row["key"]: row["value"] for row in map(json.loads, out.splitlines())}
        case _:
            with pa.memory_map(str(file)) as mapped:
                found = dict(zip(*pa.ipc.open_file(mapped).read_all().to_pydict().values(), strict=True))
    assert found.keys() == expected.keys()
    assert sum(found.values()) == programs.HALF


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("--operator", "counts", "--state", "valeu"),
            "has no such state 'valeu'; its states are 'value' (ValueState), 'list'",
        ),
        (
            ("--operator", "cuonts", "--state", "value"),
            "there is no operator 'cuonts'; the operators are 'numbers', 'counts'",
        ),
        (("--operator", "counts"), "--operator and --state go together"),
        (("--format", "csv"), "--format and --output are for the entries of one state"),
        (("--operator", "counts", "--state", "value", "--format", "xml"), "it must be one of table, csv, json, arrow"),
        (("--operator", "counts", "--state", "value", "--format", "arrow"), "--format arrow needs a file"),
    ],
)
def test_what_is_wrong_is_one_line(state: State, arguments: tuple[str, ...], message: str) -> None:
    code, out, error = state(*arguments)

    assert (code, out) == (2, "")
    assert message in error
    assert len(error.splitlines()) == 1
