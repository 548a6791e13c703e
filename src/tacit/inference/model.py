"""A trained model: predictions for whatever a user has, in the manner of scikit-learn."""

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from tacit import params
from tacit.data.split.config import DataConfig
from tacit.errors import TacitError
from tacit.inference.description import Description
from tacit.inference.readers import Reader, reader_for
from tacit.inference.samples import blocks
from tacit.inference.text import TextReader
from tacit.learn import EVALUATION_BATCH
from tacit.nets import Net
from tacit.params import Params
from tacit.process import one_thread


class Model:
    """A trained model, without the data it was trained on. `tacit.load` opens one.

    Samples are given as paths (files, folders, patterns such as `scans/*.png`, `.npz`, CSV and Parquet files), arrays,
    Pillow images, data frames, or lists of these. For a model of text, a string is a text.
    """

    def __init__(self, net: Net, weights: Params, description: Description) -> None:
        """A network, its weights, and what else its file says."""
        self.description = description
        self.reader: Reader = reader_for(description.inputs)
        self.views = description.inputs.views(DataConfig())
        self.weights = weights
        self.architecture, self._fast = net, params.channels_last(weights)

    def __repr__(self) -> str:
        """One line."""
        about, shape = self.description, "×".join(map(str, self.description.inputs.shape))
        return (
            f"<Model {about.net['name']}, {shape} {about.inputs.kind} to {len(self.classes)} classes, {about.method}>"
        )

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes, in the order of the columns of `predict_proba`."""
        return self.description.classes

    @property
    def card(self) -> str:
        """What a person should know about the model, as Markdown: data, method, accuracy, privacy, limits."""
        return self.description.card

    @cached_property
    def net(self) -> nn.Module:
        """The network as an ordinary torch module in evaluation mode: `net(preprocess(samples))` are logits."""
        return self.architecture.module(self.weights)

    @property
    def has_features(self) -> bool:
        """Whether the network has features, the activations before its last layer."""
        return self.architecture.has_features

    def predict(self, samples: Any) -> NDArray[np.str_]:
        """(n,): the name of the most likely class of each sample."""
        best = self.logits(self.stored(samples)).argmax(dim=1)
        found: NDArray[np.str_] = np.array(self.classes)[best.numpy()]
        return found

    def predict_proba(self, samples: Any) -> NDArray[np.float32]:
        """(n, classes): the probability of each class."""
        found: NDArray[np.float32] = self.probabilities(self.stored(samples)).numpy()
        return found

    def score(self, samples: Any, labels: Any) -> float:
        """Accuracy; labels are names of classes, or their numbers from 0 on."""
        x, y = self.stored(samples), self.numbers(labels)
        if len(x) != len(y):
            problem = f"there are {len(x)} samples and {len(y)} labels"
            raise TacitError(problem, "give each sample a label", code="predict.different-lengths")
        return int((self.logits(x).argmax(dim=1) == y).sum()) / len(y)

    def preprocess(self, samples: Any) -> Tensor:
        """(n, …): what the network sees of samples, resized and normalised."""
        return self.views.plain(self.stored(samples))

    def stored(self, samples: Any) -> Tensor:
        """(n, …): samples in the form they had in training, before they are normalised."""
        if isinstance(samples, Tensor):
            return self.reader.values(samples.cpu().numpy())
        if isinstance(samples, Path) or (isinstance(samples, str) and not isinstance(self.reader, TextReader)):
            items = [item for block in blocks([str(samples)], self.reader) for item in block.items]
            if not items:
                raise TacitError(f"{samples} has no samples", "check the path", code="predict.no-samples")
            return torch.cat([self.reader.item(item)[0] for item in items])
        if (
            isinstance(samples, list | tuple)
            and samples
            and not _is_number(samples[0])
            and not _are_texts(samples, self)
        ):
            return torch.cat([self.stored(sample) for sample in samples])
        return self.reader.values(samples)

    def numbers(self, labels: Any) -> Tensor:
        """(n,): the numbers of classes from 0 on, of labels that are their names or their numbers."""
        given = np.asarray(labels).reshape(-1)
        place = {name: number for number, name in enumerate(self.classes)}
        if all(str(label) in place for label in given.tolist()):
            return torch.tensor([place[str(label)] for label in given.tolist()], dtype=torch.int64)
        if given.dtype.kind not in "iu" or not 0 <= given.min() <= given.max() < len(self.classes):
            unknown = next(str(label) for label in given.tolist() if str(label) not in place)
            remedy = f"use the names {', '.join(self.classes[:10])}, or numbers from 0 to {len(self.classes) - 1}"
            raise TacitError(f"the model knows no class {unknown}", remedy, code="predict.unknown-class")
        return torch.from_numpy(given.astype(np.int64))

    def logits(self, x: Tensor) -> Tensor:
        """Stored samples (n, …) -> (n, classes), with the bits of an evaluation in training."""
        return self._parts(x, lambda part: self.architecture.apply(self._fast, part))

    def probabilities(self, x: Tensor) -> Tensor:
        """Stored samples (n, …) -> (n, classes)."""
        return self.to_probabilities(self.logits(x))

    def to_probabilities(self, logits: Tensor) -> Tensor:
        """Logits as probabilities, at the model's temperature."""
        return functional.softmax(logits / self.description.temperature, dim=1)

    def features(self, x: Tensor) -> Tensor:
        """Stored samples (n, …) -> (n, k): what the last layer sees; without features, the probabilities."""
        if not self.has_features:
            return self.probabilities(x)
        return self._parts(x, lambda part: self.architecture.features(self._fast, part).flatten(1))

    @torch.no_grad()
    def _parts(self, x: Tensor, step: Any) -> Tensor:
        if not len(x):
            raise TacitError("there are no samples", "give at least one", code="predict.no-samples")
        with one_thread():
            return torch.cat([step(self.views.plain(part)) for part in x.split(EVALUATION_BATCH)])


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float | np.number)


def _are_texts(samples: Sequence[Any], model: Model) -> bool:
    return isinstance(model.reader, TextReader) and all(isinstance(sample, str) for sample in samples)
