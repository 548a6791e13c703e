"""FedSiam: Towards Adaptive Federated Semi-Supervised Learning (Long et al., 2020): Π, MT and D.

A client trains an online net by gradient and lets a target net follow it slowly. Both are averaged. The target always
travels in full; of the online net only layers that are far enough from the target's.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from tacit import params
from tacit.averaging import Weights, before_rounds, logged
from tacit.learn import Kept, Trained, Visit, epoch_steps, fit
from tacit.losses import Distance, ramp_up
from tacit.method import ClientContext, Count, Holder, Natural, Needs, NonNegative, Probability, Reply, ServerContext
from tacit.nets import Net
from tacit.objectives import Supervised
from tacit.objectives.parts import View, agreement
from tacit.params import Params

SMALLEST = 1e-30  # a norm that a divergence is divided by


@dataclass(frozen=True)
class Pair:
    """The online net θ_s, which learns by gradient, and the target net θ_t, which follows it."""

    online: Params
    target: Params


@dataclass(frozen=True)
class FedSiamMemory:
    """How long a client has trained so far, and what its training keeps."""

    steps: int = 0
    kept: Kept | None = None


@dataclass(frozen=True)
class FedSiamState:
    """Both nets, the divergences Λ of the last rounds, the share of online nets sent so far, the server's memory."""

    common: Pair
    window: tuple[Tensor, ...] = ()
    sent: float = 0.0
    rounds: int = 0  # that `sent` is a mean of
    own: FedSiamMemory = FedSiamMemory()


@dataclass(frozen=True)
class FedSiamDown:
    """The target net, the layers of the online net that differ from it, and the divergence from which layers travel."""

    target: Params
    online: Params
    boundary: float


@dataclass(frozen=True)
class FedSiamUp:
    """The target net, the layers of the online net from the boundary on, all divergences, and the samples n_k."""

    target: Params
    online: Params
    divergence: Tensor
    n: int


