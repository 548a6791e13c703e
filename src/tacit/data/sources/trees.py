"""Published data sets that are trees of image files: Tiny ImageNet and COVID-19 Radiography."""

from pathlib import Path

import numpy as np

from tacit.data.sources import formats, images
from tacit.data.sources.arrays import Pair, Source, hold_out, image_source
from tacit.data.sources.fetch import broken, data_folder, fetch, local, verify
from tacit.data.sources.known import COUNTS, REMOTES, SUMS
from tacit.errors import TacitError

_TINY = 64  # pixels
_COVID_FOLDERS = ("COVID-19_Radiography_Dataset", "COVID-19 Radiography Database", "COVID-19_Radiography_Database")
_COVID_CLASSES = {  # with the names of their folders
    "COVID-19": ("COVID", "COVID-19"),
    "normal": ("Normal", "NORMAL"),
    "viral pneumonia": ("Viral Pneumonia",),
}
_PICTURES = {".png", ".jpg", ".jpeg"}


def tiny_imagenet(size: int | None = None) -> Source:
    """100,000 + 10,000 photographs, 64×64 RGB, 200 classes (its validation images are the test set).

    `size` scales them to another side in pixels. The zip archive is read without unpacking; decoding takes a while.
    """
    place = local("tiny-imagenet-200", "tiny-imagenet-200.zip") or fetch(REMOTES["tiny-imagenet-200.zip"])
    if place.is_file():
        verify(place, None, SUMS.get("tiny-imagenet-200.zip"))
    with formats.tree(place) as (names, opener):
        top = "" if place.is_dir() else "tiny-imagenet-200/"

        def lines(name: str) -> list[str]:
            if f"{top}{name}" not in names:
                raise broken(place, f"has no file {name}", code="data.missing-file")
            with opener(f"{top}{name}") as file:
                return file.read().decode("utf-8", "replace").splitlines()

        ids, words = lines("wnids.txt"), dict(line.split("\t", 1) for line in lines("words.txt") if "\t" in line)
        train = [(name, name.split("/")[-3]) for name in names if _is_training(name, top)]
        rows = [line.split("\t") for line in lines("val/val_annotations.txt") if "\t" in line]
        samples = (train, [(f"{top}val/images/{row[0]}", row[1]) for row in rows])
        sides = (size or _TINY, size or _TINY)
        pool, test = (_tiny_part(place, part, samples[part], ids, opener, sides) for part in (0, 1))
    return image_source("tiny-imagenet", pool, test, tuple(words.get(name, name) for name in ids), flip=True)


def covid_radiography(size: int | None = None) -> Source:
    """Chest X-rays, 64×64 grey, 3 classes: COVID-19, normal, viral pneumonia (20 % are held out as test set).

    `size` scales them to another side in pixels. Releases differ in numbers of images and names of folders. The class
    Lung_Opacity, which later releases added, is left out, so that the classes are always the same.
    """
    place = local(*_COVID_FOLDERS)
    if place is None:
        raise TacitError(
            "covid-radiography has no open download",
            f"get 'COVID-19 Radiography Database' at kaggle.com and unpack it to {data_folder() / _COVID_FOLDERS[0]}",
            code="data.manual-download",
        )
    files = [(str(path), label) for label, name in enumerate(_COVID_CLASSES) for path in _covid_files(place, name)]
    y = np.array([label for _, label in files], dtype=np.int64)
    train, test = hold_out(place, y, "unpack all of it")
    sides = (size or images.SIDE, size or images.SIDE)
    x = images.stack([name for name, _ in files], images.open_file, sides, grey=True)
    return image_source(
        "covid-radiography", (x[train], y[train]), (x[test], y[test]), tuple(_COVID_CLASSES), flip=False
    )


def _is_training(name: str, top: str) -> bool:
    return name.startswith(f"{top}train/") and "/images/" in name and name.lower().endswith(".jpeg")


def _tiny_part(
    place: Path, part: int, samples: list[tuple[str, str]], ids: list[str], opener: images.Opener, sides: images.Size
) -> Pair:
    number = {name: index for index, name in enumerate(ids)}
    y = np.array([number.get(name, -1) for _, name in samples], dtype=np.int64)
    count = COUNTS["tiny-imagenet"][part]
    if len(y) != count:
        raise broken(
            place,
            f"has {len(y):,} {('training', 'validation')[part]} images, and should have {count:,}",
            code="data.wrong-shape",
        )
    top = f"{place}/"  # so that an error names a damaged image with its place
    x = images.stack([top + name for name, _ in samples], lambda name: opener(name[len(top) :]), sides, grey=False)
    return formats.checked(place, x, y, (count, 3, *sides), len(ids))


def _covid_files(place: Path, name: str) -> list[Path]:
    """The images of a class; in later releases they are in a folder `images` next to one of lung masks."""
    folders = [place / folder / below for folder in _COVID_CLASSES[name] for below in ("images", "")]
    folder = next((folder for folder in folders if folder.is_dir()), None)
    found = sorted(path for path in folder.iterdir() if path.suffix.lower() in _PICTURES) if folder else []
    if not found:
        problem = f"{place} has no images in {_COVID_CLASSES[name][0]}"
        raise TacitError(problem, "unpack the whole data set again", code="data.incomplete-data-set")
    return found


SOURCES = {"tiny-imagenet": tiny_imagenet, "covid-radiography": covid_radiography}
