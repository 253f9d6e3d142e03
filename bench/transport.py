"""32 KiB buffers from one process to another over loopback TCP: the network stack beside raw sockets and other
transports.

Side:     any.
Cases:    ``raw`` (blocking sockets, 8 frames per sendmsg, with the kernel's congestion control, as all other transports
          here have); ``raw-reno`` (with the one that the network stack chooses on one machine); ``loops-N``
          and ``threads-N`` (the network stack with N channels, without and with task threads), whose producer labels
          buffers that were filled before, as raw sockets do; ``copied-N`` (like ``threads-N``, but the producer emits
          records, which are copied into buffers); ``job-N`` (the rate of a job: records of 32 KiB, which are copied
          into buffers, span two of them, and are decoded by a task's input processor, with the credit of every job);
          ``zmq``, ``grpc``, ``flight`` (extra ``bench``; skipped if they are not installed).
Rate:     bytes of payload / (last buffer - first buffer), at the consumer; GB = 1e9 bytes; CPU seconds in user and
          system mode.
Rounds:   each round runs every case once, in another order; ratios are computed within a round, so that a machine that
          becomes slower does not favour anybody, and to the quicker one of its raw cases.
Proof:    the consumer checks label and order of every buffer; what both sides counted must agree, per channel.
Settings: each process on a core of its own and a switch interval of 0.1 ms, as TaskManagers run here.
"""

import argparse
import importlib.util
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Any, Final

from bench.cluster import Process
from bench.report import Result
from bench.transports.calls import file_of, num_calls
from bench.transports.common import BUFFER_BYTES, Setting

SECONDS: Final = 2.0
QUICK_SECONDS: Final = 0.2
START_TIMEOUT_S: Final = 60.0
END_TIMEOUT_S: Final = 60.0
# One channel alone: 8 buffers, the default, are too few to keep both processes busy.
CREDITS_OF_ONE_CHANNEL: Final = 64  # of 16, 24, 32, 48 and 64 the one that kept both processes busiest
CASES: Final = {
    "raw": Setting("raw"),
    "raw-reno": Setting("raw", congestion_control="reno"),
    "job-1": Setting("job"),
    "job-100": Setting("job", num_channels=100),
    "loops-1": Setting("loops", num_credits=CREDITS_OF_ONE_CHANNEL),
    "loops-100": Setting("loops", num_channels=100),
    "threads-1": Setting("threads", num_credits=CREDITS_OF_ONE_CHANNEL),
    "threads-100": Setting("threads", num_channels=100),
    "copied-1": Setting("threads", num_credits=CREDITS_OF_ONE_CHANNEL, is_copied=True),
    "copied-100": Setting("threads", num_channels=100, is_copied=True),
    "zmq": Setting("zmq"),
    "grpc": Setting("grpc"),
    "flight": Setting("flight"),
}
RAW: Final = ("raw", "raw-reno")
NETSTACK: Final = ("loops", "threads", "job")
NEEDS: Final = {"zmq": "zmq", "grpc": "grpc", "flight": "pyarrow"}
PACKAGES: Final = {"zmq": "pyzmq", "grpc": "grpcio", "flight": "pyarrow"}


@dataclass(frozen=True)
class Sample:
    """One run of one case."""

    num_bytes: int
    seconds: float
    user_s: tuple[float, float]  # CPU of producer and consumer
    system_s: tuple[float, float]
    num_switches: tuple[int, int]  # context switches
    calls_per_buffer: tuple[float, float] | None = None  # function calls, if they were counted

    @property
    def gb_per_s(self) -> float:
        """Payload per second."""
        return self.num_bytes / 1e9 / self.seconds

    @property
    def cpu_s_per_gb(self) -> float:
        """The CPU seconds of both processes per GB of payload."""
        return (sum(self.user_s) + sum(self.system_s)) / (self.num_bytes / 1e9)

    def as_dict(self) -> dict[str, Any]:
        """Return the sample for the details of a result."""
        return asdict(self) | {"gb_per_s": self.gb_per_s, "cpu_s_per_gb": self.cpu_s_per_gb}


class MismatchError(Exception):
    """Producer and consumer counted different buffers."""


def is_installed(case: str) -> bool:
    """Whether the packages of a case are there."""
    return case not in NEEDS or importlib.util.find_spec(NEEDS[case]) is not None


def event(process: Process, key: str, timeout_s: float) -> dict[str, Any]:
    """Return the next line of a child that has ``key``."""
    found: dict[str, Any] = json.loads(process.wait_for_line(rf'^\{{.*"{key}"', timeout_s).string)
    return found