@dataclass(frozen=True)
class FedSiamPi:
    """FedSiam-Π: the target is the online net itself (α = 0), and all that travels is one net (τ = 0)."""

    distance: Distance = "squared"  # J between both answers: squared (Eq. 4), kl (Eq. 5), or mse (over classes)
    ramp: NonNegative = 10.0  # φ_l: β grows to 1 as exp(-5·(1 - t/φ_l)²)
    ramp_by: Literal["rounds", "epochs"] = "rounds"  # t: rounds of the federation, or epochs this client has trained
    over: Literal["labeled", "batch"] = "labeled"  # what the sum of L is divided by
    mixed: Natural = 0  # labeled samples so often among the unlabeled in batches of both; 0: batches of their own
    server_consistency: bool = False  # the server asks for agreement on its labeled samples too
    weights: Weights = "samples"  # of the clients in the average
    view: View = "weak"  # how both views are made

    needs = Needs(averaged_buffers=True)
    PRESETS: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "as-written": {},
        "as-released": {
            "distance": "mse",
            "ramp_by": "epochs",
            "over": "batch",
            "mixed": 3,
            "server_consistency": True,
            "weights": "uniform",
            "view": "plain",
        },
    }

    def start(self, server: ServerContext) -> FedSiamState:
        """Two nets, the same at first, that have seen the server's labels, if any."""
        w = server.initial()
        return self._learn_at_server(before_rounds(server), FedSiamState(Pair(w, self._other(server, w))))

    def send(self, server: ServerContext, state: FedSiamState) -> tuple[FedSiamState, Mapping[int, FedSiamDown]]:
        """Both nets and the boundary to everybody."""
        tau = self.tau(server.round + 1, server.rounds)
        target, online = state.common.target, state.common.online
        differing = {
            name: online[name]
            for layer in server.net.layers.values()
            if not params.equal(_of(online, layer), _of(target, layer))
            for name in layer
        }
        down = FedSiamDown(target, differing, boundary(state.window, tau))
        return state, dict.fromkeys(server.cohort, down)

    def client_update(
        self, client: ClientContext, memory: FedSiamMemory | None, down: FedSiamDown
    ) -> Reply[FedSiamMemory, FedSiamUp]:
        """Eq. 7 or Eq. 8, second line; then the target, and the online layers that differ enough from it."""
        pair, trained, memory = self._learn(client, Pair(down.target | down.online, down.target), memory)
        if not trained.steps:
            return Reply(memory, None, trained.metrics, self._ships(pair))
        apart = divergences(client.net, pair)
        travels = [layer for layer, far in apart.items() if not far < down.boundary]
        online = {name: pair.online[name] for layer in travels for name in client.net.layers[layer]}
        up = FedSiamUp(pair.target, online, torch.tensor([*apart.values()]), len(client.data))
        return Reply(memory, up, trained.metrics, self._ships(pair))

    def merge(self, server: ServerContext, state: FedSiamState, ups: Mapping[int, FedSiamUp]) -> FedSiamState:
        """Eq. 2 for both nets, layers that were kept back borrowed from their client's target; then Eq. 8, line 1."""
        if not ups:
            return self._learn_at_server(server, state)
        n = [float(up.n) if self.weights == "samples" else 1.0 for up in ups.values()]
        online = params.mean([up.target | up.online for up in ups.values()], n)
        target = params.mean([up.target for up in ups.values()], n)
        sent = sum(params.size(up.online) / params.size(up.target) for up in ups.values()) / len(ups)
        so_far = (state.sent * state.rounds + sent) / (state.rounds + 1)
        server.log("online_sent", sent)
        server.log("online_saved", 1 - so_far)  # what μ asks for, as it came out
        window = self._window((*state.window, torch.cat([up.divergence.cpu() for up in ups.values()])))
        merged = FedSiamState(Pair(online, target), window, so_far, state.rounds + 1, state.own)
        return self._learn_at_server(server, merged)

    def model(self, state: FedSiamState) -> Params:
        """The global model G."""
        return self._ships(state.common)

    def tau(self, round: int, rounds: int) -> float:
        """τ, the share of online layers that travels in round R_g = 1, 2, … of R_G."""
        return 0.0

    def _alpha(self, holder: Holder, steps: int, epochs: int) -> float:
        """α after a step, by the steps and the epochs that this holder has trained."""
        return 0.0

    def _ships(self, pair: Pair) -> Params:
        """Which net is the model."""
        return pair.online

    def _follows(self, holder: Holder) -> Sequence[str]:
        """What of the target follows the online net: everything, BatchNorm statistics too."""
        return holder.net.names

    def _window(self, window: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """What the server keeps of the divergences."""
        return ()

    def _other(self, server: ServerContext, w: Params) -> Params:
        """What the target net starts from."""
        return w

    def _learn_at_server(self, server: ServerContext, state: FedSiamState) -> FedSiamState:
        """Eq. 8, first line: both nets after training on the server's labels; as they are where it has none."""
        if not len(server.samples):
            return state
        pair, trained, own = self._learn(server, state.common, state.own)
        logged(server, trained)
        return replace(state, common=pair, own=own)

    def _learn(self, holder: Holder, start: Pair, memory: FedSiamMemory | None) -> tuple[Pair, Trained, FedSiamMemory]:
        """Both nets after training on what the holder has, and how long it has trained now."""
        memory, mixed = memory or FedSiamMemory(), self.mixed if isinstance(holder, ClientContext) else 0
        twins = _Twins(self, holder, start.target, memory, epoch_steps(holder, mixed=mixed))
        trained = fit(holder, start.online, twins, kept=memory.kept, mixed=mixed)
        done = FedSiamMemory(memory.steps + trained.steps, trained.kept)
        return Pair(trained.params, params.clone(twins.target)), trained, done


@dataclass(frozen=True)
class FedSiamMT(FedSiamPi):
    """FedSiam-MT: the target is a moving average of the online net, and both travel in full (τ = 1)."""

    alpha: Probability = 0.999  # α_max: how slowly the target follows; it grows to this as 1 - 1/(t + 1)
    clock: Literal["steps", "epochs"] = "steps"  # t: steps or epochs that this client has trained
    twins: Literal["same", "apart"] = "same"  # initial weights of both nets
    statistics: Literal["averaged", "own"] = "averaged"  # BatchNorm's in the target: follow too, or seen by itself
    ships: Literal["online", "target"] = "online"  # the net that is evaluated and shipped

    PRESETS: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "as-written": {},
        "as-released": {
            **FedSiamPi.PRESETS["as-released"],
            "clock": "epochs",
            "twins": "apart",
            "statistics": "own",
        },
    }

    def tau(self, round: int, rounds: int) -> float:
        """All layers travel."""
        return 1.0

    def _alpha(self, holder: Holder, steps: int, epochs: int) -> float:
        """The ramp-up of Eq. 9."""
        t = steps if self.clock == "steps" else epochs
        return min(1 - 1 / (t + 1), self.alpha)

    def _other(self, server: ServerContext, w: Params) -> Params:
        """The same weights; as released, weights of its own."""
        if self.twins == "same":
            return w
        return {
            name: value.to(server.device) for name, value in server.net.init(server.streams.at("init target")).items()
        }

    def _ships(self, pair: Pair) -> Params:
        """Which net is the model."""
        return pair.online if self.ships == "online" else pair.target

    def _follows(self, holder: Holder) -> Sequence[str]:
        """What of the target follows the online net."""
        return holder.net.names if self.statistics == "averaged" else holder.net.trainable


