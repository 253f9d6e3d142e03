"""How long a suspended task takes to run once there is data for it, and what an idle one costs.

Side:       any.
Wake-ups:   a one-input ``StreamTask`` has nothing to do: its default action is suspended, its thread is parked.  A
            record is flushed to it (a) by another thread of its process, (b) by another process, over TCP.  The
            producer pauses between two records, so that the task parks again.  The figure is the median time from "the
            data is at the gate" (``last_activity_ns`` of the channel) to "the default action runs"; other percentiles,
            and the time from "sent" to "the default action runs", are in the details.  Switch interval and garbage
            collector are set as in a TaskManager.
Idle:       such tasks that never get a record.  The figure is the CPU time of their threads per task and hour.  The
            details say how often a thread ran at all: the mailbox parks in slices of one second (Flink's), so about
            once per second.
Proof:      every record arrives once, in order; a sample counts only if the task had parked since the last one and its
            data came before the default action began; no wake-up was found by the periodic look instead of the wake-up
            itself; an idle task runs neither a mail nor its default action.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median
from subprocess import PIPE
from typing import Any, Final

from bench.cluster import Process
from bench.percentiles import percentile
from bench.report import Result
from bench.wakeup_task import PARTITION, TIMEOUT_S, ProbedTask, Sample, network, produce, task_manager_settings
from netstack import ConnectionID

NUM_WAKEUPS: Final = 4000
NUM_SKIPPED: Final = 200  # the first ones warm up
QUICK_WAKEUPS: Final = 300
PAUSE_US: Final = 1000  # not measured; several times as long as the task needs to park again
MIN_PARKED_SHARE: Final = 0.5  # with fewer parked samples the figure is no wake-up time
AIM_US: Final = 100.0
NUM_IDLE_TASKS: Final = 50
QUICK_IDLE_TASKS: Final = 8
IDLE_S: Final = 20.0
QUICK_IDLE_S: Final = 1.5
SETTLE_S: Final = 0.5
SECONDS_PER_HOUR: Final = 3600
PERCENTILES: Final = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "max": 1.0}

# ---------------------------------------------------------------- wake-ups


def wake_by_thread(num_records: int) -> list[Sample]:
    """Wake the task by a thread of this process."""
    with task_manager_settings(), network("wakeup") as stack:
        partition = stack.create_partition(PARTITION)
        try:
            return run_task(
                ProbedTask(stack, None), num_records, lambda: produce(partition, num_records, PAUSE_US / 1e6)
            )
        finally:
            partition.close()


def wake_by_process(num_records: int) -> list[Sample]:
    """Wake the task by another process, over one TCP connection on the loopback interface."""
    arguments = [sys.executable, "-m", "bench.wakeup_task", str(num_records), str(PAUSE_US)]
    with (
        tempfile.TemporaryDirectory() as folder,
        Process(arguments, log=Path(folder) / "producer.log", cwd=Path(__file__).parent.parent, stdin=PIPE) as producer,
        task_manager_settings(),
        network("wakeup") as stack,
    ):
        port = int(producer.wait_for_line(r"^listening on port (\d+)$").group(1))
        return run_task(
            ProbedTask(stack, ConnectionID("127.0.0.1", port)), num_records, lambda: finish(producer, num_records)
        )


def finish(producer: Process, num_records: int) -> None:
    """Let the producer begin, and wait until it has ended."""
    producer.close_stdin()
    code = producer.wait(TIMEOUT_S + num_records * 5 * PAUSE_US / 1e6)
    assert code == 0, producer.stderr


def run_task(task: ProbedTask, num_records: int, feed: Callable[[], None]) -> list[Sample]:
    """Run a task to its end, fed once it is suspended; return its samples."""
    try:
        task.start()
        feed()
        task.join()
    finally:
        task.stop()
    assert len(task.samples) == num_records, f"{num_records - len(task.samples)} records were lost"
    assert task.mailbox.statistics().num_rescued_wakeups == 0, "a wake-up was lost, the periodic look found the mail"
    return task.samples


def evaluate(samples: Sequence[Sample], num_skipped: int) -> dict[str, Any]:
    """Return the latencies in us of the samples before which the task had parked, the first ones left out.

    Raises:
        AssertionError: the clock readings are not in order, or the task was seldom parked.
    """
    pairs = list(pairwise(samples))[num_skipped:]
    parked = [after for before, after in pairs if after[3] > before[3] and after[0] <= after[1]]
    assert all(at_gate <= action for _, at_gate, action, _ in parked), "the default action ran before the data came"
    assert len(parked) >= MIN_PARKED_SHARE * len(pairs), (
        f"the task was parked for {len(parked)} of {len(pairs)} records only"
    )
    return {
        **in_us("", (action - at_gate for _, at_gate, action, _ in parked)),
        **in_us("from_sent_", (action - sent for sent, _, action, _ in parked)),
        "num_wakeups": len(parked),
        "num_not_parked": len(pairs) - len(parked),
    }


def in_us(prefix: str, values_ns: Iterable[int]) -> dict[str, float]:
    """Return the percentiles."""
    ordered = sorted(values_ns)
    return {f"{prefix}{name}_us": percentile(ordered, share) / 1000 for name, share in PERCENTILES.items()}


# ---------------------------------------------------------------- idle


def rest(num_tasks: int, seconds: float) -> dict[str, Any]:
    """Measure how much ``num_tasks`` tasks without input use in ``seconds``."""
    with task_manager_settings(), network("idle") as stack:
        partition = stack.create_partition(PARTITION, num_tasks)
        tasks = [ProbedTask(stack, None, subpartition) for subpartition in range(num_tasks)]
        try:
            for task in tasks:
                task.start()
            time.sleep(SETTLE_S)
            return observe(tasks, seconds)
        finally:
            for task in tasks:
                task.stop()
            partition.release()
            partition.close()


def observe(tasks: Sequence[ProbedTask], seconds: float) -> dict[str, Any]:
    """Return CPU time and context switches of the tasks' threads while this one sleeps.

    Raises:
        AssertionError: a task did something.
    """
    done_before, switches_before = [work_done(task) for task in tasks], [num_switches(task) for task in tasks]
    cpu_before, process_before, start = [cpu_ns(task) for task in tasks], time.process_time_ns(), time.monotonic()
    time.sleep(seconds)
    elapsed_s, process_ns = time.monotonic() - start, time.process_time_ns() - process_before
    used_ns = [cpu_ns(task) - before for task, before in zip(tasks, cpu_before, strict=True)]
    switches = [num_switches(task) - before for task, before in zip(tasks, switches_before, strict=True)]
    assert [work_done(task) for task in tasks] == done_before, "an idle task did something"
    return {
        "cpu_s_per_task_and_hour": sum(used_ns) / 1e9 / len(tasks) / elapsed_s * SECONDS_PER_HOUR,
        "cpu_s_per_task_and_hour_max": max(used_ns) / 1e9 / elapsed_s * SECONDS_PER_HOUR,
        "process_percent_of_a_core": process_ns / 1e7 / elapsed_s,
        "wakeups_per_task_and_s": sum(switches) / len(tasks) / elapsed_s,
        "num_tasks": len(tasks),
        "seconds": elapsed_s,
    }


def work_done(task: ProbedTask) -> tuple[int, int, int]:
    """Return how often the task ran its default action, ran a mail and parked."""
    return task.num_actions, task.mailbox_processor.num_mails_processed, task.mailbox.statistics().num_parks


def cpu_ns(task: ProbedTask) -> int:
    """Return the CPU time of its thread so far."""
    assert task.thread.ident is not None
    return time.clock_gettime_ns(time.pthread_getcpuclockid(task.thread.ident))


def num_switches(task: ProbedTask) -> int:
    """Return how often the task's thread gave up the core to wait."""
    status = Path(f"/proc/self/task/{task.thread.native_id}/status").read_text(encoding="ascii")
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("voluntary_ctxt_switches"))


