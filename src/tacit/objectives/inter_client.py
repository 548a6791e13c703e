"""Inter-client consistency (FedMatch): which clients help, what their models predict, and the cost of disagreement."""

from collections.abc import Mapping, Sequence
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from tacit import params
from tacit.learn import predict
from tacit.losses import divergence, weighted_mean
from tacit.method import Holder, ServerContext
from tacit.params import Params

Noise = Literal["gaussian", "pixels"]


def embedding(server: ServerContext, model: Params, noise: Noise) -> Tensor:
    """(c,), m = p_θ(y|a): the model's prediction on one input of noise a, the same for all models."""
    w, a = params.channels_last(model), server.inputs.noise(noise, server.views, server.streams.at("noise"))
    with torch.no_grad():
        m = functional.softmax(server.net.apply(w, a.to(server.device)), dim=1)[0]
    return m.cpu().nan_to_num()  # finite weights may overflow, and the tree takes finite points only


class Neighbours:
    """The clients seen so far, by the similarity of their models."""

    def __init__(self, embeddings: Mapping[int, Tensor]) -> None:
        """A KD-tree over all embeddings."""
        from scipy.spatial import KDTree  # slow to import, and only a server needs it

        self._clients = sorted(embeddings)
        self._points = [embeddings[client].tolist() for client in self._clients]
        self._tree = KDTree(self._points) if self._points else None

    def __call__(self, client: int, count: int) -> list[int]:
        """Up to `count` other clients, the most similar first."""
        if self._tree is None or not count:
            return []
        place = self._clients.index(client)
        _, found = self._tree.query(self._points[place], k=min(count + 1, len(self._clients)))
        others = [self._clients[int(index)] for index in torch.atleast_1d(torch.as_tensor(found)) if index != place]
        return others[:count]


def helper_predictions(client: Holder, helpers: Sequence[Params]) -> Tensor:
    """(H, n, c): helpers' predictions on the client's unlabeled samples, at their positions in its data."""
    data, unlabeled = client.samples, client.samples.unlabeled
    if not helpers or not len(unlabeled):
        return torch.zeros(0, len(data), 1, device=client.device)
    found = torch.stack([predict(client.net, model, data.x[unlabeled], client.views) for model in helpers])
    predictions = found.new_zeros(len(found), len(data), found.shape[2])
    predictions[:, unlabeled.to(found.device)] = found
    return predictions.to(client.device)


def inter_client(logits: Tensor, p_h: Tensor, among: Tensor) -> Tensor:
    """(n, c), (H, n, c), (n,) -> scalar, Eq. 1: 1/H Σ KL[p_h*(y|u) ‖ p_l(y|u)], mean over the samples in `among`."""
    if not len(p_h):
        return torch.zeros((), device=logits.device)
    apart = torch.stack([divergence(logits, target) for target in p_h]).mean(dim=0)
    return weighted_mean(apart, among, "kept")
