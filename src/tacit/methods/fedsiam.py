"""FedSiam: Towards Adaptive Federated Semi-Supervised Learning (Long et al., 2020): Π, MT and D.

A client trains an online net θ_s by gradient, and a target net θ_t follows it slowly. The server averages both. The
target always travels in full; of the online net only the layers that are far enough from the target's.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Annotated, Any, ClassVar, Literal

import torch
from torch import Tensor

from tacit import aggregation as agg
from tacit import params
from tacit.aggregation import Weights
from tacit.learn import LocalLoss, LocalState, Trained, View, epoch_steps, fit
from tacit.losses import Distance, ramp_up
from tacit.method import (
    ClientContext,
    Count,
    Holder,
    Natural,
    Needs,
    NonNegative,
    Probability,
    Reply,
    ServerContext,
    Variant,
)
from tacit.nets import Net
from tacit.objectives import Supervised
from tacit.objectives.parts import agreement
from tacit.params import Params
from tacit.updates import PartialUpdate, SampleCount, Shaped, Update

SMALLEST_NORM = 1e-30  # the divisor of Eq. 10 is at least this


@dataclass(frozen=True)
class TwoNets:
    """The online net θ_s, which learns by gradient, and the target net θ_t, which follows it."""

    online: Params
    target: Params


@dataclass(frozen=True)
class FedSiamMemory:
    """How many steps a client, or the server, has trained so far, and the state of its local training."""

    steps: int = 0
    carried: LocalState | None = None


@dataclass(frozen=True)
class FedSiamState:
    """Both nets, the divergences Λ of the last rounds, the mean share of online nets sent, the server's memory."""

    nets: TwoNets
    window: tuple[Tensor, ...] = ()
    sent: float = 0.0
    rounds: int = 0  # that `sent` is a mean of
    server: FedSiamMemory = FedSiamMemory()


@dataclass(frozen=True)
class FedSiamDown:
    """The target net, the layers of the online net that differ from it, and the divergence from which layers travel."""

    target: Params
    online: Params
    boundary: float


@dataclass(frozen=True)
class FedSiamUp:
    """The target net, the layers of the online net from the boundary on, all divergences, and the samples n_k."""

    target: Update
    online: PartialUpdate
    divergence: Annotated[Tensor, Shaped(lambda facts: (len(facts.net.layers),))]
    n: SampleCount


