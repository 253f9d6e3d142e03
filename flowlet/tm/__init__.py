"""The TaskManager: the worker process."""
