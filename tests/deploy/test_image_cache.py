"""Decoded images on a site's disk: the same samples without decoding, never those of other files or settings."""

import os
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from tacit import storage
from tacit.data import sources
from tacit.data.sources import Source, images
from tacit.data.sources.images import AS_FOUND, Scale
from tacit.deploy import image_cache
from tests.deploy import places

CLASSES = ("cat", "dog", "yak")


@pytest.fixture(autouse=True)
def settled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image_cache, "SETTLE_SECONDS", 0.0)


@pytest.fixture
def scans(tmp_path: Path) -> Path:
    return places.image_folder(tmp_path / "scans", {"labeled/cat": 3, "unlabeled": 4, "test/dog": 2})


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many images each call decoded."""
    counts: list[int] = []

    def load(names: list[str], *rest: Any) -> Any:
        counts.append(len(names))
        return original(names, *rest)

    original = images.load
    monkeypatch.setattr(images, "load", load)
    return counts


def load(path: Path, scale: Scale = AS_FOUND, classes: tuple[str, ...] = CLASSES) -> Source:
    return image_cache.load_part(path, classes, scale, path.parent / "memory" / image_cache.FILE)


def assert_same(one: Source, other: Source) -> None:
    for item in fields(Source):
        here, there = getattr(one, item.name), getattr(other, item.name)
        if isinstance(here, torch.Tensor):
            assert here.dtype == there.dtype
            assert torch.equal(here, there), item.name
        else:
            assert here == there, item.name


def manifest(scans: Path) -> Path:
    path = scans.parent / "list.csv"
    rows = ("labeled/cat/0.png,cat,train", "unlabeled/1.png,,train", "test/dog/0.png,dog,test")
    path.write_text("path,label,split\n" + "".join(f"scans/{row}\n" for row in rows), encoding="utf-8")
    return path


@pytest.mark.parametrize("kind", ["folder", "csv"])
def test_images_are_decoded_once(kind: str, scans: Path, decoded: list[int]) -> None:
    path = scans if kind == "folder" else manifest(scans)
    plain = sources.load_part(path, CLASSES)
    decoded.clear()
    for _ in range(3):
        assert_same(load(path), plain)
    assert len(decoded) == 1


def test_only_the_owner_can_read_the_cache(scans: Path) -> None:
    load(scans)
    folder = scans.parent / "memory"
    assert folder.stat().st_mode & 0o777 == 0o700
    assert (folder / image_cache.FILE).stat().st_mode & 0o777 == 0o600


def rewrite(path: Path) -> None:
    """Change a file's content, but neither its size nor its modification time."""
    before, size = path.stat(), path.stat().st_size
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert (path.stat().st_size, path.stat().st_mtime_ns) == (size, before.st_mtime_ns)


@pytest.mark.parametrize(
    "change",
    [
        lambda scans: rewrite(scans / "unlabeled" / "2.png"),
        lambda scans: Image.new("L", (16, 16), 9).save(scans / "unlabeled" / "new.png"),
        lambda scans: (scans / "unlabeled" / "2.png").unlink(),
        lambda scans: (scans / "unlabeled" / "2.png").rename(scans / "labeled" / "cat" / "9.png"),
        lambda scans: (scans / "labeled" / "cat").rename(scans / "labeled" / "dog"),
    ],
)
def test_changed_files_are_decoded_again(change: Callable[[Path], object], scans: Path, decoded: list[int]) -> None:
    load(scans)
    change(scans)
    assert_same(load(scans), sources.load_part(scans, CLASSES))
    assert len(decoded) == 3
    load(scans)
    assert len(decoded) == 3  # the new cache has replaced the old one


def test_a_linked_class_folder_is_watched_too(scans: Path, decoded: list[int]) -> None:
    places.image_folder(scans.parent / "elsewhere", {"dog": 2})
    (scans / "labeled" / "dog").symlink_to(scans.parent / "elsewhere" / "dog")
    load(scans)
    rewrite(scans.parent / "elsewhere" / "dog" / "1.png")
    load(scans)
    assert len(decoded) == 2


def test_a_manifest_and_its_images_are_watched(scans: Path, decoded: list[int]) -> None:
    path = manifest(scans)
    load(path)
    rewrite(scans / "unlabeled" / "3.png")  # which it does not name
    load(path)
    assert len(decoded) == 1
    rewrite(scans / "unlabeled" / "1.png")
    load(path)
    assert len(decoded) == 2
    path.write_text(path.read_text().replace("cat,train", "yak,train"))
    assert load(path).y.tolist() == [2, -1]


def test_images_are_decoded_again_for_other_settings(
    scans: Path, decoded: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    load(scans)
    assert load(scans, Scale(size=8)).x.shape[-1] == 8
    load(scans, Scale(size=8, bits=12))
    assert load(scans, Scale(size=8, bits=12), ("dog", "cat")).y.tolist() == [1, 1, 1, -1, -1, -1, -1]
    monkeypatch.setattr(image_cache, "__version__", "9.9")
    load(scans, Scale(size=8, bits=12), ("dog", "cat"))
    assert len(decoded) == 5


def test_files_that_change_during_reading_are_not_cached(scans: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = images.load

    def load_and_change(*given: Any) -> Any:
        result = original(*given)
        rewrite(scans / "unlabeled" / "2.png")
        return result

    monkeypatch.setattr(images, "load", load_and_change)
    load(scans)
    assert not (scans.parent / "memory").exists()


def test_files_that_changed_just_now_are_not_cached(scans: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image_cache, "SETTLE_SECONDS", 600.0)
    load(scans)
    assert not (scans.parent / "memory").exists()


@pytest.mark.parametrize("text", [b"", b"\0" * 100, b"\x08\0\0\0\0\0\0\0{}      "])
def test_a_damaged_cache_is_replaced(text: bytes, scans: Path, decoded: list[int]) -> None:
    load(scans)
    (scans.parent / "memory" / image_cache.FILE).write_bytes(text)
    assert_same(load(scans), load(scans))
    assert len(decoded) == 2


def test_without_a_cache_the_images_are_decoded_every_time(scans: Path, decoded: list[int]) -> None:
    (scans.parent / "memory").write_text("in the way")
    assert len(load(scans).y) == 7
    assert len(load(scans).y) == 7
    assert len(decoded) == 2


def test_a_full_disk_leaves_no_partial_cache(scans: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fsync(file: int) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(os, "fsync", fsync)
    assert len(load(scans).y) == 7
    assert [path.name for path in (scans.parent / "memory").iterdir()] == [f"{image_cache.FILE}.lock"]


def test_arrays_are_not_cached(tmp_path: Path) -> None:
    x, y = places.arrays(6)
    path = places.site_with_arrays(tmp_path, "a", x=x, y=y).parent / "own.npz"
    load(path, classes=("0", "1", "2"))
    assert not (path.parent / "memory").exists()


def test_a_cache_that_another_process_writes_is_left_alone(scans: Path) -> None:
    folder = scans.parent / "memory"
    folder.mkdir()
    with storage.locked(folder / f"{image_cache.FILE}.lock", "ab"):
        assert len(load(scans).y) == 7
    assert not (folder / image_cache.FILE).exists()
