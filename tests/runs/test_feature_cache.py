"""Frozen layers are computed once: the same outputs, the same bits for any number of workers, a file for its owner."""

from pathlib import Path
from typing import Any

import pytest
import torch

import tacit
from tacit.nets.border import UpperNet
from tacit.runs import build as builds
from tacit.runs import config as configs
from tacit.runs.net.feature_cache import with_cached_features
from tests.engines import farm
from tests.refusals import refused

NET: dict[str, Any] = {
    "net": "efficientnet-lite0",
    "net.weights": "none",
    "net.width": 0.25,
    "net.options.side": 16,
    "net.views": 2,
}
SMALL: dict[str, Any] = {"labels": "client", "per_class": 2, "clients": 3, "rounds": 2, "batch": 10, "lr": 0.1}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TACIT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "features"


def options(tmp_path: Path, train: str, **changes: Any) -> dict[str, Any]:
    if not (tmp_path / "images.npz").exists():
        farm.write_images(tmp_path / "images.npz", 60, 20)
    return SMALL | NET | {"data": str(tmp_path / "images.npz"), "net.train": train} | changes


def jobs(tmp_path: Path, train: str, **changes: Any) -> tuple[Any, Any]:
    config = configs.from_options(options(tmp_path, train, **changes))
    job, _ = builds.build_job(config)
    return job, with_cached_features(config, job)


@pytest.mark.parametrize("train", ["head", "last:2"])
def test_the_upper_part_gives_the_outputs_of_the_whole(tmp_path: Path, train: str) -> None:
    whole, work = jobs(tmp_path, train)
    w = whole.net.init(torch.Generator().manual_seed(3))
    x = whole.federation.views.plain(whole.federation.test.x)
    stored = work.federation.views.plain(work.federation.test.x)
    assert isinstance(work.net, UpperNet)
    assert work.net.names == whole.net.names
    assert torch.allclose(work.net.apply(w, stored), whole.net.apply(w, x), atol=1e-5)
    wanted = whole.net.features_and_logits(w, x, train=True)
    for one, other in zip(work.net.features_and_logits(w, stored, train=True), wanted, strict=True):
        assert torch.allclose(one, other, atol=1e-5)


def test_a_sample_holds_its_plain_view_then_weak_and_strong_ones(tmp_path: Path) -> None:
    _, work = jobs(tmp_path, "head", **{"data.augment": "none"})
    assert work.federation.pool.x.shape[:2] == (60, 1 + 2 * 2)
    assert work.federation.test.x.shape[:2] == (20, 1)
    x, views, stream = work.federation.pool.x, work.federation.views, torch.Generator()
    assert torch.equal(views.plain(x), x[:, 0])
    weak, strong = views.weak(x, stream.manual_seed(0)), views.strong(x, stream.manual_seed(0))
    assert all(any(torch.equal(weak[k], x[k, v]) for v in (1, 2)) for k in range(60))
    assert all(any(torch.equal(strong[k], x[k, v]) for v in (3, 4)) for k in range(60))
    assert not torch.equal(x[:, 1], x[:, 2])
    together = views.of_batches(x, [40, 20], ["weak", "strong"], stream.manual_seed(1))
    stream.manual_seed(1)
    alone = [(views.weak(part, stream), views.strong(part, stream)) for part in (x[:40], x[40:])]
    for kind in (0, 1):
        assert torch.equal(together[kind], torch.cat([pair[kind] for pair in alone]))


@pytest.mark.parametrize("method", ["fedavg+fixmatch", "fedmatch", "anchor", "moon", "fed3r"])
def test_methods_train_on_it_with_the_same_bits_for_any_number_of_workers(tmp_path: Path, method: str) -> None:
    runs = []
    for workers in (0, 2):
        given = options(tmp_path, "last:1", method=method, workers=workers)
        runs.append(tacit.run(out=tmp_path / f"run{workers}", **given))
    one, two = ((tmp_path / f"run{workers}" / "model.safetensors").read_bytes() for workers in (0, 2))
    assert one == two
    model = tacit.load(tmp_path / "run0")  # sees images
    test = runs[0].job.federation.test
    assert model.score(test.x, test.y) == pytest.approx(runs[0].accuracy)


def test_files_are_made_once_and_only_their_owner_can_read_them(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs(tmp_path, "head")
    files = list(cache.glob("*.pixels"))
    assert files
    assert all(file.stat().st_mode & 0o077 == 0 for file in files)
    monkeypatch.setattr(UpperNet, "below", _only_one(UpperNet.below))
    jobs(tmp_path, "head", seed=5)  # another seed of the run, the same files
    with pytest.raises(AssertionError):
        jobs(tmp_path, "head", **{"net.options.side": 18})
    with pytest.raises(AssertionError):
        jobs(tmp_path, "head", **{"net.views": 3})


def _only_one(real: Any) -> Any:
    def below(self: UpperNet, x: torch.Tensor) -> torch.Tensor:
        assert len(x) == 1, "computed again"
        found: torch.Tensor = real(self, x)
        return found

    return below


def test_a_network_without_frozen_layers_below_is_refused(tmp_path: Path) -> None:
    for train in ("all", "lora:2"):
        with refused("net.nothing-to-cache"):
            jobs(tmp_path, train)
    with refused("net.views-cannot-be-mixed"):
        jobs(tmp_path, "head", method="fedmix")
