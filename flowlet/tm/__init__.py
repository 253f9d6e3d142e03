"""The TaskManager: the process in which tasks run."""
