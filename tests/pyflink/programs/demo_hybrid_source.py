"""Files of the past, then later ones: a HybridSource, read by one subtask and by two."""

import os
import tempfile

from pyflink.common import Types, WatermarkStrategy
from pyflink.datastream import RuntimeExecutionMode, StreamExecutionEnvironment
from pyflink.datastream.connectors.file_system import FileSource, StreamFormat
from pyflink.datastream.connectors.hybrid_source import HybridSource


def lines_of(folder: str, name: str, lines: list):
    path = os.path.join(folder, name)
    with open(path, "w") as file:
        file.writelines(f"{line}\n" for line in lines)
    return FileSource.for_record_stream_format(StreamFormat.text_line_format(), path).build()


def hybrid_source(parallelism: int):
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(parallelism)
    env.set_runtime_mode(RuntimeExecutionMode.STREAMING)
    with tempfile.TemporaryDirectory() as folder:
        source = (
            HybridSource.builder(lines_of(folder, "past", [f"past {number}" for number in range(5)]))
            .add_source(lines_of(folder, "later", ["later"]))
            .add_source(lines_of(folder, "last", ["last 0", "last 1"]))
            .build()
        )
        lines = env.from_source(source, WatermarkStrategy.no_watermarks(), "lines", Types.STRING())
        lines.map(lambda line: (line, len(line)), Types.TUPLE([Types.STRING(), Types.INT()])).print()
        env.execute("hybrid source")


if __name__ == "__main__":
    hybrid_source(1)
    hybrid_source(2)
