"""The files of a run's folder by name. No other code knows these names.

run.json           the schema of this folder, the version of Tacit, fingerprints of the settings, and which clients were
                   left out of all rounds from which one on, if any were
config.toml        the full config; running it again gives the same model
split.json         who holds which sample, the hash of that, and how many of each class
rounds.jsonl       one record per round
model.safetensors  the final model, with all that is needed to use it
card.md            what a person should know before using it
predictions.npz    the test samples' classes and the final model's outputs for them, for reports
evaluations/       what `tacit evaluate` found on other samples
local_heads.json   what `tacit evaluate --local-heads` found
membership.json    what attacks on the model found, if it was attacked
report.html        the page about it, if `tacit report` has written one
checkpoint/        how far the run got
round.json         while the run makes progress: which clients of the current round work, have answered, have failed
errors.log         tracebacks of clients that failed, if any did
notices.json       signs of collapse, by code: the round that showed them, likely cause and remedy
end.json           after how many rounds the run stopped before its last one, and why, if it did
protection.json    what `[protect]` promises and what it does not, line by line, if it is used
secret.json        of a run over several machines with client-level privacy: what its noise is drawn from
cell.json          which cell of a benchmark it is, if it is one
tune.json          the validation accuracy of its rounds, if it is a trial of a search
tensorboard/       event files for TensorBoard, if switched on
mlflow.json        the id of the run in MLflow, if switched on
sites.json         of a run over several machines: the sites in the order of their numbers, and the id of the run there
introductions.json of such a run: what each site said about itself
site_scores.json   of such a run: scores of the model at the sites whose owners share them
progress.log       of such a run: what the hub prints, line by line
error.json         why it stopped, if it cannot go on (diverged), or if it runs over several machines
flower.log         of such a run: the output of Flower's program
"""

from collections.abc import Set

ABOUT = "run.json"
CONFIG = "config.toml"
SPLIT = "split.json"
ROUNDS = "rounds.jsonl"
MODEL = "model.safetensors"
CARD = "card.md"
PREDICTIONS = "predictions.npz"
EVALUATIONS = "evaluations"
MEMBERSHIP = "membership.json"
LOCAL_HEADS = "local_heads.json"
REPORT = "report.html"
CHECKPOINT = "checkpoint"
LATEST = f"{CHECKPOINT}/latest.json"  # which of the checkpoints counts
CURRENT = "round.json"
ERRORS = "errors.log"
NOTICES = "notices.json"
END = "end.json"
PROTECTION = "protection.json"
SECRET = "secret.json"
CELL = "cell.json"
TRIAL = "tune.json"
TENSORBOARD = "tensorboard"
MLFLOW = "mlflow.json"
SITES = "sites.json"
SITE_SCORES = "site_scores.json"
PROGRESS = "progress.log"
STOP = "error.json"
FLOWER = "flower.log"

# What changes in the folder while the run makes progress, beside its log.
LIVE = (CONFIG, CURRENT, STOP, NOTICES, END, SITES, LATEST)


def is_run(names: Set[str]) -> bool:
    """Whether a folder with these files holds a run; a config alone may be anyone's."""
    return CONFIG in names and not names.isdisjoint((ABOUT, ROUNDS, SPLIT))


def is_set_aside(name: str) -> bool:
    """Whether a folder holds a run that no longer counts: a benchmark moves runs of another config or code there."""
    return ".old-" in name
