"""Errors at a site: its operator sees them in full, the hub never sees a path or a file name."""

import traceback
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install tacit[flower]")

from tacit.deploy import site_data, supernode
from tacit.deploy.settings import Site
from tacit.deploy.site import introduce, open_workspace
from tacit.deploy.site_errors import ShareableError
from tests.deploy import places
from tests.refusals import refused

pytestmark = pytest.mark.flower

OTHER_ROOMS = ""  # the code belongs to the module that reads the data


@pytest.mark.parametrize(
    "settings, options, code",
    [
        ({}, {}, "site.no-data"),
        ({"data": "own.npz"}, {"partition": "iid", "per_class": 1}, "site.unexpected-data"),
        ({"data": "gone.npz"}, {}, OTHER_ROOMS),
        ({"data": "own.npz", "device": "abacus"}, {}, OTHER_ROOMS),
        ({"data": "many.npz"}, {}, OTHER_ROOMS),
        ({"data": "none.npz"}, {}, OTHER_ROOMS),
        ({"data": "list.csv"}, {}, OTHER_ROOMS),
        ({"data": "yetis"}, {}, OTHER_ROOMS),
        ({"data": "rgb.npz"}, {}, "site.wrong-shape"),
        ({"data": "rgba.npz"}, {}, "site.wrong-shape"),
        ({"data": "own.npz", "memory": "own.npz"}, {}, "storage.cannot-write"),
        ({"data": "own.npz", "federation": "fed.tml"}, {}, "site.no-consent"),
    ],
)
def test_a_refusal_reaches_the_hub_without_paths_and_the_site_in_full(
    settings: dict[str, str],
    options: dict[str, Any],
    code: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    config = places.hub_config(tmp_path, method="fedavg+fixmatch", **options)
    path = places.site(tmp_path, "a", **settings)
    x, y = places.arrays(6)
    arrays = {"own": (x, y), "many": (x, y + 1), "none": (x[:0], y[:0]), "rgb": (x.repeat(3, 1), y)}
    arrays["rgba"] = x.repeat(4, 1), y
    for name, (pixels, labels) in arrays.items():
        np.savez(path.parent / f"{name}.npz", x=pixels, y=labels)
    (path.parent / "list.csv").write_text("path,label\n/secret/gone.png,\n", encoding="utf-8")
    places.image_folder(path.parent / "yetis", {"labeled/yeti": 1})
    node = places.member(path) if "federation" in settings else places.trial(path)
    refusal = introduce(places.run_info(config), node).refusal
    shown: list[str] = []
    supernode._report(capsys.readouterr().out.splitlines(), Site("a"), shown.append)
    with pytest.raises(ShareableError) as caught:
        open_workspace(places.run_info(config), node, 0)
    assert str(caught.value) == refusal
    assert code in ("", caught.value.code)
    sent = refusal + "".join(traceback.format_exception(caught.value))
    for private in (str(tmp_path), "/secret", *settings.values()):
        assert private not in sent
    assert len(shown) == 1
    if code == OTHER_ROOMS:
        assert any(private in shown[0] for private in settings.values())
    else:
        assert shown[0].startswith("not taking part: ")


def test_an_unexpected_error_reaches_the_hub_without_its_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: Any) -> None:
        raise ValueError("/home/ann/smith.png is odd")

    monkeypatch.setattr(site_data, "load_part", fail)
    config = places.hub_config(tmp_path)
    x, y = places.arrays(6)
    node = places.trial(places.site_with_arrays(tmp_path, "a", x=x, y=y))
    refusal = introduce(places.run_info(config), node).refusal
    assert "site.failed" in refusal
    assert "smith" not in refusal
    with refused("site.failed") as caught:
        open_workspace(places.run_info(config), node, 0)
    assert "smith" not in "".join(traceback.format_exception(caught.error))
    assert "ValueError: /home/ann/smith.png is odd" in capsys.readouterr().out


def test_broken_settings_reach_the_hub_without_paths(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = places.site(tmp_path, "a", port=0)
    for ask in (introduce, lambda about, node: open_workspace(about, node, 0)):
        with pytest.raises(ShareableError) as caught:
            ask({}, {"site": str(path)})
        assert str(tmp_path) not in str(caught.value)
        assert str(tmp_path) in capsys.readouterr().out
