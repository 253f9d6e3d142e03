"""When a job takes checkpoints, which of them are complete, and what its tasks begin with after a restart."""
