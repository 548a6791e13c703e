"""A wrong setting is one sentence that names the closest right one, and a written config gives the same run again."""

import inspect
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tacit
from tacit import catalog, nets
from tacit import config as configs
from tacit.config import Config, EngineConfig, LogConfig, NetConfig, flat, from_options, make, parse_assignment
from tacit.data.scenario import Scenario
from tacit.deploy.settings import Hub, Site
from tacit.engines.faults import Faults
from tacit.errors import TacitError
from tacit.method import Training
from tacit.objectives import OBJECTIVES
from tacit.params import equal
from tests.engines import farm

OWN = "my_methods.py"


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A module of the user's own in the folder the command is run in."""
    (tmp_path / OWN).write_text(
        inspect.cleandoc(
            """
            from dataclasses import dataclass
            from tacit.learn import Objective
            from tacit.objectives import FixMatch

            number = 3

            def function():
                pass

            class Plain:
                pass

            @dataclass(frozen=True)
            class Half:
                needs = None

                def start(self, server):
                    pass

            class Parts:
                needs = start = send = client_update = merge = model = None

            @dataclass(frozen=True)
            class Bare(Parts):
                size: int  # without a default

            @dataclass(frozen=True)
            class Open(Parts):
                objective: Objective  # without a default
            """
        )
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield
    sys.modules.pop("my_methods", None)


def test_dotted_names() -> None:
    tree = {"seed": 0, "net": {"name": "lenet", "norm": None}, "method": {"inner": {"mu": 0.1}}, "empty": {}}
    assert flat(tree) == {"seed": 0, "net.name": "lenet", "method.inner.mu": 0.1}


def refusal(settings: dict[str, Any]) -> str:
    """The sentence that refuses these settings, in nested form and by dotted names."""
    with pytest.raises(TacitError) as nested:
        make(settings)
    sentence = str(nested.value)
    assert "\n" not in sentence
    assert not sentence.endswith(".")
    assert len(sentence) < 300
    assert ". " not in sentence, "more than one sentence"
    with pytest.raises(TacitError):
        from_options(flat(settings))
    return sentence


@pytest.mark.parametrize(
    "settings, sentence",
    [
        ({"round": 3}, "unknown setting 'round': did you mean 'rounds'?"),
        ({"trian": {"lr": 0.1}}, "unknown setting 'trian': did you mean 'train'?"),
        ({"train": {"lrr": 0.1}}, "unknown setting in train 'lrr': did you mean 'lr'?"),
        ({"train": {"momemtum": 0.1}}, "unknown setting in train 'momemtum': did you mean 'momentum'?"),
        ({"server": {"epoch": 1}}, "unknown setting in server 'epoch': did you mean 'epochs'?"),
        ({"data": {"client": 3}}, "unknown setting in data 'client': did you mean 'clients'?"),
        ({"net": {"widht": 3}}, "unknown setting in net 'widht': did you mean 'width'?"),
        ({"engine": {"worker": 3}}, "unknown setting in engine 'worker': did you mean 'workers'?"),
        ({"faults": {"los": 0.3}}, "unknown setting in faults 'los': did you mean 'lost'?"),
        ({"log": {"check_every": 3}}, "unknown setting in log 'check_every': did you mean 'checkpoint_every'?"),
        (
            {"method": {"name": "fedprox", "muu": 1}},
            "unknown setting in method 'muu': did you mean 'mu'? fedprox has mu, weights",
        ),
        (
            {"method": {"name": "fedavg", "weight": "uniform"}},
            "unknown setting in method 'weight': did you mean 'weights'? fedavg has weights, server",
        ),
        (
            {"method": {"name": "fedavg+fixmatch"}, "objective": {"treshold": 0.9}},
            "unknown setting in objective 'treshold': did you mean 'threshold'? "
            "fixmatch has threshold, teacher, over, view, weight, labeler",
        ),
        ({"method": {"name": "fedavgg"}}, "unknown method 'fedavgg': did you mean 'fedavg'?"),
        ({"method": {"name": "fed-prox"}}, "unknown method 'fed-prox': did you mean 'fedprox'?"),
        (
            {"method": {"name": "fedavg+fixmach"}},
            "unknown objective 'fixmach': did you mean 'fixmatch'?",
        ),
        (
            {"method": {"name": "fedmatch", "preset": "as-realeased"}},
            "unknown preset 'as-realeased': did you mean 'as-released'?",
        ),
        ({"net": {"name": "lenett"}}, "unknown network 'lenett': did you mean 'lenet'?"),
        (
            {"data": {"name": "fashion_small"}},
            "unknown data set 'fashion_small': did you mean 'fashion-small'? Else give one of `tacit ls datasets`, "
            "or a path of your own such as ./fashion_small",
        ),
        (
            {"data": {"partition": "dirichle:0.3"}},
            "unknown partition 'dirichle': did you mean 'dirichlet'?",
        ),
        (
            {"train": {"schedule": "cosin"}},
            "unknown schedule 'cosin': choose constant, cosine, cosine:7/16 or decay:0.995",
        ),
    ],
)
def test_a_misspelt_name_is_answered_with_the_closest_one(settings: dict[str, Any], sentence: str) -> None:
    assert refusal(settings) == sentence


def test_a_name_unlike_all_others_is_answered_with_all_of_them() -> None:
    sentence = refusal({"net": {"name": "xyz"}})
    assert sentence == f"unknown network 'xyz': choose one of {', '.join(sorted(nets.NETS))}"


@pytest.mark.parametrize(
    "settings, says",
    [
        ({"rounds": 0}, "rounds = 0 is not possible: it should be greater than or equal to 1"),
        ({"rounds": -1}, "rounds = -1 is not possible"),
        ({"seed": -1}, "seed = -1 is not possible"),
        ({"cohort": 0}, "cohort = 0 is not possible"),
        ({"cohort": 11}, "a cohort of 11 can not be drawn from 10 clients: lower --cohort"),
        ({"data": {"clients": 0}}, "data.clients = 0 is not possible"),
        ({"data": {"labels": "sever"}}, "it should be 'client', 'server', 'some' or 'all'"),
        ({"data": {"label_fraction": 1.5}}, "less than or equal to 1"),
        ({"data": {"partition": "dirichlet"}}, "dirichlet needs a positive number, such as dirichlet:0.3"),
        ({"data": {"partition": "dirichlet:-1"}}, "dirichlet needs a positive number, such as dirichlet:0.3"),
        ({"data": {"partition": "iid:3"}}, "iid takes no number"),
        ({"train": {"lr": -0.1}}, "train.lr = -0.1 is not possible: it should be greater than 0"),
        ({"train": {"lr": 0}}, "train.lr = 0 is not possible"),
        ({"train": {"lr": float("nan")}}, "train.lr = nan is not possible"),
        ({"train": {"lr": float("inf")}}, "train.lr = inf is not possible: it should be a finite number"),
        ({"train": {"momentum": 1}}, "train.momentum = 1 is not possible: it should be less than 1"),
        ({"train": {"batch": 0}}, "train.batch = 0 is not possible"),
        ({"train": {"steps": 0}}, "train.steps = 0 is not possible"),
        ({"train": {"weight_decay": -1}}, "train.weight_decay = -1 is not possible"),
        ({"train": {"clip": 0}}, "train.clip = 0 is not possible"),
        ({"train": {"warmup": -1}}, "train.warmup = -1 is not possible"),
        ({"train": {"buffers": "drop"}}, "it should be 'average', 'keep' or 'recompute'"),
        ({"train": {"optimizer": "adam"}}, "it should be 'reset' or 'keep'"),
        ({"train": {"schedule": "decay:fast"}}, "unknown schedule 'decay:fast'"),
        ({"train": {"schedule": "decay"}}, "unknown schedule 'decay'"),
        ({"train": {"schedule": "constant:1"}}, "unknown schedule 'constant:1'"),
        ({"train": {"nesterov": True, "momentum": 0}}, "nesterov needs momentum: set train.momentum above 0"),
        (
            {"train": {"momentum": 0}, "server": {"nesterov": True}},
            "nesterov needs momentum: set server.momentum above 0",
        ),
        ({"server": {"lr": -1}}, "server.lr = -1 is not possible"),
        ({"server": {"schedule": "step"}}, "unknown schedule 'step'"),
        ({"net": {"norm": "layer"}}, "it should be 'none', 'batch' or 'group'"),
        ({"net": {"width": 0}}, "net.width = 0 is not possible"),
        ({"engine": {"workers": -1}}, "engine.workers = -1 is not possible"),
        ({"engine": {"deadline": 0}}, "engine.deadline = 0 is not possible"),
        ({"engine": {"deadline": float("inf")}}, "engine.deadline = inf is not possible"),
        ({"engine": {"name": "cloud"}}, "engine.name = 'cloud' is not possible"),
        ({"faults": {"lost": 1.5}}, "faults.lost = 1.5 is not possible: it should be less than or equal to 1"),
        ({"faults": {"lost": float("nan")}}, "faults.lost = nan is not possible"),
        ({"faults": {"slow": 0.1}}, "slow clients need a deadline: set engine.deadline, in seconds"),
        ({"log": {"checkpoint_every": 0}}, "log.checkpoint_every = 0 is not possible"),
        ({"method": {"name": "fedprox", "mu": -1}}, "method.mu = -1 is not possible"),
        ({"method": {"name": "fedprox", "weights": "size"}}, "it should be 'samples' or 'uniform'"),
        (
            {"method": {"name": "fedavg+fixmatch"}, "objective": {"threshold": 2}},
            "objective.threshold = 2 is not possible: it should be less than or equal to 1",
        ),
    ],
)
def test_an_impossible_value_is_refused(settings: dict[str, Any], says: str) -> None:
    assert says in refusal(settings)


@pytest.mark.parametrize(
    "settings, says",
    [
        ({"rounds": "many"}, "rounds = 'many' is not possible: it should be a valid integer"),
        ({"rounds": 2.5}, "rounds = 2.5 is not possible"),
        ({"rounds": [1]}, "rounds = [1] is not possible"),
        ({"train": {"lr": "fast"}}, "train.lr = 'fast' is not possible: it should be a valid number"),
        ({"train": {"nesterov": "perhaps"}}, "train.nesterov = 'perhaps' is not possible"),
        ({"data": {"name": 5}}, "data.name = 5 is not possible: it should be a valid string"),
        ({"data": {"clients": None}}, "data.clients = None is not possible"),
        ({"method": {"name": 5}}, "unknown method '5'"),
        ({"method": {"name": "fedprox", "mu": "x"}}, "method.mu = 'x' is not possible"),
    ],
)
def test_a_value_of_the_wrong_type_is_refused(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(TacitError) as caught:
        make(settings)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["data", "net", "train", "server", "engine", "faults", "log", "method", "objective"])
@pytest.mark.parametrize("value", ["fedavg", 3, [1, 2], True])
def test_a_section_given_as_a_value_is_refused(name: str, value: Any) -> None:
    with pytest.raises(TacitError) as caught:
        make({name: value})
    assert str(caught.value) == f"{name} is a section: write [{name}] and its settings below it"


@pytest.mark.parametrize("name", ["seed", "rounds", "cohort"])
def test_a_value_given_as_a_section_is_refused(name: str) -> None:
    with pytest.raises(TacitError, match=f"{name} = .* is not possible"):
        make({name: {"x": 1}})
    with pytest.raises(TacitError, match=name):
        from_options({f"{name}.x": 1})
    with pytest.raises(TacitError, match=name):
        from_options({f"{name}.x": 1}, {name: 5})


def test_settings_without_a_name_are_those_of_the_default_method() -> None:
    assert make({"method": {"weights": "uniform"}}).method == {"name": "fedavg", "weights": "uniform"}
    assert "unknown setting in method 'mu'" in refusal({"method": {"mu": 1}})


@pytest.mark.parametrize(
    "settings, sentence",
    [
        ({"method": {"mu": 1}}, "unknown setting in method 'mu': fedavg has server, weights"),
        ({"method": {"name": "scaffold", "mu": 1}}, "unknown setting in method 'mu': scaffold has option, server_lr"),
        ({"objective": {"x": 1}}, "unknown setting in objective 'x': fixmatch has labeler, "),
        ({"method": {"name": "local-only", "mu": 1}}, "local-only has no settings: leave method.mu out"),
        (
            {"method": {"name": "fedmatch", "lambda": 1}},
            "did you mean 'lambda_s'? fedmatch has lambda_s, lambda_l1, lambda_l2, ",
        ),
        ({"method": {"name": "fedmatch", "lambda": 1}}, " and 13 more of `tacit show fedmatch`"),
    ],
)
def test_a_setting_of_another_method_is_answered_with_those_there_are(settings: dict[str, Any], sentence: str) -> None:
    assert sentence in refusal(settings)


def test_settings_outside_of_any_section_are_named_by_what_they_are_for() -> None:
    with pytest.raises(TacitError, match=r"unknown setting in site 'nme': did you mean 'name'\?"):
        catalog.check(Site, {"nme": "north"}, "")


def test_a_data_file_is_named_by_its_full_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert make({"data": {"name": "images.npz"}}).data.name == str(tmp_path / "images.npz")


def test_settings_for_an_objective_a_method_does_not_have_are_refused(own: None) -> None:
    with pytest.raises(TacitError, match="my_methods:Bare brings its own objective: use it without '.fixmatch'"):
        make({"method": {"name": "my_methods:Bare+fixmatch", "size": 3}})
    with pytest.raises(TacitError, match="my_methods:Bare brings its own objective: leave objective.threshold out"):
        make({"method": {"name": "my_methods:Bare", "size": 3}, "objective": {"threshold": 0.9}})


@pytest.mark.parametrize(
    "name, says",
    [
        ("no_such_module:Method", "there is no module 'no_such_module': run this where no_such_module.py lies"),
        ("my_methods:Nobody", "can not load the method 'my_methods:Nobody'"),
        ("my_methods:", "can not load the method"),
        (":Method", "can not load the method"),
        ("my_methods:number", "my_methods:number can not serve as method: name a frozen dataclass"),
        ("my_methods:function", "my_methods:function can not serve as method: name a frozen dataclass"),
        ("my_methods:Plain", "my_methods:Plain can not serve as method: name a frozen dataclass"),
        ("my_methods:Half", "my_methods:Half can not serve as method: give it send, client_update, merge, model"),
        ("my_methods:Bare", "method.size has no default: set it"),
        ("my_methods:Open", "my_methods:Open needs an objective: write my_methods:Open+fixmatch or another"),
        ("fedavg+my_methods:number", "my_methods:number can not serve as objective: name a frozen dataclass"),
        ("fedavg+my_methods:Bare", "my_methods:Bare can not serve as objective: give it labels_only, visit"),
        ("fedavg+", "unknown objective ''"),
    ],
)
def test_a_method_that_can_not_be_built_is_refused(own: None, name: str, says: str) -> None:
    assert says in refusal({"method": {"name": name}})


@pytest.mark.parametrize(
    "options, says",
    [
        ({"methd": "fedavg"}, "unknown option 'methd': did you mean 'method'?"),
        ({"learning_rate": 1}, "unknown option 'learning_rate'"),
        ({"xyz": 1}, "`tacit show METHOD` lists a method's settings, and the config.toml of any run has all others"),
        ({"train.lrr": 1}, "unknown setting in train 'lrr'"),
        ({"trian.lr": 1}, "unknown setting 'trian': did you mean 'train'?"),
        ({"method.name.x": 1, "method": "fedavg"}, "unknown setting in method 'name.x'"),
        ({".x": 1}, "unknown setting ''"),
    ],
)
def test_an_unknown_option_is_refused(options: dict[str, Any], says: str) -> None:
    with pytest.raises(TacitError) as caught:
        from_options(options)
    assert says in str(caught.value)


def test_options_win_over_the_file_and_none_means_not_given() -> None:
    base = {"rounds": 7, "train": {"lr": 0.5, "batch": 4}}
    config = from_options({"lr": 0.25, "rounds": None, "clients": 3}, base)
    assert (config.rounds, config.train.lr, config.train.batch, config.data.clients) == (7, 0.25, 4, 3)
    assert base == {"rounds": 7, "train": {"lr": 0.5, "batch": 4}}, "the caller's own settings are left alone"


def test_every_short_name_stands_for_a_setting() -> None:
    sections = {item.name: item.type for item in fields(Config) if is_dataclass(item.type)}
    for path in configs.OPTIONS.values():
        section, dot, name = path.rpartition(".")
        if section == "method":
            continue
        kind = sections[section] if dot else Config
        assert name in {item.name for item in fields(kind)}


def test_the_server_trains_as_the_clients_but_for_its_section() -> None:
    config = make({"train": {"lr": 0.5, "batch": 4}, "server": {"lr": 0.1}})
    assert config.train == Training(lr=0.5, batch=4)
    assert config.server_train == Training(lr=0.1, epochs=10, batch=10)  # few labels: more passes, smaller batches
    assert make({"server": {"epochs": 1, "batch": 4}}).server_train == Training(epochs=1, batch=4)


@pytest.mark.parametrize(
    "text, name, value",
    [
        ("method.mu=0.1", "method.mu", 0.1),
        ("rounds=3", "rounds", 3),
        ("train.nesterov=true", "train.nesterov", True),
        ("data.name=fashion-small", "data.name", "fashion-small"),
        ('data.name="fashion-small"', "data.name", "fashion-small"),
        ("data.partition=dirichlet:0.3", "data.partition", "dirichlet:0.3"),
        ("data.name=a=b.npz", "data.name", "a=b.npz"),
        (" rounds = 3 ", "rounds", 3),
        ("train.lr=1e-3", "train.lr", 0.001),
        ("x=[1, 2]", "x", [1, 2]),
        ("x=", "x", ""),
        ("x=3 # three", "x", 3),
    ],
)
def test_an_assignment_is_read_as_toml_or_as_text(text: str, name: str, value: Any) -> None:
    assert parse_assignment(text) == (name, value)


@pytest.mark.parametrize("text", ["method.mu", "=3", "", " = 3"])
def test_what_is_no_assignment_is_refused(text: str) -> None:
    with pytest.raises(TacitError, match="is not a setting: write --set section.name=value") as caught:
        parse_assignment(text)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"seed": 2**70, "rounds": 3, "cohort": 2},
        {"method": {"name": "fedprox+fixmatch", "mu": 0.1}, "objective": {"threshold": 0.7}},
        {"train": {"lr": 1 / 3, "clip": 1e-300, "schedule": "cosine:7/16"}, "server": {"lr": 0.1}},
        {"faults": {"slow": 0.1}, "engine": {"deadline": 2.5, "workers": 0}},
        {"method": {"name": "fedmatch", "preset": "as-released-server", "threshold": 0.6}},
        {"data": {"name": 'weird "name" \\ü.npz', "per_class": 3}},
    ],
)
def test_a_config_that_is_written_and_read_is_the_same(tmp_path: Path, settings: dict[str, Any]) -> None:
    config = make(settings)
    path = tmp_path / "config.toml"
    path.write_text(configs.dumps(config), encoding="utf-8")
    assert make(configs.read(path)) == config
    assert configs.dumps(make(configs.read(path))) == configs.dumps(config)