def measure(case: str, setting: Setting, seconds: float, profile: Path | None = None) -> Sample:
    """Run one case in two fresh processes.

    Raises:
        ProcessError: one of them failed; the message has its output.
        MismatchError: not everything that was sent arrived.
    """
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        command = [sys.executable, "-m", "bench.transports"]
        root = Path(__file__).resolve().parent.parent
        args = [*command, "produce", setting.to_json()]
        producer = stack.enter_context(Process(args, log=Path(name, "producer.log"), cwd=root, stdin=subprocess.PIPE))
        args = [*command, "consume", setting.to_json(), str(event(producer, "port", START_TIMEOUT_S)["port"])]
        consumer = stack.enter_context(Process(args, log=Path(name, "consumer.log"), cwd=root))
        event(consumer, "has_started", START_TIMEOUT_S)
        pids = {"producer": producer.pid, "consumer": consumer.pid}
        profilers = [] if profile is None else start_profilers(stack, profile, case, pids, seconds)
        time.sleep(seconds)
        producer.close_stdin()  # the sign to stop
        received = event(consumer, "num_received", END_TIMEOUT_S)
        sent = event(producer, "num_sent", END_TIMEOUT_S)
        for process in (producer, consumer, *profilers):
            process.wait(END_TIMEOUT_S)
    if sent["num_sent"] != received["num_received"]:
        raise MismatchError(f"{case}: sent {sent['num_sent']} buffers per channel, received {received['num_received']}")
    return Sample(
        sum(received["num_received"]) * BUFFER_BYTES,
        received["seconds"],
        user_s=(sent["user_s"], received["user_s"]),
        system_s=(sent["system_s"], received["system_s"]),
        num_switches=(sent["num_switches"], received["num_switches"]),
        calls_per_buffer=calls_per_buffer(setting, sum(received["num_received"])),
    )


def calls_per_buffer(setting: Setting, num_buffers: int) -> tuple[float, float] | None:
    """Return the calls per buffer that producer and consumer wrote down; None if they did not count."""
    if setting.calls_folder is None or setting.transport not in NETSTACK:
        return None
    produced, consumed = (num_calls(file_of(setting, side)) for side in ("producer", "consumer"))
    return produced / num_buffers, consumed / num_buffers


def start_profilers(stack: ExitStack, folder: Path, case: str, pids: dict[str, int], seconds: float) -> list[Process]:
    """Start py-spy beside both processes, one file of stacks with counts per side; the figures of such a run are
    worthless.

    Only threads that hold the interpreter are seen: what the kernel does while it is released is in the system CPU
    time.
    """
    folder.mkdir(parents=True, exist_ok=True)
    profilers = []
    for side, pid in pids.items():
        output = folder / f"{case}-{side}.txt"
        options = [
            "--pid",
            str(pid),
            "--duration",
            str(max(1, round(seconds - 0.5))),
            "--rate",
            "500",
            "--gil",
            "--format",
            "raw",
        ]
        args = [str(Path(sys.executable).with_name("py-spy")), "record", *options, "--output", str(output)]
        profilers.append(stack.enter_context(Process(args, log=folder / f"{case}-{side}.log")))
    return profilers


def orders(cases: Sequence[str], num_rounds: int) -> list[list[str]]:
    """Return the order of the cases in each round: rotated, so that no case always runs first, and backwards in every
    second round, so that neighbours change.
    """
    rng = random.Random(1)
    found = []
    for number in range(num_rounds):
        shift = rng.randrange(len(cases))
        order = [*cases[shift:], *cases[:shift]]
        found.append(order[::-1] if number % 2 else order)
    return found


def cores() -> tuple[int, int] | None:
    """Return a core for each side, if there are two."""
    usable = sorted(os.sched_getaffinity(0))
    return (usable[0], usable[1]) if len(usable) > 1 else None


def parse_options(arguments: list[str]) -> dict[str, Any]:
    """Return the options of this case alone."""
    parser = argparse.ArgumentParser(
        prog="python -m bench transport", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--cases", default=",".join(CASES), help="which, separated by commas; ratios need a raw one")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of sending, per case and round")
    parser.add_argument(
        "--credits", type=int, help="exclusive buffers per channel (default: 64 with one channel, 8 with more)"
    )
    parser.add_argument("--switch-interval-ms", type=float, default=Setting("").switch_interval_ms)
    parser.add_argument(
        "--congestion-control",
        metavar="NAME",
        help="of raw sockets and of the network stack, in all cases: bbr, cubic, reno, kernel",
    )
    parser.add_argument(
        "--pin", action=argparse.BooleanOptionalAction, default=True, help="each process on a core of its own"
    )
    parser.add_argument("--profile", type=Path, metavar="FOLDER", help="write what py-spy sees of each process")
    parser.add_argument(
        "--calls",
        type=Path,
        metavar="FOLDER",
        help="count function calls per buffer, and write which; rates are wrong then",
    )
    options = vars(parser.parse_args(arguments))
    options["cases"] = options["cases"].split(",")
    if unknown := set(options["cases"]) - set(CASES):
        parser.error(f"no such cases: {', '.join(sorted(unknown))}")
    return options


