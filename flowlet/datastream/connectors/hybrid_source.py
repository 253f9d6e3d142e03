"""``HybridSource``: several sources, one after the other, such as files of the past and then Kafka.

Side:   pure.
Source: PyFlink ``pyflink.datastream.connectors.hybrid_source``; Flink ``HybridSource``.
Absent: sources that are made when the one before has ended (``SourceFactory``), which PyFlink lacks, too.
"""

from flowlet.datastream.connectors.base import BuiltInSource, Source
from flowlet.errors import JobGraphError

__all__ = ["HybridSource", "HybridSourceBuilder"]


class HybridSource(BuiltInSource):
    """Reads each source to its end, in all subtasks, and then the next one; made by ``HybridSource.builder``.

    The splits of a source are looked for when it begins: a ``FileSource`` reads the files of that time, and a
    ``KafkaSource`` that begins with the latest records begins with the records of that time; but a ``SplitSource`` is
    asked for its splits when the program starts the job.  Only the last source may be without an end.
    """

    __slots__ = ("is_bounded", "sources")

    def __init__(self, sources: tuple[BuiltInSource, ...]) -> None:
        self.sources = sources
        self.is_bounded = sources[-1].is_bounded

    @staticmethod
    def builder(first_source: Source) -> "HybridSourceBuilder":
        """A builder that begins with this source.

        Raises:
            JobGraphError: it is no source that can be part of a hybrid one.
        """
        return HybridSourceBuilder(first_source)


class HybridSourceBuilder:
    """Builds a ``HybridSource``."""

    def __init__(self, first_source: Source) -> None:
        self._sources = [_part(first_source)]

    def add_source(self, source: Source) -> "HybridSourceBuilder":
        """Read this source after the others.

        Raises:
            JobGraphError: it is no source that can be part of a hybrid one, or the source before it has no end.
        """
        if not self._sources[-1].is_bounded:
            kind = type(self._sources[-1]).__name__
            raise JobGraphError(
                f"a hybrid source reads a source after another one has ended, but its {kind} has no end; add it last"
            )
        self._sources.append(_part(source))
        return self

    def build(self) -> HybridSource:
        """Build the source."""
        return HybridSource(tuple(self._sources))


def _part(source: Source) -> BuiltInSource:
    if not isinstance(source, BuiltInSource) or isinstance(source, HybridSource):
        raise JobGraphError(
            f"a hybrid source consists of sources in splits, such as a FileSource or a SplitSource, got {source!r} of "
            f"type {type(source).__name__}"
        )
    return source
