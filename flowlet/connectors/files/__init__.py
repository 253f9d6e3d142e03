"""The file sink: part files, their formats, their writer and their committer."""
