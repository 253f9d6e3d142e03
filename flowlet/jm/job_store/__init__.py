"""What a JobManager keeps of its jobs on disk, so that another one can go on with them."""
