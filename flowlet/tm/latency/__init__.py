"""What a TaskManager does so that records are quick: cores, threads, the interpreter."""
