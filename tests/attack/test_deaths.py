"""Producers, TaskManagers and clients that are killed or stopped in the middle: everybody else is told in time, and
goes on.
"""

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import psutil
import pytest

from flowlet.ingest import GateClient, GateError, PartitionOffer, PartitionWriter
from tests.attack.arena import Arena, within
from tests.attack.test_hostile_producers import TYPES, victim
from tests.attack.test_misdeeds import LOST

TOLD_S: Final = 30.0
_PRODUCER: Final = """
import sys
from flowlet.ingest import PartitionOffer, open_gate
gate = open_gate("victim", jobmanager=sys.argv[1], secret_file=sys.argv[2], timeout_s=30)
with gate.open_partition(PartitionOffer("doomed", int(sys.argv[3]))) as writer:
    print("open", flush=True)
    for number in range(10**9):
        writer.write_records([("doomed", number)])
        if number == 50:
            print("pushing", flush=True)
"""
_CLIENT: Final = """
import sys
from flowlet.common import Configuration
from flowlet.datastream import StreamExecutionEnvironment
from tests.integration.user_job import EndlessSource
from flowlet.common import WatermarkStrategy
env = StreamExecutionEnvironment.get_execution_environment(Configuration.from_dict({"flowlet.jobmanager": sys.argv[1]}))
numbers = env.set_parallelism(2).from_source(EndlessSource(), WatermarkStrategy.no_watermarks(), "numbers")
for number, _ in enumerate(numbers.execute_and_collect("abandoned")):
    if number == 5000:
        print("reading", flush=True)
"""


@contextmanager
def program(arena: Arena, code: str, *arguments: str) -> Iterator["subprocess.Popen[str]"]:
    """Run a user's process; kill it at the end."""
    command = [sys.executable, "-c", code, arena.address, *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as popen:
        try:
            yield popen
        finally:
            with suppress(psutil.Error):
                psutil.Process(popen.pid).resume()
            popen.kill()


def said(popen: "subprocess.Popen[str]", word: str) -> None:
    assert popen.stdout is not None
    for line in popen.stdout:
        if line.strip() == word:
            return
    raise AssertionError(f"the program never said {word!r}")


def kill_producers(arena: Arena, num: int) -> None:
    """Kill producers (``kill -9``) in the middle of a partition: the attempt is aborted, the gate goes on."""
    with arena.attack(f"{num} producers are killed in the middle") as it, victim(arena, *TYPES["pair"][:2]) as job:
        for number in range(num):
            with program(arena, _PRODUCER, str(arena.secret_file), str(number)) as popen:
                said(popen, "pushing" if number % 2 else "open")
                popen.send_signal(signal.SIGKILL)
        seconds = within(10, lambda: job.num_aborted >= num, "the killed attempts are counted")
        assert job.check(10) is None
        doomed = [record for record in job.seen if record[0] == "doomed"]
        it.outcome(f"aborted after {seconds:.1f} s, {len(doomed)} of their records were processed")


def test_producer_stopped(arena: Arena) -> None:
    """Stop a producer: it holds up no other producer."""
    with arena.attack("a producer is stopped") as it, victim(arena, *TYPES["pair"][:2]) as job:
        with program(arena, _PRODUCER, str(arena.secret_file), "1") as popen:
            said(popen, "pushing")
            popen.send_signal(signal.SIGSTOP)
            answers = [job.check(10) for _ in range(3)]
        assert answers == [None] * 3
        it.outcome("others push on")


def write_for(seconds: float, writer: PartitionWriter) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        writer.write_records([("a", 1)] * 10)
        time.sleep(0.02)


@pytest.mark.parametrize("signal_number", [signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM], ids=lambda each: each.name)
def test_task_manager(arena: Arena, signal_number: signal.Signals) -> None:
    """Kill or stop a TaskManager: its jobs, and producers that write or finish, are told why."""
    name = f"a TaskManager gets {signal_number.name}"
    with arena.attack(name, may_end=LOST, end_s=TOLD_S) as it:
        with victim(arena, *TYPES["pair"][:2]) as job:
            process = arena.task_managers[0].process
            try:
                with GateClient(job.description, timeout_s=10).open_partition(PartitionOffer("told", 1)) as writer:
                    writer.write_records([("a", 1)])
                    began_s = time.monotonic()
                    process.send(signal_number)
                    with pytest.raises(GateError) as raised:
                        write_for(TOLD_S + 5, writer)
                    producer_s = time.monotonic() - began_s
                within(TOLD_S, lambda: job.error is not None, "the reader of the results is told")
                job_s = time.monotonic() - began_s
            finally:
                process.send(signal.SIGCONT)
        assert it.bystander is not None
        it.bystander.wait_failed(TOLD_S)
        it.outcome(f"producer told after {producer_s:.1f} s ({type(raised.value).__name__}), job after {job_s:.1f} s")
        assert max(producer_s, job_s) < TOLD_S


@pytest.mark.parametrize("signal_number", [signal.SIGKILL, signal.SIGTERM], ids=lambda each: each.name)
def test_client(arena: Arena, signal_number: signal.Signals) -> None:
    """Kill a client while it reads results: its job does not run for ever with nobody to read them."""
    with arena.attack(f"a client that reads results gets {signal_number.name}") as it:
        with program(arena, _CLIENT) as popen:
            said(popen, "reading")
            popen.send_signal(signal_number)
            popen.wait(20)
            seconds = within(
                TOLD_S, lambda: not is_running(arena, "abandoned"), "the job of a client that is gone ends"
            )
        it.outcome(f"its job ended after {seconds:.1f} s")


def is_running(arena: Arena, name: str) -> bool:
    from flowlet.client.remote import JobManagerApi, RemoteTarget

    host, _, port = arena.address.rpartition(":")
    client = RemoteTarget(host, int(port), Path(arena.secret_file)).open(0)
    try:
        jobs = client.call(JobManagerApi.list_jobs)
    finally:
        client.close()
    return any(
        each["name"] == name and each["state"] in ("CREATED", "RUNNING", "FAILING", "CANCELLING") for each in jobs
    )


def test_producers_killed(arena: Arena) -> None:
    kill_producers(arena, 4)


def test_job_manager_killed(arena: Arena) -> None:
    """Clients and TaskManagers are told when the JobManager is killed; a new JobManager serves."""
    with arena.attack("the JobManager gets SIGKILL", may_end=r".", end_s=TOLD_S + 10) as it:
        began_s = time.monotonic()
        arena.job_manager.send(signal.SIGKILL)
        assert it.bystander is not None
        told_s = it.bystander.wait_failed(TOLD_S)
        assert told_s is not None, f"the client was not told within {TOLD_S:.0f} s"
        it.outcome(f"client told after {told_s:.1f} s")
        assert time.monotonic() - began_s < TOLD_S
        arena.restart()