def run(
    num_runs: int,
    *,
    quick: bool = False,
    cases: Sequence[str] = tuple(CASES),
    seconds: float = SECONDS,
    credits: int | None = None,  # noqa: A002 - the name of the option
    congestion_control: str | None = None,
    switch_interval_ms: float = 0.1,
    pin: bool = True,
    profile: Path | None = None,
    calls: Path | None = None,
) -> list[Result]:
    """Measure ``num_runs`` rounds; one result per case, and one line per case for the eye on standard error."""
    present = [case for case in cases if is_installed(case)]
    for case in sorted(set(cases) - set(present)):
        print(f"{case}: skipped, {NEEDS[case]} is not installed (extra 'bench')", file=sys.stderr)
    common: dict[str, Any] = {"switch_interval_ms": switch_interval_ms, "cpus": cores() if pin else None}
    if credits is not None:
        common["num_credits"] = credits
    if congestion_control is not None:
        common["congestion_control"] = congestion_control
    common["calls_folder"] = None if calls is None else str(calls.absolute())
    settings = {case: replace(CASES[case], compare_all=quick, **common) for case in present}
    seconds = QUICK_SECONDS if quick else seconds
    rounds = [
        {case: measure(case, settings[case], seconds, profile) for case in order} for order in orders(present, num_runs)
    ]
    results = [summary(case, settings[case], rounds) for case in present]
    print_table(results)
    return results + ratios(results)


def summary(case: str, setting: Setting, rounds: Sequence[dict[str, Sample]]) -> Result:
    """Return rates, CPU and the ratios within each round."""
    samples = [samples_of_round[case] for samples_of_round in rounds]
    details: dict[str, Any] = {
        "num_channels": setting.num_channels,
        "buffer_bytes": BUFFER_BYTES,
        "setting": json.loads(setting.to_json()),
        "cpu_s_per_gb": [sample.cpu_s_per_gb for sample in samples],
        "samples": [sample.as_dict() for sample in samples],
    }
    raw_cases = [name for name in RAW if name in rounds[0]]
    if raw_cases:
        pairs = [
            (each[case], max((each[name] for name in raw_cases), key=lambda sample: sample.gb_per_s)) for each in rounds
        ]
        details["rate_ratio_to_best_raw"] = [sample.gb_per_s / raw.gb_per_s for sample, raw in pairs]
        details["cpu_ratio_to_best_raw"] = [sample.cpu_s_per_gb / raw.cpu_s_per_gb for sample, raw in pairs]
    rates, is_peer = [sample.gb_per_s for sample in samples], setting.transport not in NETSTACK
    versions = {PACKAGES[case]: metadata.version(PACKAGES[case])} if case in PACKAGES else {}
    return Result(f"transport {case}", "GB/s", rates, details, versions=versions, is_peer=is_peer)


def ratios(results: Sequence[Result]) -> list[Result]:
    """Return the ratio of ours to the best raw sockets, round by round, as figures of their own."""
    ours = [result for result in results if not result.is_peer and "rate_ratio_to_best_raw" in result.details]
    return [Result(f"{result.name} / best raw", "x", result.details["rate_ratio_to_best_raw"]) for result in ours]


def print_table(results: Sequence[Result]) -> None:
    """Print medians and spreads, for people."""
    columns = {
        "cpu_s_per_gb": "CPU s/GB",
        "rate_ratio_to_best_raw": "rate / best raw",
        "cpu_ratio_to_best_raw": "CPU / best raw",
    }
    print(f"{'':22}" + "".join(f"{title:>22}" for title in ("GB/s", *columns.values())), file=sys.stderr)
    for result in results:
        series = [result.runs, *(result.details.get(key, []) for key in columns)]
        print(f"{result.name:22}" + "".join(f"{spread(each):>22}" for each in series), file=sys.stderr)


def spread(values: Sequence[float]) -> str:
    """Return ``median (min..max)``."""
    return f"{statistics.median(values):.2f} ({min(values):.2f}..{max(values):.2f})" if values else "-"
