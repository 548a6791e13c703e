"""The command line: one module per group of commands. Every mistake of its user is one sentence and exit code 2."""
