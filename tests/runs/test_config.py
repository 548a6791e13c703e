"""The config: wrong settings are refused with a remedy, and a written config gives the same run again."""

import inspect
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tacit
from tacit import nets
from tacit.data.split.config import DataConfig
from tacit.errors import TacitError
from tacit.method import Training
from tacit.objectives import OBJECTIVES
from tacit.params import equal
from tacit.runs import config as configs
from tacit.runs import registry
from tacit.runs.assignments import assignments, parse_assignment
from tacit.runs.config import Config, Role, flat, from_options, make
from tacit.runs.sections import EngineConfig
from tests.engines import farm
from tests.refusals import refused

OWN = "my_methods.py"


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The user's module in the folder where the command runs."""
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


def refusal(settings: dict[str, Any]) -> TacitError:
    """The error that refuses these settings, in nested form and by dotted names; it is one short sentence."""
    with pytest.raises(TacitError) as nested:
        make(settings)
    sentence = str(nested.value)
    assert "\n" not in sentence
    assert not sentence.endswith(".")
    assert len(sentence) < 300
    assert ". " not in sentence, "more than one sentence"
    with pytest.raises(TacitError):
        from_options(flat(settings))
    return nested.value


@pytest.mark.parametrize(
    "settings, kind, closest",
    [
        ({"round": 3}, "setting", "rounds"),
        ({"trian": {"lr": 0.1}}, "setting", "train"),
        ({"train": {"lrr": 0.1}}, "setting", "lr"),
        ({"train": {"momemtum": 0.1}}, "setting", "momentum"),
        ({"server": {"epoch": 1}}, "setting", "epochs"),
        ({"data": {"client": 3}}, "setting", "clients"),
        ({"net": {"widht": 3}}, "setting", "width"),
        ({"engine": {"worker": 3}}, "setting", "workers"),
        ({"faults": {"los": 0.3}}, "setting", "lost"),
        ({"log": {"check_every": 3}}, "setting", "checkpoint_every"),
        ({"method": {"name": "fedprox", "muu": 1}}, "setting", "mu"),
        ({"method": {"name": "fedavg", "weight": "uniform"}}, "setting", "weights"),
        ({"method": {"name": "fedavg+fixmatch"}, "objective": {"treshold": 0.9}}, "setting", "threshold"),
        ({"method": {"name": "fedavgg"}}, "method", "fedavg"),
        ({"method": {"name": "fed-prox"}}, "method", "fedprox"),
        ({"method": {"name": "fedavg+fixmach"}}, "objective", "fixmatch"),
        ({"method": {"name": "fedmatch", "preset": "as-realeased"}}, "preset", "as-released"),
        ({"net": {"name": "lenett"}}, "network", "lenet"),
        ({"data": {"name": "fashion_small"}}, "data-set", "fashion-small"),
        ({"data": {"partition": "dirichle:0.3"}}, "partition", "dirichlet"),
        ({"data": {"augment": "fixmach"}}, "strong-view", "fixmatch"),
    ],
)
def test_the_error_for_a_misspelled_name_suggests_the_closest_one(
    settings: dict[str, Any], kind: str, closest: str
) -> None:
    error = refusal(settings)
    assert error.code == f"names.unknown-{kind}"
    assert f"did you mean '{closest}'?" in error.remedy


def test_the_error_for_an_unknown_setting_of_a_method_lists_the_others() -> None:
    error = refusal({"method": {"name": "fedprox", "muu": 1}})
    assert (
        str(error)
        == "unknown setting in method 'muu'; did you mean 'mu'? fedprox has mu, tune_head, server_optimizer, weights"
    )


def test_the_error_for_a_name_unlike_all_others_lists_them_all() -> None:
    error = refusal({"net": {"name": "xyz"}})
    assert error.remedy == f"choose one of {', '.join(sorted(nets.NETS))}"


