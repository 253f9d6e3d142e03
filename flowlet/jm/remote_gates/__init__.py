"""The remote gates of a running job, from run to run."""
