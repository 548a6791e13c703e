"""From a config to a run directory: settings, names, building a job, running it, tracking it."""