@pytest.mark.parametrize(
    "name, value",
    [
        ("rounds", 0),
        ("rounds", -1),
        ("seed", -1),
        ("cohort", 0),
        ("data.clients", 0),
        ("data.labels", "sever"),
        ("data.label_fraction", 1.5),
        ("train.lr", -0.1),
        ("train.lr", 0),
        ("train.lr", float("nan")),
        ("train.lr", float("inf")),
        ("train.momentum", 1),
        ("train.batch", 0),
        ("train.steps", 0),
        ("train.weight_decay", -1),
        ("train.clip", 0),
        ("train.warmup", -1),
        ("train.buffers", "drop"),
        ("train.optimizer", "adam"),
        ("server.lr", -1),
        ("net.norm", "layer"),
        ("net.width", 0),
        ("engine.workers", -1),
        ("engine.deadline", 0),
        ("engine.deadline", float("inf")),
        ("engine.name", "cloud"),
        ("faults.lost", 1.5),
        ("faults.lost", float("nan")),
        ("log.checkpoint_every", 0),
        ("method.mu", -1),
        ("method.weights", "size"),
        ("objective.threshold", 2),
        # of the wrong type
        ("rounds", "many"),
        ("rounds", 2.5),
        ("rounds", [1]),
        ("train.lr", "fast"),
        ("train.nesterov", "perhaps"),
        ("data.name", 5),
        ("method.mu", "x"),
    ],
)
def test_an_impossible_value_is_refused(name: str, value: Any) -> None:
    section, _, setting = name.rpartition(".")
    settings: dict[str, Any] = {section: {setting: value}} if section else {setting: value}
    if section in ("method", "objective"):
        settings = {"method": {"name": "fedprox+fixmatch"}} | settings
        settings["method"] = {"name": "fedprox+fixmatch"} | settings["method"]
    error = refusal(settings)
    assert error.code == "settings.impossible-value"
    assert error.problem == f"{name} = {value!r} is invalid"
    assert error.remedy.startswith("it must be ")


@pytest.mark.parametrize(
    "settings, remedy",
    [
        ({"rounds": 0}, "it must be greater than or equal to 1"),
        ({"data": {"label_fraction": 1.5}}, "it must be less than or equal to 1"),
        ({"train": {"lr": float("inf")}}, "it must be a finite number"),
        ({"train": {"optimizer": "adam"}}, "it must be 'reset' or 'keep'"),
        ({"net": {"norm": "layer"}}, "it must be 'none', 'batch' or 'group'"),
    ],
)
def test_the_error_for_an_impossible_value_says_what_is_possible(settings: dict[str, Any], remedy: str) -> None:
    assert refusal(settings).remedy == remedy


@pytest.mark.parametrize(
    "settings, code",
    [
        ({"cohort": 11}, "config.cohort-too-large"),
        ({"train": {"nesterov": True, "momentum": 0}}, "config.nesterov-without-momentum"),
        ({"train": {"momentum": 0}, "server": {"nesterov": True}}, "config.nesterov-without-momentum"),
        ({"faults": {"slow": 0.1}}, "config.slow-without-deadline"),
    ],
)
def test_settings_that_exclude_each_other_are_refused(settings: dict[str, Any], code: str) -> None:
    assert refusal(settings).code == code


@pytest.mark.parametrize("partition", ["dirichlet", "dirichlet:-1", "iid:3"])
def test_a_partition_with_a_wrong_number_is_refused(partition: str) -> None:
    assert partition.partition(":")[0] in refusal({"data": {"partition": partition}}).problem


@pytest.mark.parametrize("schedule", ["decay:fast", "decay", "constant:1", "cosin", "step"])
@pytest.mark.parametrize("section", ["train", "server"])
def test_an_unknown_schedule_is_refused(schedule: str, section: str) -> None:
    assert schedule in refusal({section: {"schedule": schedule}}).problem


def test_none_and_a_number_are_not_accepted_where_a_value_is_needed() -> None:
    with refused("settings.impossible-value"):
        make({"data": {"clients": None}})
    with refused("names.unknown-method"):
        make({"method": {"name": 5}})