def test_settings_of_a_method_are_kept_as_they_were_understood() -> None:
    """Numbers out of a numpy array or a string too, or they could not be written."""
    method = {"name": "fedprox+fixmatch", "mu": np.float32(0.25)}
    config = make({"method": method, "objective": {"threshold": "0.5"}})
    assert config.method == {"name": "fedprox+fixmatch", "mu": 0.25}
    assert config.objective == {"threshold": 0.5}
    assert make(tomllib.loads(configs.dumps(config))) == config


def test_a_preset_is_kept_by_name_and_what_is_set_beside_it_wins() -> None:
    config = make({"method": {"name": "fedmatch", "preset": "as-released", "threshold": "0.6"}})
    assert config.method == {"name": "fedmatch", "preset": "as-released", "threshold": 0.6}
    method: Any = make(tomllib.loads(configs.dumps(config))).build_method()
    assert (method.threshold, method.ties, method.psi_start) == (0.6, "lowest", 0.2)
    plain: Any = make({"method": {"name": "fedmatch"}}).build_method()
    assert (plain.threshold, plain.ties, plain.psi_start) == (0.85, "local", 0.0)


@pytest.mark.parametrize(
    "method, says",
    [
        (
            {"name": "fedmatch", "preset": "mine"},
            "unknown preset 'mine': choose one of as-released, as-released-server, as-written",
        ),
        ({"name": "fedmatch", "preset": ["as-released"]}, "unknown preset "),
        ({"name": "fedmatch", "preset": 3}, "unknown preset '3'"),
        ({"name": "fedprox", "preset": "as-released"}, "FedProx has no presets: leave method.preset out"),
        ({"name": "fedmatch", "preset": "as-released", "treshold": 1}, "unknown setting in method 'treshold'"),
    ],
)
def test_a_preset_that_is_not_there_is_refused(method: dict[str, Any], says: str) -> None:
    assert refusal({"method": method}).startswith(says)


