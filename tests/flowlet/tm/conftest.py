from tests.cluster_commands import cluster_starter, start

__all__ = ["cluster_starter", "start"]
