"""The writer and the committer of every ``WriteAheadSink``."""
