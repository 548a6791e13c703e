"""A hub and sites on disk, small enough to train in a moment: what the tests of deployment build with."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w
from numpy.typing import NDArray
from PIL import Image

from tacit import config as configs
from tacit.config import Config
from tacit.data import scenario
from tacit.deploy.description import Description, federation_text
from tacit.prepare import build_data
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


def hub(folder: Path, **options: Any) -> Config:
    """A run of a hub that holds twelve labeled images and tests on thirty."""
    x, y = arrays(42)
    np.savez(folder / "hub.npz", x=x[:12], y=y[:12], x_test=x[12:], y_test=y[12:])
    given = SMALL | {"data": str(folder / "hub.npz"), "partition": "sites", "clients": 3} | options
    return configs.from_options(given)


def describe(config: Config) -> Description:
    """As a hub does it."""
    return Description.of(scenario.federation(*build_data(config), config.data))


def site(folder: Path, name: str, **settings: Any) -> Path:
    """A folder with a `site.toml`."""
    (folder / name).mkdir(parents=True, exist_ok=True)
    path = folder / name / "site.toml"
    path.write_text(tomli_w.dumps({"name": name} | settings), encoding="utf-8")
    return path


def site_with(folder: Path, name: str, **held: NDArray[Any]) -> Path:
    """A site with these arrays."""
    path = site(folder, name, data="own.npz")
    np.savez(path.parent / "own.npz", **held)  # type: ignore[arg-type]  # as in tests/data
    return path


def tell(path: Path, config: Config) -> Path:
    """Put the hub's `federation.toml` beside a `site.toml`."""
    text = federation_text(config, describe(config))
    (path.parent / "federation.toml").write_text(text, encoding="utf-8")
    return path


def image_folder(folder: Path, counts: Mapping[str, int], side: int = 16) -> Path:
    """Grey images in folders such as `labeled/cat`; those of a class are alike but for noise."""
    x, y = arrays(60)
    for place, count in counts.items():
        (folder / place).mkdir(parents=True)
        name = Path(place).name
        rows = x[y == NAMES.index(name)] if name in NAMES else x
        for number, pixels in enumerate(rows[:count, 0]):
            Image.fromarray(pixels).resize((side, side)).save(folder / place / f"{number}.png")
    return folder
