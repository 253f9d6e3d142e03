"""Users' coroutines: run on a shared loop, awaited in the order that the user asks for."""