@pytest.mark.parametrize("name", ["data", "net", "train", "server", "engine", "faults", "log", "method", "objective"])
@pytest.mark.parametrize("value", ["fedavg", 3, [1, 2], True])
def test_a_section_given_as_a_value_is_refused(name: str, value: Any) -> None:
    with refused("config.section-as-value") as caught:
        make({name: value})
    assert f"[{name}]" in caught.error.remedy


@pytest.mark.parametrize("name", ["seed", "rounds", "cohort"])
def test_a_value_given_as_a_section_is_refused(name: str) -> None:
    with refused("settings.impossible-value"):
        make({name: {"x": 1}})
    with refused("settings.impossible-value"):
        from_options({f"{name}.x": 1})
    with refused("config.value-and-section"):
        from_options({f"{name}.x": 1}, {name: 5})


def test_method_settings_without_a_name_belong_to_the_default_method() -> None:
    assert make({"method": {"weights": "uniform"}}).method == {"name": "fedavg", "weights": "uniform"}
    assert refusal({"method": {"mu": 1}}).code == "names.unknown-setting"


@pytest.mark.parametrize(
    "settings, remedy",
    [
        ({"method": {"mu": 1}}, "fedavg has tune_head, server_optimizer, server, weights"),
        ({"method": {"name": "scaffold", "mu": 1}}, "scaffold has option, server_lr"),
        ({"objective": {"x": 1}}, "fixmatch has class_weights, consistency, debias, labeler, "),
        (
            {"method": {"name": "fedmatch", "lambda": 1}},
            "did you mean 'lambda_s'? fedmatch has lambda_s, lambda_l1, lambda_l2, ",
        ),
        ({"method": {"name": "fedmatch", "lambda": 1}}, " and 13 more (see `tacit show fedmatch`)"),
    ],
)
def test_the_error_for_a_setting_of_another_method_lists_the_right_ones(settings: dict[str, Any], remedy: str) -> None:
    error = refusal(settings)
    assert error.code == "names.unknown-setting"
    assert remedy in error.remedy


def test_a_method_without_settings_refuses_any() -> None:
    assert refusal({"method": {"name": "local-only", "mu": 1}}).code == "settings.none"


def test_a_data_file_is_stored_with_its_full_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert make({"data": {"name": "images.npz"}}).data.name == str(tmp_path / "images.npz")


def test_a_method_with_its_own_objective_refuses_another_and_its_settings(own: None) -> None:
    for changes in ({"name": "my_methods:Bare+fixmatch"}, {"name": "my_methods:Bare"}):
        objective = {} if "+" in changes["name"] else {"objective": {"threshold": 0.9}}
        with refused("method.own-objective"):
            make({"method": changes | {"size": 3}} | objective)


@pytest.mark.parametrize(
    "name, code",
    [
        ("my_methods:number", "names.not-a-dataclass"),
        ("my_methods:function", "names.not-a-dataclass"),
        ("my_methods:Plain", "names.not-a-dataclass"),
        ("my_methods:Half", "names.incomplete-class"),
        ("my_methods:Bare", "settings.no-default"),
        ("my_methods:Open", "method.needs-objective"),
        ("fedavg+my_methods:number", "names.not-a-dataclass"),
        ("fedavg+my_methods:Bare", "names.incomplete-class"),
        ("fedavg+", "names.unknown-objective"),
        ("my_methods.py", "names.is-file"),
    ],
)
def test_a_method_that_cannot_be_built_is_refused(own: None, name: str, code: str) -> None:
    assert refusal({"method": {"name": name}}).code == code


def test_the_error_for_an_incomplete_method_lists_what_is_missing(own: None) -> None:
    assert refusal({"method": {"name": "my_methods:Half"}}).remedy == "add send, client_update, merge, model to it"


@pytest.mark.parametrize("name", ["no_such_module:Method", "my_methods:Nobody", "my_methods:", ":Method"])
def test_a_class_that_cannot_be_loaded_is_refused(own: None, name: str) -> None:
    refusal({"method": {"name": name}})


def test_an_objective_is_no_method() -> None:
    with refused("method.is-objective"):
        registry.method_kinds("fixmatch")


