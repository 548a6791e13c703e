"""Engines run any method: the rounds, the messages, the processes, the checkpoints."""
