"""Inter-client consistency (FedMatch): who helps a client, what its helpers say, and what it costs to disagree."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from tacit.learn import predict
from tacit.losses import divergence, weighted_mean
from tacit.method import Holder
from tacit.params import Params


class Neighbours:
    """The clients seen so far by the similarity of their models."""

    def __init__(self, embeddings: Mapping[int, Tensor]) -> None:
        """A KD-tree over all embeddings."""
        from scipy.spatial import KDTree  # takes long to import, and only a server asks

        self._clients = sorted(embeddings)
        self._points = [embeddings[client].tolist() for client in self._clients]
        self._tree = KDTree(self._points) if self._points else None

    def __call__(self, client: int, count: int) -> list[int]:
        """So many others, the most similar first; fewer where there are not so many."""
        if self._tree is None or not count:
            return []
        place = self._clients.index(client)
        _, found = self._tree.query(self._points[place], k=min(count + 1, len(self._clients)))
        others = [self._clients[int(index)] for index in torch.atleast_1d(torch.as_tensor(found)) if index != place]
        return others[:count]


def told_by(client: Holder, helpers: Sequence[Params]) -> Tensor:
    """(H, n, c): what helpers say about the client's unlabeled samples, at their positions."""
    data, unlabeled = client.samples, client.samples.unlabeled
    if not helpers or not len(unlabeled):
        return torch.zeros(0, len(data), 1, device=client.device)
    found = torch.stack([predict(client.net, model, data.x[unlabeled], client.views) for model in helpers])
    answers = found.new_zeros(len(found), len(data), found.shape[2])
    answers[:, unlabeled.to(found.device)] = found
    return answers.to(client.device)


def inter_client(logits: Tensor, told: Tensor, among: Tensor) -> Tensor:
    """(n, c), (H, n, c), (n,) -> scalar, Eq. 1: 1/H Σ KL[p_h*(y|u) ‖ p_l(y|u)], the mean over these samples."""
    if not len(told):
        return torch.zeros((), device=logits.device)
    apart = torch.stack([divergence(logits, target) for target in told]).mean(dim=0)
    return weighted_mean(apart, among, "kept")
