"""More scores of an evaluated model than accuracy and loss, from its outputs on the test set."""

import math

import torch

from tacit.engines.job import Job
from tacit.learn import Score
from tacit.metrics.predictions import Predictions
from tacit.metrics.scores import scores


def predictions(job: Job, score: Score) -> Predictions:
    """The test labels and the outputs of a score that was asked for them."""
    federation = job.federation
    return Predictions(federation.test.y.numpy(), torch.cat(score.outputs).numpy(), federation.classes)


def named_scores(job: Job, score: Score | None) -> dict[str, float]:
    """The scores that the job asks for, without those that the test set does not define."""
    if score is None or not job.metrics or not score.outputs:
        return {}
    found = scores(predictions(job, score), job.metrics)
    return {name: value for name, value in found.items() if math.isfinite(value)}
