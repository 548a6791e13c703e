"""Who follows the events of a run: people, trackers, and files that others read."""
