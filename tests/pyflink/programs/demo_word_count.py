"""Words of some lines, counted: the first program of every guide."""

from pyflink.common import Types
from pyflink.datastream import StreamExecutionEnvironment

LINES = [
    "To be, or not to be,--that is the question:--",
    "Whether 'tis nobler in the mind to suffer",
    "The slings and arrows of outrageous fortune",
    "Or to take arms against a sea of troubles,",
]


def word_count():
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(1)
    lines = env.from_collection(LINES, type_info=Types.STRING())

    def split(line):
        yield from line.split()

    counts = (
        lines.flat_map(split)
        .map(lambda word: (word, 1), output_type=Types.TUPLE([Types.STRING(), Types.INT()]))
        .key_by(lambda pair: pair[0])
        .reduce(lambda left, right: (left[0], left[1] + right[1]))
    )
    counts.print()
    env.execute("word count")


if __name__ == "__main__":
    word_count()
