"""Words of text files, counted by two subtasks, into files: a FileSource and a FileSink."""

import tempfile
from pathlib import Path

from pyflink.common import Encoder, Types, WatermarkStrategy
from pyflink.datastream import RuntimeExecutionMode, StreamExecutionEnvironment
from pyflink.datastream.connectors.file_system import (
    FileSink,
    FileSource,
    OutputFileConfig,
    RollingPolicy,
    StreamFormat,
)


def word_count(folder: Path):
    source, target = folder / "lines", folder / "counts"
    source.mkdir()
    (source / "first.txt").write_text("one two two\nthree three three\n")
    (source / "second.txt").write_text("two\nfour four four four\n")

    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_runtime_mode(RuntimeExecutionMode.BATCH)
    env.set_parallelism(2)
    lines = env.from_source(
        source=FileSource.for_record_stream_format(StreamFormat.text_line_format(), str(source))
        .process_static_file_set()
        .build(),
        watermark_strategy=WatermarkStrategy.for_monotonous_timestamps(),
        source_name="file source",
    )
    counts = (
        lines.flat_map(lambda line: line.split(), output_type=Types.STRING())
        .map(lambda word: (word, 1), output_type=Types.TUPLE([Types.STRING(), Types.INT()]))
        .key_by(lambda pair: pair[0], key_type=Types.STRING())
        .sum(1)
        .map(lambda pair: f"{pair[0]} {pair[1]}", output_type=Types.STRING())
    )
    counts.sink_to(
        FileSink.for_row_format(base_path=str(target), encoder=Encoder.simple_string_encoder())
        .with_output_file_config(OutputFileConfig.builder().with_part_prefix("part").with_part_suffix(".txt").build())
        .with_rolling_policy(RollingPolicy.default_rolling_policy())
        .build()
    )
    env.execute("word count of files")

    files = [file for file in target.rglob("*") if file.is_file() and not file.name.startswith(".")]
    print(
        "every name has prefix and suffix:",
        all(file.name.startswith("part-") and file.suffix == ".txt" for file in files),
    )
    for line in sorted(line for file in files for line in file.read_text().splitlines()):
        print(line)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        word_count(Path(name))
