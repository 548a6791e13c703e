"""The folder of a run and what else lies around it: read and written here only, without torch."""

from tacit.runs.directory.run_directory import SCHEMA, Fingerprints, RoundLog, RunDirectory, fingerprint

__all__ = ["SCHEMA", "Fingerprints", "RoundLog", "RunDirectory", "fingerprint"]