def test_a_written_config_is_complete() -> None:
    """Defaults may change later; the run must not."""
    tree = tomllib.loads(configs.dumps(make({})))
    assert tree["train"]["lr"] == Training().lr
    assert tree["data"]["name"] == Scenario().name
    assert tree["engine"]["min_clients"] == EngineConfig().min_clients
    assert {"seed", "rounds", "method", "net", "faults", "log"} <= tree.keys()


def test_running_the_written_config_gives_the_same_bits(tmp_path: Path) -> None:
    data = farm.write_images(tmp_path / "images.npz")
    options: dict[str, Any] = {"method": "fedprox+fixmatch", "method.mu": 0.3, "lr": 1 / 30, "data": str(data)}
    options |= {"labels": "client", "per_class": 1, "clients": 4, "rounds": 2, "workers": 0}
    first = tacit.run(out=tmp_path / "run", **options)
    again = tacit.run(tmp_path / "run" / "config.toml")
    assert first.params is not None
    assert again.params is not None
    assert equal(first.params, again.params)
    assert again.config == first.config
    other = tacit.run(tmp_path / "run" / "config.toml", seed=1)
    assert other.params is not None
    assert not equal(first.params, other.params)


@pytest.mark.parametrize(
    "make_bad, says",
    [
        (lambda path: None, "there is no file"),
        (lambda path: path.mkdir(), "is a folder: give the path of a TOML config"),
        (lambda path: path.write_bytes(b"\xff\xfe"), "is not text in UTF-8: save it as UTF-8, or give another file"),
        (lambda path: path.write_text("rounds = 9" + 5000 * "9"), "is not valid TOML: Exceeds the limit"),
        (lambda path: path.write_text("rounds ="), "is not valid TOML"),
        (lambda path: path.write_text("[train]\nlr = 1\n[train]\n"), "is not valid TOML"),
    ],
)
def test_a_file_that_is_no_config_is_refused(tmp_path: Path, make_bad: Any, says: str) -> None:
    make_bad(tmp_path / "config.toml")
    with pytest.raises(TacitError) as caught:
        configs.read(tmp_path / "config.toml")
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


