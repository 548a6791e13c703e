"""`python -m tacit` is the command line."""

from tacit.cli.app import main

main()
