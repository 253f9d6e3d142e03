"""Where checkpoints are kept: files below a URL of fsspec, and their manifests."""
