"""Local SGD, prediction and evaluation: every training loop of the package is here."""

from tacit.learn.ahead import Looks, View, seen_as
from tacit.learn.batching import Batch, batches, epoch_steps
from tacit.learn.evaluation import EVALUATION_BATCH, Score, evaluate, loss_on, predict
from tacit.learn.forward import BatchLoss, FeatureTerm, Forward, LocalLoss, Output, forward_of, loss_of_batch
from tacit.learn.rates import Plateau, learning_rate
from tacit.learn.training import (
    LocalState,
    Objective,
    ParameterBlock,
    Trained,
    fit,
    fit_alternating,
)

__all__ = [
    "EVALUATION_BATCH",
    "Batch",
    "BatchLoss",
    "FeatureTerm",
    "Forward",
    "LocalLoss",
    "LocalState",
    "Looks",
    "Objective",
    "Output",
    "ParameterBlock",
    "Plateau",
    "Score",
    "Trained",
    "View",
    "batches",
    "epoch_steps",
    "evaluate",
    "fit",
    "fit_alternating",
    "forward_of",
    "learning_rate",
    "loss_of_batch",
    "loss_on",
    "predict",
    "seen_as",
]
