"""SCAFFOLD: Stochastic Controlled Averaging for Federated Learning (Karimireddy et al., ICML 2020), Algorithm 1."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch

from tacit import aggregation as agg
from tacit.learn import LocalState, Objective, batches, fit, learning_rate, loss_of_batch
from tacit.method import ClientContext, Needs, Positive, Reply, ServerContext
from tacit.objectives import FixMatch
from tacit.params import Params, add, channels_last, mean, scale, sub, zeros_like
from tacit.random import seeded
from tacit.updates import Change, TrainableChange

SHORTEST = 1e-5  # a travel shorter than this is lost in the rounding of float32, and the gradients with it


@dataclass(frozen=True)
class ScaffoldState:
    """The server model x, the server control variate c (parameters only), and the state of the server's training."""

    x: Params
    c: Params
    carried: LocalState | None = None


@dataclass(frozen=True)
class ScaffoldDown:
    """x and c."""

    x: Params
    c: Params


@dataclass(frozen=True)
class ScaffoldMemory:
    """The client's control variate c_i, and the state of its training."""

    c: Params
    carried: LocalState | None


@dataclass(frozen=True)
class ScaffoldUp:
    """Δy_i = y_i - x and Δc_i = c_i^+ - c_i."""

    dy: Change
    dc: TrainableChange


@dataclass(frozen=True)
class Scaffold:
    """FedAvg with control variates that remove the drift of local steps."""

    objective: Objective = FixMatch()  # the loss of a batch, at clients and server
    option: Literal["I", "II"] = "II"  # line 12: c_i^+ is the gradient at x (I) or the mean of those used (II)
    server_lr: Positive = 1.0  # η_g: step of the server towards the mean

    @property
    def per_sample(self) -> bool:
        """Whether an upload depends on samples through `fit` alone; option I sends another gradient of them."""
        return self.option == "II"

    @property
    def needs(self) -> Needs:
        """Momentum that starts afresh, since it cannot be separated from gradients; labels as the objective needs."""
        return Needs(client_labels=self.objective.labels_only, fresh_momentum=True, true_mean=True)

    def start(self, server: ServerContext) -> ScaffoldState:
        """Line 1: initial x; c and all c_i are zero."""
        x = server.initial()
        return ScaffoldState(x, zeros_like({name: x[name] for name in server.net.trainable}))

    def send(self, server: ServerContext, state: ScaffoldState) -> tuple[ScaffoldState, Mapping[int, ScaffoldDown]]:
        """Line 5: communicate (x, c) to the cohort; if the server has labels, it trains x first."""
        trained = agg.fit_server(server, state.x, self.objective, state.carried)
        state = ScaffoldState(trained.params, state.c, trained.carried)
        return state, dict.fromkeys(server.cohort, ScaffoldDown(state.x, state.c))

    def client_update(
        self, client: ClientContext, memory: ScaffoldMemory | None, down: ScaffoldDown
    ) -> Reply[ScaffoldMemory, ScaffoldUp]:
        """Lines 6 to 14."""
        memory = memory or ScaffoldMemory(zeros_like(down.c), None)
        correction = sub(down.c, memory.c)
        trained = fit(client, down.x, self.objective, carried=memory.carried, correction=correction)  # lines 7 to 11
        if not trained.steps:
            return Reply(memory, None, model=down.x)
        dy = sub(trained.params, down.x)
        travel = _travel(client, trained.steps)
        if self.option == "I":
            c_new = self._gradient(client, down.x, memory.carried)
        elif travel < SHORTEST:
            c_new = memory.c
        else:
            drift = scale({name: dy[name] for name in down.c}, -1 / travel)
            c_new = add(sub(memory.c, down.c), drift)  # c_i - c + (x - y_i)/(K·η_l)
        up = ScaffoldUp(dy, sub(c_new, memory.c))  # line 13
        return Reply(ScaffoldMemory(c_new, trained.carried), up, trained.metrics, trained.params, trained.pseudo_labels)

    def merge(self, server: ServerContext, state: ScaffoldState, ups: Mapping[int, ScaffoldUp]) -> ScaffoldState:
        """Lines 16 and 17: x ← x + η_g/|S|·ΣΔy_i, c ← c + 1/N·ΣΔc_i."""
        if not ups:
            return state
        alike = [1.0] * len(ups)
        step = server.combine((up.dy for up in ups.values()), alike)
        step |= scale({name: step[name] for name in state.c}, self.server_lr)  # buffers follow the plain mean
        x = agg.apply_buffer_policy(server, state.x, add(state.x, step))
        c = add(state.c, scale(server.combine((up.dc for up in ups.values()), alike), len(ups) / server.clients))
        return ScaffoldState(x, c, state.carried)

    def model(self, state: ScaffoldState) -> Params:
        """x."""
        return state.x

    def _gradient(self, client: ClientContext, x: Params, carried: LocalState | None) -> Params:
        """Option I: the gradient of the local loss at x, averaged over one pass of the local batches."""
        names, w = client.net.trainable, channels_last(x)
        leaves = [w[name].requires_grad_() for name in names]
        local = self.objective.local_loss(client, x, carried.objective if carried else {})
        grads, weights = [], []
        with seeded(client.stream("layers"), client.device):
            for batch in batches(client, self.objective.labels_only, once=True):
                grad = torch.autograd.grad(
                    loss_of_batch(local, client.net, w, batch).total, leaves, materialize_grads=True
                )
                grads.append(dict(zip(names, grad, strict=True)))
                weights.append(float(len(batch.y) + len(batch.u)))
        return mean(grads, weights)


def _travel(client: ClientContext, steps: int) -> float:
    """How far `steps` steps along a constant gradient of 1 would lead: K·η_l in the paper, which has no momentum.

    With momentum ρ the j-th step is (1 - ρ^j)/(1 - ρ) times as long (one power more with Nesterov); dividing by the
    sum keeps c_i^+ a weighted mean of the gradients instead of over-estimating them 1/(1 - ρ) times.
    """
    train = client.train
    rho, ahead = train.momentum, 1 if train.nesterov and train.momentum else 0
    lengths = sum((1 - rho ** (j + ahead)) / (1 - rho) for j in range(1, steps + 1))
    return learning_rate(train, client.round, client.rounds) * lengths


METHODS = {"scaffold": Scaffold}
