"""A program is run, savepointed, stopped and run again from the command line, on a cluster of real processes."""

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from bench.cluster import Cluster
from tests.integration.jobs import cluster_fixture
from tests.waiting import PATIENCE_S, spin_until

pytestmark = [pytest.mark.slow, pytest.mark.long]

NUM_RECORDS, NUM_KEYS = 3_000, 7
PROGRAM = """
import sys
import time
from pathlib import Path

from flowlet.common.typeinfo import Types
from flowlet.datastream import (
    CheckpointedFunction, KeyedProcessFunction, MapFunction, SourceFunction, StreamExecutionEnvironment
)
from flowlet.datastream.connectors import DiscardingSink
from flowlet.datastream.state import ListStateDescriptor, ValueStateDescriptor

folder, uid = Path(sys.argv[1]), sys.argv[2]
PAIR = Types.TUPLE([Types.STRING(), Types.LONG()])


class Numbers(SourceFunction, CheckpointedFunction):
    def initialize_state(self, context):
        self.state = context.get_operator_state_store().get_list_state(ListStateDescriptor("next", Types.LONG()))
        self.next = max(self.state, default=0)

    def snapshot_state(self, context):
        self.state.update([self.next])

    def run(self, ctx):
        while self.next < NUM_RECORDS and not ctx.is_cancelled:
            if self.next == NUM_RECORDS // 2 and not (folder / "hurry").exists():
                time.sleep(0.01)
                continue
            with ctx.get_checkpoint_lock():
                ctx.collect((f"key {self.next % NUM_KEYS}", 1))
                self.next += 1


class Count(KeyedProcessFunction):
    def open(self, runtime_context):
        self.count = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))

    def process_element(self, value, ctx):
        self.count.update((self.count.value() or 0) + 1)
        if self.count.value() == 1:
            ctx.timer_service().register_event_time_timer(10**15)
        yield value[0], self.count.value()

    def on_timer(self, timestamp, ctx):
        yield "timer of " + ctx.get_current_key(), self.count.value()


class Append(MapFunction):
    def open(self, runtime_context):
        name = f"results-{time.time_ns()}-{runtime_context.get_index_of_this_subtask()}"
        self.file = (folder / name).open("w", buffering=1)

    def map(self, value):
        self.file.write(f"{value[0]},{value[1]}\\n")
        return value

    def close(self):
        self.file.close()


env = StreamExecutionEnvironment.get_execution_environment()
keyed = env.add_source(Numbers(), type_info=PAIR).uid("numbers").key_by(lambda pair: pair[0], Types.STRING())
counted = keyed.process(Count(), PAIR).uid(uid)
counted.map(Append(), PAIR).uid("append").sink_to(DiscardingSink())
env.execute("counting")
""".replace("NUM_RECORDS", str(NUM_RECORDS)).replace("NUM_KEYS", str(NUM_KEYS))


cluster = cluster_fixture(3)


class Shell:
    """Types commands."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self._environment = os.environ | {
            "FLOWLET_JOBMANAGER": cluster.address,
            "FLOWLET_SECRET_FILE": str(cluster.secret_file),
        }
        self._folder = folder
        self.program = folder / "program.py"
        self.program.write_text(PROGRAM)

    def __call__(self, *arguments: str, code: int = 0) -> str:
        """Run a command; return its standard output, or the standard error of a failure."""
        command = [sys.executable, "-m", "flowlet", *arguments]
        done = subprocess.run(
            command, env=self._environment, capture_output=True, text=True, timeout=PATIENCE_S, check=False
        )
        assert done.returncode == code, done
        return (done.stderr if code else done.stdout).strip()

    def run(self, *options: str, uid: str = "count", code: int = 0) -> str:
        return self("run", *options, str(self.program), str(self._folder), uid, code=code)

    def results(self) -> Counter[str]:
        return Counter(line for file in self._folder.glob("results-*") for line in file.read_text().splitlines())


def right_results() -> Counter[str]:
    sizes = Counter(f"key {each % NUM_KEYS}" for each in range(NUM_RECORDS))
    counted = Counter(f"{key},{count}" for key, size in sizes.items() for count in range(1, size + 1))
    return counted + Counter(f"timer of {key},{size}" for key, size in sizes.items())


def test_a_program_goes_on_from_its_savepoint(cluster: Cluster, tmp_path: Path) -> None:
    """A detached program goes on with one and then three subtasks; with another uid it is refused in one line that
    names both.
    """
    shell = Shell(cluster, tmp_path)
    savepoints = tmp_path / "savepoints"

    submitted = shell.run("-d", "-p", "1", "-D", f"execution.checkpointing.savepoint-dir={savepoints}")
    job_id = submitted.split()[-1]
    assert submitted == f"Job has been submitted with JobID {job_id}"
    spin_until(lambda: len(shell.results()) > 50, "some results")
    assert "counting" in shell("list", "-r")
    taken = shell("savepoint", job_id[:8])
    stopped = shell("stop", job_id[:8])
    assert {Path(taken).parent, Path(stopped).parent} == {savepoints}
    assert f"{job_id}  counting  FINISHED" in shell("list", "-a")
    before = shell.results()
    assert not any(line.startswith("timer") for line in before)
    entries = shell("state", stopped, "--operator", "count", "--state", "count", "--format", "csv").splitlines()[1:]
    assert sum(int(line.split(",")[1]) for line in entries) == before.total()

    refused = shell.run("-s", stopped, uid="total", code=1)
    assert "uid 'count'" in refused
    assert "uid 'total'" in refused
    (tmp_path / "hurry").touch()
    shell.run("-s", stopped, "-p", "3")

    assert shell.results() == right_results()
    unknown = shell("cancel", "zz", code=2)
    assert unknown == "flowlet: no job's id begins with 'zz'"
