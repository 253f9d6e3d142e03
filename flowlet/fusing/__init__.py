"""Generated loops in place of calls: what users' functions do, recognised from their bytecode."""