# ---------------------------------------------------------------- the case


def parse_options(arguments: list[str]) -> dict[str, Any]:
    """Return the options of this case alone."""
    parser = argparse.ArgumentParser(
        prog="python -m bench wakeup", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--wakeups", type=int, default=NUM_WAKEUPS, help="counted, per round")
    parser.add_argument("--idle-tasks", type=int, default=NUM_IDLE_TASKS)
    parser.add_argument("--idle-seconds", type=float, default=IDLE_S)
    return vars(parser.parse_args(arguments))


def run(
    num_runs: int,
    *,
    quick: bool = False,
    wakeups: int = NUM_WAKEUPS,
    idle_tasks: int = NUM_IDLE_TASKS,
    idle_seconds: float = IDLE_S,
) -> list[Result]:
    """Measure all three, ``num_runs`` times."""
    num_skipped, num_records = (0, QUICK_WAKEUPS) if quick else (NUM_SKIPPED, NUM_SKIPPED + wakeups)
    ways = {"by a thread": wake_by_thread, "by a process, over TCP": wake_by_process}
    results = []
    for name, wake in ways.items():
        samples = [evaluate(wake(num_records), num_skipped) for _ in range(num_runs)]
        medians = {key: median(sample[key] for sample in samples) for key in samples[0]}
        p50s = [sample["p50_us"] for sample in samples]
        details = {"aim_us": AIM_US, "is_aim_reached": median(p50s) <= AIM_US, "medians": medians, "samples": samples}
        results.append(Result(f"wakeup {name}", "us, p50", p50s, details))
    idle = [rest(QUICK_IDLE_TASKS, QUICK_IDLE_S) if quick else rest(idle_tasks, idle_seconds) for _ in range(num_runs)]
    figures = [sample["cpu_s_per_task_and_hour"] for sample in idle]
    results.append(Result("wakeup idle tasks", "CPU s per task and hour", figures, {"samples": idle}))
    return results