SETTINGS = [Training, Scenario, NetConfig, EngineConfig, LogConfig, Faults]


@pytest.mark.parametrize("kind", [*SETTINGS, *catalog.methods().values(), *OBJECTIVES.values()])
def test_every_setting_is_explained_where_it_is_defined(kind: type) -> None:
    found = catalog.settings(kind)
    assert [item.name for item in found] == [item.name for item in fields(kind)]
    for item in found:
        assert len(item.comment) > 3, f"{kind.__name__}.{item.name} has no comment"
    assert catalog.sentence(kind).endswith((".", "…"))


def test_settings_are_found_with_default_and_comment() -> None:
    lr = next(item for item in catalog.settings(Training) if item.name == "lr")
    assert (lr.default, lr.comment) == (0.01, "learning rate at the start")


@dataclass(frozen=True)
class Origin:
    """What others build on."""

    kept: int = 1  # as the origin says
    changed: int = 2  # as the origin says
    silent: int = 3  # as the origin says


@dataclass(frozen=True)
class Variant(Origin):
    """It has the origin's settings, one of them with another meaning, and one more."""

    changed: int = 20  # as the variant says
    silent: int = 30
    added: int = 40  # as the variant says


def test_settings_of_a_variant_include_those_it_inherits() -> None:
    found = [(item.name, item.default, item.comment) for item in catalog.settings(Variant)]
    assert found == [
        ("kept", 1, "as the origin says"),
        ("changed", 20, "as the variant says"),
        ("silent", 30, "as the origin says"),
        ("added", 40, "as the variant says"),
    ]
    assert [item.default for item in catalog.settings(Origin)] == [1, 2, 3]