@pytest.mark.parametrize(
    "options, code",
    [
        ({"methd": "fedavg"}, "names.unknown-option"),
        ({"learning_rate": 1}, "names.unknown-option"),
        ({"xyz": 1}, "names.unknown-option"),
        ({"train.lrr": 1}, "names.unknown-setting"),
        ({"trian.lr": 1}, "names.unknown-setting"),
        ({"method.name.x": 1, "method": "fedavg"}, "names.unknown-setting"),
        ({".x": 1}, "names.unknown-setting"),
    ],
)
def test_an_unknown_option_is_refused(options: dict[str, Any], code: str) -> None:
    with refused(code):
        from_options(options)


def test_the_error_for_an_unknown_option_says_where_settings_are_listed() -> None:
    with refused("names.unknown-option") as caught:
        from_options({"xyz": 1})
    assert "`tacit show METHOD`" in caught.error.remedy


def test_options_override_the_file_and_none_means_not_given() -> None:
    base = {"rounds": 7, "train": {"lr": 0.5, "batch": 4}}
    config = from_options({"lr": 0.25, "rounds": None, "clients": 3}, base)
    assert (config.rounds, config.train.lr, config.train.batch, config.data.clients) == (7, 0.25, 4, 3)
    assert base == {"rounds": 7, "train": {"lr": 0.5, "batch": 4}}, "the caller's settings are unchanged"


def test_the_server_trains_like_the_clients_except_for_its_section() -> None:
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
def test_text_without_a_name_and_a_value_is_no_assignment(text: str) -> None:
    with refused("config.not-an-assignment"):
        parse_assignment(text)


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
def test_a_config_survives_writing_and_reading(tmp_path: Path, settings: dict[str, Any]) -> None:
    config = make(settings)
    path = tmp_path / "config.toml"
    path.write_text(configs.dumps(config), encoding="utf-8")
    assert make(configs.read(path)) == config
    assert configs.dumps(make(configs.read(path))) == configs.dumps(config)


def test_settings_of_a_method_are_stored_as_plain_values() -> None:
    """Also numbers from numpy or from a string; otherwise they could not be written."""
    method = {"name": "fedprox+fixmatch", "mu": np.float32(0.25)}
    config = make({"method": method, "objective": {"threshold": "0.5"}})
    assert config.method == {"name": "fedprox+fixmatch", "mu": 0.25}
    assert config.objective == {"threshold": 0.5}
    assert make(tomllib.loads(configs.dumps(config))) == config


def test_a_preset_is_stored_by_name_and_other_settings_override_it() -> None:
    config = make({"method": {"name": "fedmatch", "preset": "as-released", "threshold": "0.6"}})
    assert config.method == {"name": "fedmatch", "preset": "as-released", "threshold": 0.6}
    method: Any = make(tomllib.loads(configs.dumps(config))).build_method()
    assert (method.threshold, method.ties, method.psi_start) == (0.6, "lowest", 0.2)
    plain: Any = make({"method": {"name": "fedmatch"}}).build_method()
    assert (plain.threshold, plain.ties, plain.psi_start) == (0.85, "local", 0.0)


@pytest.mark.parametrize(
    "method, code",
    [
        ({"name": "fedmatch", "preset": "mine"}, "names.unknown-preset"),
        ({"name": "fedmatch", "preset": ["as-released"]}, "names.unknown-preset"),
        ({"name": "fedmatch", "preset": 3}, "names.unknown-preset"),
        ({"name": "fedprox", "preset": "as-released"}, "method.no-presets"),
        ({"name": "fedmatch", "preset": "as-released", "treshold": 1}, "names.unknown-setting"),
    ],
)
def test_an_unknown_preset_is_refused(method: dict[str, Any], code: str) -> None:
    assert refusal({"method": method}).code == code


