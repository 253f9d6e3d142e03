"""A ``Work`` in PyFlink on a running cluster; run by the Python of ``.venv-flink``.

The program is the very file that runs in flowlet: PYTHONPATH has modules of flowlet's names that are PyFlink's.  Source
and sink are written in Java, as those of the other jobs; what is between them is Python.
Usage: ``pyflink_work_job.py REST_PORT JAR OPTIONS``, OPTIONS being a JSON object: work, mode, folder, files (of the
       lines of each input;
where there is none, the input's records are looked up by number in Python).
"""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from pyflink.common import Configuration, Types, WatermarkStrategy
from pyflink.datastream import DataStream, MapFunction, RuntimeContext, StreamExecutionEnvironment
from pyflink.datastream.connectors import Sink, Source
from pyflink.java_gateway import get_gateway

from bench.jobs.work import Input, Outputs, Work, imported


class LookUp(MapFunction):  # type: ignore[misc]  # PyFlink is not installed here
    """Numbers to records, which were made before; writes down when they are ready."""

    def __init__(self, content: Input, folder: str) -> None:
        self._content = content
        self._folder = folder

    def open(self, runtime_context: RuntimeContext) -> None:
        """Make the records."""
        self._ready = self._content.ready()
        file = Path(self._folder, f"ready-{os.getpid()}")  # in thread mode PyFlink 2.3 fails to tell the subtask
        file.write_text(str(time.monotonic_ns()), encoding="ascii")

    def map(self, value: int) -> Any:
        """Return the record of a number."""
        return self._ready[value % len(self._ready)]


def connect(rest_port: int, jar: str, mode: str) -> StreamExecutionEnvironment:
    """Return an environment whose jobs run on the cluster."""
    configuration = Configuration()
    configuration.set_string("python.execution-mode", mode)
    configuration.set_string("pipeline.object-reuse", "true")
    gateway = get_gateway()
    environments = gateway.jvm.org.apache.flink.streaming.api.environment.StreamExecutionEnvironment
    no_jars = gateway.new_array(gateway.jvm.String, 0)
    remote = environments.createRemoteEnvironment("127.0.0.1", rest_port, configuration._j_configuration, no_jars)
    environment = StreamExecutionEnvironment(remote)
    environment.configure(configuration)
    environment.set_parallelism(2)
    environment.add_jars(f"file://{jar}")
    return environment


def read(environment: StreamExecutionEnvironment, content: Input, file: str | None, folder: str) -> DataStream:
    """Return the stream of one input."""
    jvm = get_gateway().jvm
    maker = getattr(jvm, "Makers$Numbers")() if file is None else getattr(jvm, "Makers$Lines")(file)
    source = Source(jvm.NumberedSource(content.num_records, maker, folder, 0))
    no_watermarks = WatermarkStrategy.no_watermarks()
    if file is None:
        return environment.from_source(source, no_watermarks, "numbers", Types.LONG()).map(LookUp(content, folder))
    return environment.from_source(source, no_watermarks, "lines", Types.STRING())


def main(rest_port: int, jar: str, options: dict[str, Any]) -> None:
    """Build and run the job."""
    work, folder = Work.from_options(options["work"]), options["folder"]
    environment = connect(rest_port, jar, options["mode"])
    inputs = [read(environment, each, file, folder) for each, file in zip(work.inputs, options["files"], strict=True)]
    jvm = get_gateway().jvm
    sink = jvm.TextNumberSink(folder, work.outputs is Outputs.SUM)
    imported(f"{work.streams}:{work.program}")(*inputs).sink_to(Sink(sink))
    environment.execute(f"bench PyFlink {work.program}")


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3]))
