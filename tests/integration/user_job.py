"""A user's program for the tests of processes: ``python user_job.py JOB --jobmanager HOST:PORT --signals FIFO``."""

import argparse
import os
import sys
import threading

from flowlet.common import Configuration, WatermarkStrategy
from flowlet.datastream import DataStream, MapFunction, RuntimeContext, StreamExecutionEnvironment
from flowlet.datastream.connectors import DiscardingSink, Source
from flowlet.records import Chunk


class EndlessReader:
    """Numbers, without an end."""

    def poll_chunk(self) -> Chunk | None:
        return Chunk(list(range(1000)))

    def close(self) -> None:
        pass


class EndlessSource(Source):
    is_bounded = False

    def create_reader(self, subtask: int, parallelism: int) -> EndlessReader:
        return EndlessReader()


class TellPid(MapFunction):
    """Passes everything on; at its first record tells the test in which process it runs."""

    def __init__(self, signals: str) -> None:
        self._signals = signals
        self._has_told = False

    def open(self, runtime_context: RuntimeContext) -> None:
        self._has_told = False

    def map(self, value: int) -> int:
        if not self._has_told:
            self._has_told = True
            with open(self._signals, "w", encoding="ascii") as signals:
                signals.write(f"{os.getpid()}\n")
        return value


class BlockForEver(TellPid):
    """Tells in which process it runs, then never comes back."""

    def map(self, value: int) -> int:
        super().map(value)
        threading.Event().wait()
        return value


def divide(number: int) -> int:
    return 100 // (number - 7)


def identity(number: int) -> int:
    return number


def build(env: StreamExecutionEnvironment, options: argparse.Namespace) -> DataStream:
    match options.job:
        case "failing":
            return env.from_collection(range(1000)).rebalance().map(divide).name("divide them")
        case "succeeding":
            return env.from_collection(range(1000)).key_by(identity).sum()
        case "endless":
            numbers = env.from_source(EndlessSource(), WatermarkStrategy.no_watermarks(), "numbers")
            return numbers.rebalance().map(TellPid(options.signals)).name("tell")
        case "blocked":
            numbers = env.from_source(EndlessSource(), WatermarkStrategy.no_watermarks(), "numbers")
            return numbers.rebalance().map(BlockForEver(options.signals)).name("block")
        case _:
            raise ValueError(options.job)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("job")
    parser.add_argument("--jobmanager", required=True)
    parser.add_argument("--signals", required=True)
    parser.add_argument("--parallelism", type=int, default=2)
    parser.add_argument("--cancel-after-signal", action="store_true")
    parser.add_argument("--cancel-at-once", action="store_true")
    parser.add_argument("--collect", action="store_true")
    parser.add_argument("--option", action="append", default=[])
    options = parser.parse_args()
    configuration = Configuration.from_dict(dict(each.split("=") for each in options.option))
    env = StreamExecutionEnvironment.get_execution_environment(
        configuration.set_string("flowlet.jobmanager", options.jobmanager)
    )
    env.set_parallelism(options.parallelism)
    stream = build(env, options)
    if options.collect:
        for _ in stream.execute_and_collect(options.job):
            pass
        return 0
    stream.sink_to(DiscardingSink())
    if not options.cancel_after_signal and not options.cancel_at_once:
        env.execute(options.job)
        return 0
    client = env.execute_async(options.job)
    if options.cancel_after_signal:
        with open(options.signals, encoding="ascii") as signals:
            signals.readline()
    client.cancel().result()
    failure = client.get_job_execution_result().exception()
    print("error", failure)
    print("status", client.get_job_status().result().name, flush=True)
    env.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
