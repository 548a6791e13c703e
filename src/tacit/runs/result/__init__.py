"""What remains of a run: its model as a file, what a person should know about it, and how good it is elsewhere."""
