"""A PyFlink word count on a running cluster; run by the Python of ``.venv-flink``, which knows nothing of this
repository.

Source and sink are those of the Java programs, what is between them is Python: ``split``, the key and the reduce
function.
Usage: ``pyflink_job.py REST_PORT JAR OPTIONS``, OPTIONS being a JSON object: mode, count, lines, folder, keepFrom,
       keep, isInRocksdb
(a process function counts in a ``ValueState`` in RocksDB instead of the reduce function).
"""

import json
import sys
from collections.abc import Iterator
from typing import Any

from pyflink.common import Configuration, Types, WatermarkStrategy
from pyflink.datastream import KeyedProcessFunction, RuntimeContext, StreamExecutionEnvironment
from pyflink.datastream.connectors import Sink, Source
from pyflink.datastream.state import ValueStateDescriptor
from pyflink.java_gateway import get_gateway


def split(line: str) -> list[tuple[str, int]]:
    """Split a line: the user's function."""
    return [(word, 1) for word in line.split()]


class CountInState(KeyedProcessFunction):  # type: ignore[misc]  # PyFlink is in another environment
    """Counts in keyed state, like our program."""

    def open(self, runtime_context: RuntimeContext) -> None:
        """Ask for the state."""
        self.count = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))

    def process_element(self, value: tuple[str, int], ctx: KeyedProcessFunction.Context) -> Iterator[tuple[str, int]]:
        """Count."""
        count = (self.count.value() or 0) + value[1]
        self.count.update(count)
        yield value[0], count


def main(rest_port: int, jar: str, options: dict[str, Any]) -> None:
    """Build and run the job."""
    configuration = Configuration()
    configuration.set_string("python.execution-mode", options["mode"])
    configuration.set_string("pipeline.object-reuse", "true")
    if options["isInRocksdb"]:
        configuration.set_string("state.backend.type", "rocksdb")
    gateway = get_gateway()
    environments = gateway.jvm.org.apache.flink.streaming.api.environment.StreamExecutionEnvironment
    no_jars = gateway.new_array(gateway.jvm.String, 0)
    remote = environments.createRemoteEnvironment("127.0.0.1", rest_port, configuration._j_configuration, no_jars)
    environment = StreamExecutionEnvironment(remote)
    environment.configure(configuration)
    environment.set_parallelism(2)
    environment.add_jars(f"file://{jar}")
    jvm = get_gateway().jvm
    maker = getattr(jvm, "Makers$Lines")(options["lines"])
    source = Source(jvm.NumberedSource(options["count"], maker, options["folder"], 0))
    takes_latencies = False
    sink = Sink(jvm.CheckedSink(options["folder"], options["keepFrom"], options["keep"], takes_latencies))
    pair = Types.TUPLE([Types.STRING(), Types.LONG()])
    lines = environment.from_source(source, WatermarkStrategy.no_watermarks(), "source", Types.STRING())
    keyed = lines.flat_map(split, pair).key_by(lambda pair: pair[0], Types.STRING())
    is_in_rocksdb = options["isInRocksdb"]
    counts = (
        keyed.process(CountInState(), pair)
        if is_in_rocksdb
        else keyed.reduce(lambda one, other: (one[0], one[1] + other[1]))
    )
    counts.sink_to(sink)
    environment.execute("bench PyFlink wordcount")


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3]))
