"""A live, read-only page about runs and federations, for one person on this machine."""
