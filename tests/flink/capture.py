"""``python -m tests.flink.capture``: print frames of Flink's own classes, for ``tests/netstack/wire/flink_frames.py``.

Needs a JDK and Flink's jars: ``make flink-wire``.

Side:   any.
"""

import tempfile
from pathlib import Path

from tests.flink.test_flink_partitions import LOCATION_BYTES, read, serving

NUM_RECORDS = 24
SEGMENT_BYTES = 512


def main() -> None:
    """Print each frame in hex, and the long location of the savepoint in words."""
    with tempfile.TemporaryDirectory() as folder, serving(Path(folder), NUM_RECORDS, SEGMENT_BYTES) as flink:
        for name in ("SORTED", "PIPELINED"):
            print(name)
            _, _, tap = read(flink, name)
            for frame in tap.raw_frames():
                print(frame.hex().replace((b"p" * LOCATION_BYTES).hex(), f" + {LOCATION_BYTES} * p + "))


if __name__ == "__main__":
    main()
