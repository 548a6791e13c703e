"""What a site must know about a federation to read its own data as everyone does, and the file that holds it."""

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomli_w

from tacit import user_code
from tacit.data import inputs
from tacit.deploy.settings import missing_field
from tacit.deploy.site_errors import ShareableError
from tacit.errors import TacitError
from tacit.federation import Federation, Inputs
from tacit.runs import config as configs
from tacit.runs import toml_file
from tacit.runs.config import Config
from tacit.runs.settings import check

_HEADER = """\
# From the hub: the form of this federation's data, and the run that is planned.
# Sites put this file next to site.toml; `tacit site check` then shows what would leave the machine.

"""


@dataclass(frozen=True)
class _Classes:
    """The part of a spec that does not depend on the kind of samples."""

    classes: tuple[str, ...]


@dataclass(frozen=True)
class FederationSpec:
    """The form of the samples and the classes: everything but the samples. The section [description] of the file."""

    classes: tuple[str, ...]  # names, in the order of the network's outputs
    inputs: Inputs  # what a sample is

    def __post_init__(self) -> None:
        """Refuse classes that no network could tell apart."""
        if len(self.classes) < 2 or len(set(self.classes)) < len(self.classes):
            raise _broken("classes are not two or more different names")

    @classmethod
    def of(cls, federation: Federation) -> "FederationSpec":
        """The form of a federation's samples."""
        return cls(federation.classes, federation.inputs)

    def to_toml(self) -> str:
        """As TOML, for messages."""
        return tomli_w.dumps(_tree(self))

    @classmethod
    def from_toml(cls, text: str) -> "FederationSpec":
        """From `to_toml`."""
        try:
            return cls.from_tree(tomllib.loads(text))
        except tomllib.TOMLDecodeError as error:
            raise _broken(f"it is not valid TOML ({error})") from error

    @classmethod
    def from_tree(cls, tree: Any) -> "FederationSpec":
        """From parsed TOML."""
        if not isinstance(tree, dict):
            raise _broken("it is not a section")
        try:
            kind = inputs.kind_of(tree)
            described = {name: value for name, value in tree.items() if name != "classes" and name not in kind.marks}
            if name := missing_field(_Classes, tree) or missing_field(kind, described):
                raise _broken(f"it has no {name}")
            classes: tuple[str, ...] = check(_Classes, {"classes": tree["classes"]}, "description")["classes"]
            values = check(kind, described, "description", hidden=("alphabet",))
            return cls(classes, inputs.from_plain(values | dict(kind.marks), classes))
        except ValueError as error:
            raise _broken(str(error)) from error


def federation_toml(config: Config, spec: FederationSpec, keys: Mapping[str, str] | None = None) -> str:
    """The file `federation.toml` of a run; `keys` are the public keys of its sites, for secure aggregation."""
    pinned = {"keys": dict(sorted(keys.items()))} if keys else {}
    described = {"description": _tree(spec), "config": tomllib.loads(configs.dumps(config))}
    return _HEADER + tomli_w.dumps(pinned | described)


def _keys(tree: Mapping[str, Any], path: Path) -> dict[str, str]:
    """The public keys of the sites; none if the run needs none."""
    found = tree.get("keys", {})
    if not isinstance(found, dict) or not all(isinstance(key, str) for key in found.values()):
        raise TacitError(
            f"[keys] of {path} does not have a public key for each site",
            "ask the hub for its federation.toml again",
            code="federation.broken-key",
        )
    return found


def read_federation(path: Path, allow: Iterable[str] = ()) -> tuple[Config, FederationSpec, dict[str, str]]:
    """The run, the spec and the public keys of the sites in a file `federation.toml`, which comes from the hub.

    Code outside Tacit that the run names as `module:name` is imported only if it is in `allow`.
    """
    if not path.is_file():
        raise TacitError(
            f"there is no file {path}",
            "ask the hub for its federation.toml and put it there",
            code="federation.no-file",
        )
    tree = toml_file.read(path)
    for name in ("description", "config"):
        if not isinstance(tree.get(name), dict):
            raise TacitError(
                f"{path} has no section [{name}]",
                "ask the hub for its federation.toml again",
                code="federation.incomplete-file",
            )
    with user_code.only(allow):
        config = configs.make(tree["config"])
    return config, FederationSpec.from_tree(tree["description"]), _keys(tree, path)


def _tree(spec: FederationSpec) -> dict[str, Any]:
    """Plain lists and values."""
    return {"classes": list(spec.classes)} | spec.inputs.to_plain()


def _broken(what: str) -> ShareableError:
    return ShareableError(
        f"the hub's description of the federation is broken: {what}",
        "ask the hub for it again",
        code="federation.broken",
    )