def test_an_inherited_setting_is_explained_as_at_its_origin() -> None:
    kinds = (catalog.methods()[name] for name in ("fedsiam-d", "fedsiam-pi"))
    whole, basis = ({item.name: item for item in catalog.settings(kind)} for kind in kinds)
    assert basis.items() < whole.items()
    assert whole["mu"].comment.startswith("μ")


def test_every_method_and_objective_can_be_built_with_its_defaults() -> None:
    for name in catalog.methods():
        make({"method": {"name": name}})
        if catalog.method_kinds(name)[1] is not None:
            for objective in OBJECTIVES:
                make({"method": {"name": f"{name}+{objective}"}})


def test_a_mark_at_the_beginning_of_a_file_is_no_setting(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text("rounds = 3", encoding="utf-8-sig")
    assert configs.read(tmp_path / "config.toml") == {"rounds": 3}


def test_a_section_that_is_set_as_a_whole_keeps_the_rest_of_the_file() -> None:
    base = {"train": {"lr": 0.5, "batch": 7}, "data": {"labels": "all"}, "method": {"name": "fedprox"}}
    changes = configs.assignments(["train={lr=0.25, momentum=0.5}", "method={mu=0.125}", "data={clients=4}"])
    config = configs.from_options(changes, base)
    assert (config.train.lr, config.train.batch, config.train.momentum) == (0.25, 7, 0.5)
    assert config.method == {"name": "fedprox", "mu": 0.125}
    assert (config.data.labels, config.data.clients) == ("all", 4)


@pytest.mark.parametrize("digits", [400, 5000])
@pytest.mark.parametrize("name", ["seed", "rounds", "train.lr", "method.mu"])
def test_a_number_with_very_many_digits_is_one_short_sentence(name: str, digits: int) -> None:
    for changes in (configs.assignments([f"{name}=1{digits * '0'}"]), {name: 10**digits}):
        with pytest.raises(TacitError, match=f"{name} = .* is not possible: ") as caught:
            configs.from_options(changes, {"method": {"name": "fedprox"}})
        assert len(str(caught.value)) < 250


@pytest.mark.parametrize(
    "values, says",
    [
        ({"name": "a b"}, "name = 'a b' is not possible: it should be 1 to 64 plain letters, digits, '.', '_' and '-'"),
        ({"host": "a_b"}, "host = 'a_b' is not possible: it should be an IP address, or a name of plain letters"),
        ({"listen": "a_b"}, "it should be an IP address"),
        ({"sites": ["a", "b c"]}, "each name in it should be 1 to 64"),
    ],
)
def test_a_name_of_the_wrong_form_is_told_the_form(values: dict[str, Any], says: str) -> None:
    with pytest.raises(TacitError) as caught:
        catalog.check(Site if "name" in values else Hub, values, "")
    assert says in str(caught.value)
