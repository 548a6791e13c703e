"""The folder of a run and what else lies around it: read and written here only, without torch."""

from tacit.runs.directory.about import SCHEMA, Fingerprints, fingerprint
from tacit.runs.directory.round_log import RoundLog
from tacit.runs.directory.run_directory import RunDirectory

__all__ = ["SCHEMA", "Fingerprints", "RoundLog", "RunDirectory", "fingerprint"]
