"""The parts of a simulated world."""

from dataclasses import dataclass, replace
from random import Random

from netstack.config import NetstackConfig, SecurityConfig

_SEGMENT = 256


@dataclass(frozen=True)
class Mix:
    """The parts of one world: every seed draws its own, because a fixed mix is a blind spot."""

    segment_size: int
    num_nodes: int
    num_partitions: int
    num_gates: int
    exclusive: int
    num_extra_segments: int
    max_pool_extra: int
    num_records: int
    sizes: tuple[int, int]
    flush: str
    max_held: int
    cuts: tuple[int, ...]
    pipe_bytes: int
    staging_bytes: int
    direct_read_bytes: int
    batch_bytes: int
    gather_bytes: int
    max_loop_batch: int
    shares_connections: bool
    faults: tuple[str, ...]
    is_late: bool
    floating: int
    overdraft: int
    max_per_channel: int | None
    checkpoints: str
    num_checkpoints: int
    is_compressed: bool
    compressible: float
    broadcast: float
    announce: float
    is_retried: bool
    poll_items: int
    is_blocking: bool  # the partitions
    num_readers: int  # of each subpartition, one or more after the other or at once
    width: int  # how many subpartitions a channel reads

    @classmethod
    def draw(cls, rng: Random) -> "Mix":
        """Draw a mix of its own for every seed."""
        kinds = ("cut", "fail", "cancel", "stall", "refuse")
        has_faults = rng.random() < 0.5
        exclusive = rng.choice((0, 0, 1, 1, 2, 3, 8))
        mix = cls(
            segment_size=_SEGMENT,
            num_nodes=rng.randint(1, 3),
            num_partitions=rng.randint(1, 3),
            num_gates=rng.randint(1, 3),
            exclusive=exclusive,
            num_extra_segments=rng.choice((0, 1, 2, 8)),
            max_pool_extra=rng.choice((0, 0, 1, 4, 16)),
            num_records=rng.choice((1, 10, 50, 200, 400)),
            sizes=rng.choice(((1, 20), (1, 300), (200, 300), (1, 900), (256, 256))),
            flush=rng.choice(("always", "random", "random", "never")),
            max_held=rng.choice((0, 0, 1, 2, 5)),
            cuts=rng.choice(((1, 5, 50), (1 << 20,), (7, 47, 100, 300), (1, 1 << 20), (46, 47, 48, 303))),
            pipe_bytes=rng.choice((64, 300, 1000, 1 << 14)),
            staging_bytes=rng.choice((64, 310, 1000, 4096)),
            direct_read_bytes=rng.choice((1, 50, 200, 1 << 17)),
            batch_bytes=rng.choice((1, 300, 1000, 1 << 16)),
            gather_bytes=rng.choice((1, 600, 1 << 16)),
            max_loop_batch=rng.choice((1, 1, 3, 20)),
            shares_connections=rng.random() < 0.7,
            faults=tuple(rng.choice(kinds) for _ in range(rng.randint(1, 3))) if has_faults else (),
            is_late=rng.random() < 0.3,
            floating=rng.choice((1, 1, 2, 8)) if exclusive == 0 else rng.choice((0, 0, 1, 3, 8)),
            overdraft=rng.choice((0, 0, 1, 5)),
            # With fewer the buffer that is being written, and an old broadcast buffer that has no more bytes, stop
            # their own writer.
            max_per_channel=rng.choice((None, None, 3, 4, 10)),
            checkpoints=rng.choice(("none", "none", "aligned", "aligned", "unaligned", "unaligned", "concurrent")),
            num_checkpoints=rng.choice((1, 3, 10)),
            is_compressed=rng.random() < 0.2,
            compressible=rng.choice((0.0, 0.5)),
            broadcast=rng.choice((0.0, 0.0, 0.0, 0.1, 0.5, 1.0)),
            announce=rng.choice((0.0, 0.0, 0.05)),
            is_retried=rng.random() < 0.5,
            poll_items=rng.choice((1, 2, 5, 16)),
            is_blocking=False,
            num_readers=1,
            width=1,
        )
        chance = rng.random()
        if chance < 0.2:
            return mix.with_runs()
        if chance < 0.35:
            return mix.with_files(rng)
        if chance < 0.45:
            return mix.with_ranges(rng)
        if chance < 0.55:
            return mix.with_narrow_connections()
        return mix.with_tight_memory() if chance < 0.62 else mix

    def with_runs(self) -> "Mix":
        """Return this mix with room and reads for several buffers, and records that fill them: else there is hardly
        ever one run.
        """
        return replace(
            self,
            num_records=min(self.num_records, 100),
            exclusive=8,
            max_pool_extra=16,
            num_extra_segments=16,
            sizes=(4 * _SEGMENT, 4 * _SEGMENT + 1),
            cuts=(1 << 20, 700),
            pipe_bytes=1 << 14,
            staging_bytes=4096,
            direct_read_bytes=1 << 17,
            batch_bytes=1 << 16,
            gather_bytes=1 << 16,
            floating=max(1, self.floating),
            is_compressed=False,
            broadcast=0.0,
            announce=0.0,
        )

    def with_narrow_connections(self) -> "Mix":
        """Return this mix with much credit and little room on the way: only the channel's writability bounds the data
        that waits there.
        """
        return replace(
            self,
            num_nodes=2,
            num_records=max(self.num_records, 50),
            exclusive=8,
            floating=8,
            max_pool_extra=16,
            num_extra_segments=16,
            sizes=(200, 300),
            shares_connections=True,
            pipe_bytes=64,
            batch_bytes=1 << 16,
            gather_bytes=1,
        )

    def with_tight_memory(self) -> "Mix":
        """Return this mix with producers that share a node, long records, and no segment but the promised ones."""
        return replace(
            self,
            num_nodes=1,
            num_partitions=3,
            num_records=max(self.num_records, 50),
            num_extra_segments=0,
            max_pool_extra=0,
            max_per_channel=None,
            overdraft=5,
            sizes=(1, 900),
            broadcast=0.0,
        )

    def with_files(self, rng: Random) -> "Mix":
        """Return this mix with blocking partitions, read more than once; some in ranges."""
        width = rng.choice((1, 1, 2, 3))
        return replace(
            self,
            is_blocking=True,
            num_readers=rng.choice((1, 2, 3)),
            width=width,
            num_records=min(self.num_records, 50),
            flush=rng.choice(("always", "never")),
            checkpoints="none",
            broadcast=self.broadcast if width == 1 else 0.0,
        )

    def with_ranges(self, rng: Random) -> "Mix":
        """Return this mix with channels of several pipelined subpartitions: with room for all, since one is read to its
        end before the next.
        """
        return replace(
            self,
            width=rng.choice((2, 3)),
            num_records=min(self.num_records, 30),
            sizes=rng.choice(((1, 20), (1, 300), (256, 256))),
            num_extra_segments=3 * 3 * 70,
            max_pool_extra=3 * 70,
            max_per_channel=None,
            checkpoints="none",
            broadcast=0.0,
            announce=0.0,
        )

    @property
    def num_subpartitions(self) -> int:
        """The number of subpartitions of each partition."""
        return self.num_gates * self.width

    def record_size(self, rng: Random) -> int:
        return rng.randint(*self.sizes)

    @property
    def config(self) -> NetstackConfig:
        return NetstackConfig(
            segment_size_bytes=self.segment_size,
            network_memory_bytes=self.segment_size,
            max_write_batch_bytes=self.batch_bytes,
            max_gather_bytes=self.gather_bytes,
            security=SecurityConfig.none(),
            exclusive_buffers_per_channel=max(1, self.exclusive),
        )
