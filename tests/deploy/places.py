"""A hub and sites on disk, small enough to train in a moment."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w
from numpy.typing import NDArray
from PIL import Image

from tacit.data.federate import federate
from tacit.deploy.consent import read_consent, record_check
from tacit.deploy.federation_spec import FederationSpec, federation_toml
from tacit.deploy.identity import plain
from tacit.deploy.settings import Site, load_settings
from tacit.deploy.site_init import create_key_pair
from tacit.runs import config as configs
from tacit.runs.build import build_data
from tacit.runs.config import Config
from tests.engines.farm import images

SMALL: dict[str, Any] = {
    "net": "lenet",
    "net.width": 0.5,
    "rounds": 3,
    "epochs": 1,
    "batch": 8,
    "data.normalise": "half",
}
NAMES = ("cat", "dog", "yak")


def arrays(count: int) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Pixels (n, 1, 16, 16) and labels 0, 1, 2."""
    x, y = images(count)
    return x.numpy(), y.numpy()


def hub_config(folder: Path, **options: Any) -> Config:
    """The config of a run whose hub has twelve labeled images and thirty test images."""
    x, y = arrays(42)
    np.savez(folder / "hub.npz", x=x[:12], y=y[:12], x_test=x[12:], y_test=y[12:])
    given = SMALL | {"data": str(folder / "hub.npz"), "partition": "sites", "clients": 3} | options
    return configs.from_options(given)


def federation_spec(config: Config) -> FederationSpec:
    """The spec that the hub derives from its data."""
    return FederationSpec.of(federate(*build_data(config), config.data))


def run_info(config: Config, run: str = "run-1") -> dict[str, str]:
    """What the hub sends about a run with every message."""
    from tacit.deploy import hub  # needs Flower

    return hub.run_info(config, federation_spec(config), run, build_data(config)[1])


def site(folder: Path, name: str, **settings: Any) -> Path:
    """A folder with a `site.toml`; the path of the file. Runs may split the hub's data set over such sites."""
    (folder / name).mkdir(parents=True, exist_ok=True)
    path = folder / name / "site.toml"
    given = {"name": name, "allow_data": [str(folder / "hub.npz")]} | settings
    path.write_text(tomli_w.dumps(given), encoding="utf-8")
    return path


def site_with_arrays(folder: Path, name: str, **arrays: NDArray[Any]) -> Path:
    """A site whose data is a .npz file with these arrays."""
    path = site(folder, name, data="own.npz")
    np.savez(path.parent / "own.npz", **arrays)  # type: ignore[arg-type]  # as in tests/data
    return path


def site_with_key(folder: Path, name: str, **settings: Any) -> tuple[Path, str]:
    """A folder with a `site.toml` and a pair of keys; the path of the file, and the public key."""
    path = site(folder, name, key=f"{name}.key", **settings)
    private, public = create_key_pair(name)
    (path.parent / f"{name}.key").write_bytes(private)
    return path, plain(public.decode())


def write_federation_file(path: Path, config: Config, keys: Mapping[str, str] | None = None) -> Path:
    """Put the hub's `federation.toml` next to a `site.toml`."""
    text = federation_toml(config, federation_spec(config), keys)
    (path.parent / "federation.toml").write_text(text, encoding="utf-8")
    return path


def agree(path: Path, config: Config, keys: Mapping[str, str] | None = None) -> Path:
    """Put the hub's `federation.toml` next to a `site.toml`, and let its check have passed."""
    write_federation_file(path, config, keys)
    record_check(path, read_consent(path, load_settings(Site, path)).digest)
    return path


def member(path: Path) -> dict[str, Any]:
    """The settings of the node of a site that takes part in what it has agreed to."""
    return {"site": str(path), "hub": "127.0.0.1:1"}


def trial(path: Path) -> dict[str, Any]:
    """The settings of the node of a site that takes part in any run."""
    return member(path) | {"any-run": True}


def image_folder(folder: Path, counts: Mapping[str, int], side: int = 16) -> Path:
    """Grey images in folders such as `labeled/cat`; those of one class differ in their noise only."""
    x, y = arrays(60)
    for place, count in counts.items():
        (folder / place).mkdir(parents=True)
        name = Path(place).name
        rows = x[y == NAMES.index(name)] if name in NAMES else x
        for number, pixels in enumerate(rows[:count, 0]):
            Image.fromarray(pixels).resize((side, side)).save(folder / place / f"{number}.png")
    return folder
