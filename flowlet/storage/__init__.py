"""Where checkpoints are kept: files below a directory or a URL of fsspec, and their manifests."""