def test_a_written_config_is_complete() -> None:
    """Defaults may change later; the run must not."""
    tree = tomllib.loads(configs.dumps(make({})))
    assert tree["train"]["lr"] == Training().lr
    assert tree["data"]["name"] == DataConfig().name
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
    "make_bad, code",
    [
        (lambda path: None, "config.no-file"),
        (lambda path: path.mkdir(), "config.is-folder"),
        (lambda path: path.write_bytes(b"\xff\xfe"), "config.not-text"),
        (lambda path: path.write_text("rounds = 9" + 5000 * "9"), "config.not-toml"),
        (lambda path: path.write_text("rounds ="), "config.not-toml"),
        (lambda path: path.write_text("[train]\nlr = 1\n[train]\n"), "config.not-toml"),
    ],
)
def test_a_file_that_is_no_config_is_refused(tmp_path: Path, make_bad: Any, code: str) -> None:
    make_bad(tmp_path / "config.toml")
    with refused(code) as caught:
        configs.read(tmp_path / "config.toml")
    assert "\n" not in str(caught.error)


def test_the_folder_of_a_run_in_place_of_a_config_suggests_its_config(tmp_path: Path) -> None:
    (tmp_path / "config.toml").touch()
    with refused("config.is-folder") as caught:
        configs.read(tmp_path)
    assert f"give {tmp_path / 'config.toml'}, or continue the run" in caught.error.remedy


def test_every_method_and_objective_can_be_built_with_its_defaults() -> None:
    for name in registry.methods():
        make({"method": {"name": name}})
        if registry.method_kinds(name)[1] is not None:
            for objective in OBJECTIVES:
                make({"method": {"name": f"{name}+{objective}"}})