@dataclass(frozen=True)
class FedSiam:
    """An online net learns from labels and from agreement with a target net that follows it (α); τ says what travels.

    FedSiam-Π is α = 0 and τ = 0, FedSiam-MT is τ = 1, and FedSiam-D changes both with the rounds.
    """

    distance: Distance = "squared"  # J between both predictions: squared (Eq. 4), kl (Eq. 5), or mse (over classes)
    ramp: NonNegative = 10.0  # φ_l: β grows to 1 as exp(-5·(1 - t/φ_l)²)
    ramp_by: Literal["rounds", "epochs"] = "rounds"  # t: rounds of the federation, or epochs this client has trained
    over: Literal["labeled", "batch"] = "labeled"  # what the sum of L is divided by
    mixed: Natural = 0  # repeats of a labeled sample in batches shared with unlabeled ones; 0: separate batches
    server_consistency: bool = False  # the server also asks for agreement on its labeled samples
    weights: Weights = "samples"
    view: View = "weak"  # how both views are made
    alpha: Probability = 0.999  # α_max: how slowly the target follows; α grows to this as 1 - 1/(t + 1)
    clock: Literal["steps", "epochs"] = "steps"  # t: steps or epochs that this client has trained
    twins: Literal["same", "apart"] = "same"  # initial weights of both nets
    statistics: Literal["averaged", "own"] = "averaged"  # the target's BatchNorm: follows too, or sees for itself
    ships: Literal["online", "target"] = "online"  # the net that is evaluated and shipped
    tau: Probability | None = None  # τ in every round; by the curve, after φ_g rounds of Π, when not given
    curve: Literal["linear", "rectangle", "rising"] = "linear"  # of τ: Eq. 11, Eq. 12, or the release's
    mu: Probability = 0.5  # μ: the share of the online nets that is not to travel, over all rounds
    phi_g: Count | None = None  # φ_g: rounds of Π at first; 3, or 10 with the rectangle
    phi_end: Count = 40  # φ: the round in which the rectangle ends
    window: Count | None = None  # rounds whose divergences Λ holds; φ_g when not given

    PAPER_LR: ClassVar[float] = 0.01

    @property
    def needs(self) -> Needs:
        """Averaged statistics, and a known end if τ follows a curve over all rounds."""
        return Needs(averaged_buffers=True, planned_rounds=self.tau is None, separate_uploads=True)

    def start(self, server: ServerContext) -> FedSiamState:
        """Two nets, trained on the server's labels, if any."""
        online = server.initial()
        target = online if self.twins == "same" else _other_initial(server)
        return self._train_at_server(agg.setup_context(server), FedSiamState(TwoNets(online, target)))

    def send(self, server: ServerContext, state: FedSiamState) -> tuple[FedSiamState, Mapping[int, FedSiamDown]]:
        """Both nets and the boundary to the cohort; of the online net only what differs from the target."""
        target, online = state.nets.target, state.nets.online
        differing = {
            name: online[name]
            for layer in server.net.layers.values()
            if not params.equal(_of(online, layer), _of(target, layer))
            for name in layer
        }
        down = FedSiamDown(target, differing, boundary(state.window, self.tau_at(server.round + 1, server.rounds)))
        return state, dict.fromkeys(server.cohort, down)

    def client_update(
        self, client: ClientContext, memory: FedSiamMemory | None, down: FedSiamDown
    ) -> Reply[FedSiamMemory, FedSiamUp]:
        """Eq. 7, or Eq. 8, line 2; then the target, and the online layers that differ enough from it."""
        received = TwoNets(down.target | down.online, down.target)
        nets, trained, memory = self._train(client, received, memory, self.mixed, consistency=True)
        if not trained.steps:
            return Reply(memory, None, trained.metrics, self._shipped(nets))
        fsm = divergences(client.net, nets)
        travelling = [layer for layer, divergence in fsm.items() if not divergence < down.boundary]
        online = {name: nets.online[name] for layer in travelling for name in client.net.layers[layer]}
        up = FedSiamUp(nets.target, online, torch.tensor([*fsm.values()]), len(client.data))
        return Reply(memory, up, trained.metrics, self._shipped(nets))

    def merge(self, server: ServerContext, state: FedSiamState, ups: Mapping[int, FedSiamUp]) -> FedSiamState:
        """Eq. 2 for both nets, online layers that did not travel taken from the client's target; then Eq. 8, line 1."""
        if ups:
            n = [float(up.n) if self.weights == "samples" else 1.0 for up in ups.values()]
            online = server.combine((up.target | up.online for up in ups.values()), n)
            target = server.combine((up.target for up in ups.values()), n)
            sent = sum(params.size(up.online) / params.size(up.target) for up in ups.values()) / len(ups)
            so_far = (state.sent * state.rounds + sent) / (state.rounds + 1)
            server.log("online_sent", sent)
            server.log("online_saved", 1 - so_far)  # μ as it came out
            window = self._window((*state.window, torch.cat([up.divergence.cpu() for up in ups.values()])))
            state = FedSiamState(TwoNets(online, target), window, so_far, state.rounds + 1, state.server)
        return self._train_at_server(server, state)

    def model(self, state: FedSiamState) -> Params:
        """The global model G."""
        return self._shipped(state.nets)

    # --- α, β and τ ---------------------------------------------------------------------------------------------------

    @property
    def _phi_g(self) -> int:
        """Rounds of Π before the curve begins; none where τ is given."""
        return 0 if self.tau is not None else self.phi_g or (10 if self.curve == "rectangle" else 3)

    def alpha_at(self, round: int, steps: int, epochs: int) -> float:
        """α of Eq. 9 after a step in round R_g - 1; 0 while R_g ≤ φ_g, so that the target is the online net."""
        t = steps if self.clock == "steps" else epochs
        return 0.0 if round < self._phi_g else min(1 - 1 / (t + 1), self.alpha)

    def beta_at(self, round: int, epochs: int) -> float:
        """β of Eq. 7 in round R_g - 1."""
        return ramp_up(round + 1 if self.ramp_by == "rounds" else epochs, self.ramp)

    def tau_at(self, round: int, rounds: int) -> float:
        """τ, the share of online layers that travels in round R_g = 1, 2, … of R_G; values above 1 are cut."""
        if self.tau is not None:
            return self.tau
        curve = {"linear": linear, "rectangle": rectangle, "rising": rising}[self.curve]
        return min(1.0, curve(round, rounds, self.mu, self._phi_g, self.phi_end))

    def _window(self, divergences: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Λ: the last rounds, for as long as the curve asks for a quantile of them."""
        rounds = 0 if self.tau is not None else self.window or self._phi_g
        return divergences[-rounds:] if rounds else ()

    # --- training -----------------------------------------------------------------------------------------------------

    def _train_at_server(self, server: ServerContext, state: FedSiamState) -> FedSiamState:
        """Eq. 8, line 1: both nets after training on the server's labels; unchanged where it has none."""
        if not len(server.samples):
            return state
        nets, trained, memory = self._train(server, state.nets, state.server, 0, self.server_consistency)
        agg.logged(server, trained)
        return replace(state, nets=nets, server=memory)

    def _train(
        self, holder: Holder, start: TwoNets, memory: FedSiamMemory | None, mixed: int, consistency: bool
    ) -> tuple[TwoNets, Trained, FedSiamMemory]:
        """Both nets after local training, how it went, and how long the holder has trained now."""
        memory = memory or FedSiamMemory()
        siamese = _Siamese(self, holder, start.target, memory.steps, epoch_steps(holder, mixed=mixed), consistency)
        trained = fit(holder, start.online, siamese, carried=memory.carried, mixed=mixed)
        memory = FedSiamMemory(memory.steps + trained.steps, trained.carried)
        return TwoNets(trained.params, params.clone(siamese.target)), trained, memory

    def _shipped(self, nets: TwoNets) -> Params:
        return nets.online if self.ships == "online" else nets.target


class _Siamese:
    """The objective L + β·J of one local training, and the target net, which follows after every step."""

    labels_only = False
    needs = Needs()

    def __init__(
        self, method: FedSiam, holder: Holder, target: Params, steps: int, epoch: int, consistency: bool
    ) -> None:
        self.target = params.channels_last({name: value.to(holder.device) for name, value in target.items()})
        self._method, self._holder, self._consistency = method, holder, consistency
        self._before, self._now, self._epoch = steps, 0, max(1, epoch)  # steps of earlier visits, and of this one
        self._following = holder.net.names if method.statistics == "averaged" else holder.net.trainable

    def local_loss(self, holder: Holder, received: Params, carried: Mapping[str, Tensor]) -> LocalLoss:
        """Eq. 7 and 8: L + β·J, J alone without labels; L alone at a server that does not ask for consistency."""
        method = self._method
        if self._consistency:
            cost = agreement(holder, method.view, method.distance, self._beta, self._teacher, method.over)
        else:
            cost = Supervised(method.view).local_loss(holder, received, carried).cost
        return LocalLoss(cost, after_step=self._follow)

    def _follow(self, online: Params) -> None:
        """Eq. 3 and 9, after a step: θ_t = α·θ_t + (1 - α)·θ_s."""
        epochs = self._epochs()
        self._now += 1
        alpha = self._method.alpha_at(self._holder.round, self._before + self._now, epochs)
        old = [self.target[name] for name in self._following]
        new = [online[name].detach() for name in self._following]
        # In place: the order in memory, and with it the last bits of a convolution, stay the same.
        torch._foreach_lerp_(old, new, 1 - alpha)

    def _teacher(self, online: Params) -> Params:
        """The target; where its BatchNorm statistics follow the online net, its forward pass must not move them."""
        following = [name for name in self._holder.net.buffers if name in self._following]
        return self.target | {name: self.target[name].clone() for name in following}

    def _beta(self) -> float:
        return self._method.beta_at(self._holder.round, self._epochs())

    def _epochs(self) -> int:
        """t of the release: epochs of earlier visits + E + epoch + 1, this visit's epochs counted from 0."""
        return self._before // self._epoch + self._holder.train.epochs + self._now // self._epoch + 1


def divergences(net: Net, nets: TwoNets) -> dict[str, float]:
    """FSM of every layer, Eq. 10: ‖θ_t - θ_s‖ / ‖θ_s‖ of its parameters; finite for a layer of zeros too."""
    fsm = {}
    for layer, everything in net.layers.items():
        names = [name for name in everything if name in net.trainable] or everything
        online, target = _of(nets.online, names), _of(nets.target, names)
        fsm[layer] = params.norm(params.sub(target, online)) / max(params.norm(online), SMALLEST_NORM)
    return fsm


def boundary(window: Sequence[Tensor], tau: float) -> float:
    """The divergence that a share τ of Λ reaches; nothing reaches it for τ = 0, everything for τ = 1."""
    if tau <= 0 or tau >= 1 or not window:
        return inf if tau <= 0 else -inf
    parts = [part.cpu().double() for part in window]  # after a resume, some are on the device of the nets
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


def _other_initial(server: ServerContext) -> Params:
    """Initial weights of the target that are not those of the online net, as released."""
    w = server.net.init(server.streams.at("init target"))
    return {name: value.to(server.device) for name, value in w.items()}


def _of(model: Params, names: Sequence[str]) -> Params:
    return {name: model[name] for name in names}


# What the released code does and the paper does not say, or says otherwise: in Π, in MT too, and in D too.
_RELEASED_PI: dict[str, Any] = {
    "distance": "mse",
    "ramp_by": "epochs",
    "over": "batch",
    "mixed": 3,
    "server_consistency": True,
    "weights": "uniform",
    "view": "plain",
}
_RELEASED_MT = _RELEASED_PI | {"clock": "epochs", "twins": "apart", "statistics": "own"}
_RELEASED_D = _RELEASED_MT | {"curve": "rising", "window": 10}
_OF_MT = ("alpha", "clock", "twins", "statistics", "ships")
_OF_D = ("curve", "mu", "phi_g", "phi_end", "window")

METHODS = {
    "fedsiam-pi": Variant(
        FedSiam,
        "FedSiam-Π: the target is the online net itself (α = 0), and all that travels is one net (τ = 0).",
        defaults={"alpha": 0.0, "tau": 0.0},
        without=("tau", *_OF_MT, *_OF_D),
        presets={"as-written": {}, "as-released": _RELEASED_PI},
    ),
    "fedsiam-mt": Variant(
        FedSiam,
        "FedSiam-MT: the target is a moving average of the online net, and both travel in full (τ = 1).",
        defaults={"tau": 1.0},
        without=("tau", *_OF_D),
        presets={"as-written": {}, "as-released": _RELEASED_MT},
    ),
    "fedsiam-d": Variant(
        FedSiam,
        "FedSiam-D: first Π, then MT whose online net travels in part, by the curve of τ.",
        without=("tau",),
        presets={"as-written": {}, "as-released": _RELEASED_D},
    ),
}
