"""Local SGD, EMA, prediction, evaluation: every training loop in the package goes through here."""

from tacit.learn.batching import Batch, batches, epoch_steps
from tacit.learn.evaluation import EVALUATION_BATCH, Score, evaluate, loss_on, predict
from tacit.learn.training import Cost, Kept, Objective, Part, Trained, Visit, fit, fit_in_turns, learning_rate

__all__ = [
    "EVALUATION_BATCH",
    "Batch",
    "Cost",
    "Kept",
    "Objective",
    "Part",
    "Score",
    "Trained",
    "Visit",
    "batches",
    "epoch_steps",
    "evaluate",
    "fit",
    "fit_in_turns",
    "learning_rate",
    "loss_on",
    "predict",
]