def test_a_byte_order_mark_is_skipped(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text("rounds = 3", encoding="utf-8-sig")
    assert configs.read(tmp_path / "config.toml") == {"rounds": 3}


def test_setting_a_section_as_a_whole_leaves_its_other_settings_alone() -> None:
    base = {"train": {"lr": 0.5, "batch": 7}, "data": {"labels": "all"}, "method": {"name": "fedprox"}}
    changes = assignments(["train={lr=0.25, momentum=0.5}", "method={mu=0.125}", "data={clients=4}"])
    config = configs.from_options(changes, base)
    assert (config.train.lr, config.train.batch, config.train.momentum) == (0.25, 7, 0.5)
    assert config.method == {"name": "fedprox", "mu": 0.125}
    assert (config.data.labels, config.data.clients) == ("all", 4)


@pytest.mark.parametrize("digits", [400, 5000])
@pytest.mark.parametrize("name", ["seed", "rounds", "train.lr", "method.mu"])
def test_the_error_for_a_number_with_thousands_of_digits_is_short(name: str, digits: int) -> None:
    for changes in (assignments([f"{name}=1{digits * '0'}"]), {name: 10**digits}):
        with refused("settings.impossible-value") as caught:
            configs.from_options(changes, {"method": {"name": "fedprox"}})
        assert name in caught.error.problem
        assert len(str(caught.error)) < 250


def test_a_method_is_built_once_for_a_config(monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[str] = []
    original = registry.build_method

    def counted(name: str, *rest: Any) -> Any:
        built.append(name)
        return original(name, *rest)

    monkeypatch.setattr(configs, "build_method", counted)
    config = make({"method": {"name": "fedprox", "mu": "0.5"}})
    assert config.build_method() is config.build_method()
    assert built == ["fedprox"]


def test_data_at_sites_needs_a_hub() -> None:
    with refused("config.needs-hub"):
        configs.refuse_sites(make({"data": {"partition": "sites"}}))


# --- roles and fingerprints -------------------------------------------------------------------------------------------


def test_every_field_of_a_config_has_a_role() -> None:
    for item in fields(Config):
        assert isinstance(item.metadata.get("role"), Role), f"{item.name} has no role"
    assert sorted(name for role in Role for name in configs.names_of(role)) == sorted(configs.NAMES)


def test_another_seed_changes_the_outcome_but_not_the_settings() -> None:
    first, second = (make({"seed": seed}).fingerprints() for seed in (0, 1))
    assert first.settings == second.settings
    assert first.outcome != second.outcome


@pytest.mark.parametrize(
    "options",
    [
        {"workers": 3},
        {"engine.strict": True},
        {"engine.memory_mb": 1.0},
        {"track.tensorboard": True},
        {"track.mlflow": "somewhere"},
    ],
)
def test_engine_and_trackers_change_no_fingerprint(options: dict[str, Any]) -> None:
    assert from_options(options).fingerprints() == from_options({}).fingerprints()


@pytest.mark.parametrize(
    "options",
    [
        {"rounds": 31},
        {"cohort": 3},
        {"method": "fedprox"},
        {"method.weights": "uniform"},
        {"objective.threshold": 0.5},
        {"clients": 3},
        {"net": "linear"},
        {"lr": 0.5},
        {"server.lr": 0.5},
        {"faults.lost": 0.5},
        {"log.evaluate_every": 2},
    ],
)
def test_every_other_setting_changes_both_fingerprints(options: dict[str, Any]) -> None:
    changed, plain = from_options(options).fingerprints(), from_options({}).fingerprints()
    assert changed.outcome != plain.outcome
    assert changed.settings != plain.settings


def test_a_config_has_the_same_fingerprints_when_it_is_read_again() -> None:
    config = from_options({"method": "fedprox", "method.mu": 0.1, "lr": 1 / 3})
    assert make(tomllib.loads(configs.dumps(config))).fingerprints() == config.fingerprints()


# --- in full and in short ---------------------------------------------------------------------------------------------


def test_a_written_config_has_every_setting_of_method_objective_and_server() -> None:
    tree = tomllib.loads(configs.dumps(from_options({"method": "fedprox+fixmatch", "lr": 0.5, "server.lr": 0.25})))
    own = {"mu": 0.01, "weights": "uniform", "server_optimizer": "none", "tune_head": 0}
    assert tree["method"] == {"name": "fedprox+fixmatch", **own}
    assert tree["objective"] == {"threshold": 0.95, "weight": 1.0, "over": "batch"} | {
        "labeler": "local",
        "teacher": "weak",
        "view": "weak",
        "class_weights": "none",
        "labeler_beta": 0.0,
        "debias": False,
        "consistency": 0.0,
    }
    assert (tree["server"]["lr"], tree["server"]["epochs"], tree["server"]["momentum"]) == (0.25, 10, 0.9)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"method": "fedmatch", "method.preset": "as-released"},
        {"method": "fedmatch", "method.preset": "as-released", "method.patience": 5},
        {"method": "fedsiam-mt", "method.view": "plain"},
        {"method": "fedprox+fixmatch", "objective.threshold": 0.95},
        {"server.epochs": 1, "server.lr": 0.01, "train.clip": 1.0},
    ],
)
def test_a_config_read_back_from_its_full_form_is_the_same(options: dict[str, Any]) -> None:
    config = from_options(options)
    again = make(tomllib.loads(configs.dumps(config)))
    assert again == config
    assert again.fingerprints() == config.fingerprints()
    assert again.build_method() == config.build_method()
    assert again.server_train == config.server_train


@pytest.mark.parametrize("name", registry.methods())
def test_every_method_can_be_written_in_full(name: str) -> None:
    config = from_options({"method": name})
    assert make(tomllib.loads(configs.dumps(config))) == config


def test_a_setting_given_at_its_default_changes_no_fingerprint() -> None:
    given = from_options({"objective.threshold": 0.95, "method.weights": "samples", "server.lr": 0.01})
    assert given.fingerprints() == from_options({}).fingerprints()
    assert given == from_options({})


def test_another_rate_on_top_of_a_full_config_is_the_servers_too() -> None:
    full = tomllib.loads(configs.dumps(from_options({"server.epochs": 1})))
    config = from_options({"lr": 0.5}, full)
    assert (config.train.lr, config.server_train.lr, config.server_train.epochs) == (0.5, 0.5, 1)
    own = tomllib.loads(configs.dumps(from_options({"server.lr": 0.25})))
    assert from_options({"lr": 0.5}, own).server_train.lr == 0.25