@dataclass(frozen=True)
class FedSiamD(FedSiamMT):
    """FedSiam-D: first as Π, then as MT with fewer and fewer online layers on their way, as τ says."""

    curve: Literal["linear", "rectangle", "rising"] = "linear"  # of τ: Eq. 11, Eq. 12, or the release's
    mu: Probability = 0.5  # μ: the share of the online nets that is not to travel, over all rounds
    phi_g: Count | None = None  # φ_g: rounds of Π at first; 3, or 10 with the rectangle
    phi_end: Count = 40  # φ: the round in which the rectangle ends
    window: Count | None = None  # rounds whose divergences Λ holds; φ_g when not given

    PRESETS: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "as-written": {},
        "as-released": {**FedSiamMT.PRESETS["as-released"], "curve": "rising", "window": 10},
    }

    def tau(self, round: int, rounds: int) -> float:
        """The curve of this round; its values above 1 are 1."""
        curve = {"linear": linear, "rectangle": rectangle, "rising": rising}[self.curve]
        return min(1.0, curve(round, rounds, self.mu, self._phi_g, self.phi_end))

    @property
    def _phi_g(self) -> int:
        return self.phi_g or (10 if self.curve == "rectangle" else 3)

    def _alpha(self, holder: Holder, steps: int, epochs: int) -> float:
        """0 while R_g ≤ φ_g, so that the target is the online net."""
        return 0.0 if holder.round < self._phi_g else super()._alpha(holder, steps, epochs)

    def _window(self, window: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Λ: the last rounds."""
        return window[-(self.window or self._phi_g) :]


class _Twins:
    """The objective L + β·J of one visit, and the target net that follows after every step."""

    labels_only = False

    def __init__(self, method: FedSiamPi, holder: Holder, target: Params, memory: FedSiamMemory, epoch: int) -> None:
        self.target = params.channels_last({name: value.to(holder.device) for name, value in target.items()})
        self._method, self._holder, self._memory = method, holder, memory
        self._epoch, self._steps = max(1, epoch), 0

    def visit(self, holder: Holder, received: Params, kept: Mapping[str, Tensor]) -> Visit:
        """Eq. 7 and 8: L + β·J, and L alone at the server; without labels J alone is left."""
        method = self._method
        if isinstance(holder, ClientContext) or method.server_consistency:
            cost = agreement(holder, method.view, method.distance, self._beta, self._told_by, method.over)
        else:
            cost = Supervised(method.view).visit(holder, received, kept).cost
        return Visit(cost, after_step=self._follow)

    def _follow(self, online: Params) -> None:
        """Eq. 3 and 9, after a step: θ_t = α·θ_t + (1 - α)·θ_s."""
        epochs = self._epochs()
        self._steps += 1
        alpha = self._method._alpha(self._holder, self._memory.steps + self._steps, epochs)
        names = self._method._follows(self._holder)
        old, new = [self.target[name] for name in names], [online[name].detach() for name in names]
        # In place: the order in memory, and with it the last bits of a convolution, stay as they are.
        torch._foreach_lerp_(old, new, 1 - alpha)

    def _told_by(self, online: Params) -> Params:
        """The target; where its statistics follow the online net, its own pass must not move them."""
        follows = self._method._follows(self._holder)
        passing = {name: self.target[name].clone() for name in self._holder.net.buffers if name in follows}
        return self.target | passing

    def _beta(self) -> float:
        by_rounds = self._method.ramp_by == "rounds"
        return ramp_up(self._holder.round + 1 if by_rounds else self._epochs(), self._method.ramp)

    def _epochs(self) -> int:
        """t of the release: epochs of earlier visits + E + epoch + 1, this visit's epochs counted from 0."""
        before, now = (steps // self._epoch for steps in (self._memory.steps, self._steps))
        return before + self._holder.train.epochs + now + 1


def divergences(net: Net, pair: Pair) -> dict[str, float]:
    """FSM of every layer, Eq. 10: ‖θ_t - θ_s‖ / ‖θ_s‖ of its parameters; finite for a layer of zeros too."""
    found = {}
    for layer, everything in net.layers.items():
        names = [name for name in everything if name in net.trainable] or everything
        online, target = _of(pair.online, names), _of(pair.target, names)
        apart, size = params.norm(params.sub(target, online)), params.norm(online)
        found[layer] = apart / max(size, SMALLEST)
    return found


def boundary(window: Sequence[Tensor], tau: float) -> float:
    """The divergence that a share τ of Λ reaches; nothing reaches it for τ = 0, everything for τ = 1."""
    if tau <= 0 or tau >= 1 or not window:
        return inf if tau <= 0 else -inf
    parts = [part.cpu().double() for part in window]  # after a resume, some are where the nets are
    return float(torch.cat(parts).nan_to_num().quantile(1 - tau))


def linear(round: int, rounds: int, mu: float, phi_g: int, phi_end: int) -> float:
    """Eq. 11: a fall to 0 at the end."""
    if round <= phi_g:
        return 0.0
    return -2 * (1 - mu) * rounds / (rounds - phi_g) ** 2 * (round - rounds)


def rectangle(round: int, rounds: int, mu: float, phi_g: int, phi_end: int) -> float:
    """Eq. 12: constant between φ_g and φ."""
    return (1 - mu) * rounds / (phi_end - phi_g) if phi_g < round < phi_end else 0.0


def rising(round: int, rounds: int, mu: float, phi_g: int, phi_end: int) -> float:
    """The release's linear curve, which grows: from 0 at φ_g to 0.9 at a turning point."""
    turn = int((mu * rounds - 0.1 * rounds - 1.35) / 0.45)
    if round <= phi_g:
        return 0.0
    return 0.9 * min(1.0, (round - phi_g) / max(1, turn - phi_g))


def _of(model: Params, names: Sequence[str]) -> Params:
    return {name: model[name] for name in names}


METHODS = {"fedsiam-pi": FedSiamPi, "fedsiam-mt": FedSiamMT, "fedsiam-d": FedSiamD}
