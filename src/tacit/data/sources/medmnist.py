"""MedMNIST: medical images of 28×28 pixels, one `.npz` file per 2-D set."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from tacit.data.sources import formats, npz
from tacit.data.sources.arrays import Pair, Source, image_source
from tacit.data.sources.fetch import BROKEN_REMEDY, Remote, broken, fetch, local

_URL = "https://zenodo.org/records/10519652/files/"
_SIDE = 28
_ORGANS = (
    "bladder", "femur-left", "femur-right", "heart", "kidney-left", "kidney-right",
    "liver", "lung-left", "lung-right", "pancreas", "spleen",
)  # fmt: skip


@dataclass(frozen=True)
class MedSet:
    """Facts about one set."""

    about: str
    counts: tuple[int, int, int]  # training, validation and test images
    channels: int
    flip: bool  # false where left and right matter, as in the chest
    checksum: str
    classes: tuple[str, ...]


MEDMNIST = {
    "pathmnist": MedSet(
        "the tissue of the bowel", (89_996, 10_004, 7_180), 3, True, "a8b06965200029087d5bd730944a56c1",
        ("adipose", "background", "debris", "lymphocytes", "mucus", "smooth muscle", "normal colon mucosa",
         "cancer-associated stroma", "colorectal adenocarcinoma epithelium"),
    ),
    "dermamnist": MedSet(
        "spots on the skin", (7_007, 1_003, 2_005), 3, True, "0744692d530f8e62ec473284d019b0c7",
        ("actinic keratoses", "basal cell carcinoma", "benign keratosis", "dermatofibroma", "melanoma",
         "melanocytic nevi", "vascular lesions"),
    ),
    "octmnist": MedSet(
        "the layers of the retina", (97_477, 10_832, 1_000), 1, True, "c68d92d5b585d8d81f7112f81e2d0842",
        ("choroidal neovascularization", "diabetic macular edema", "drusen", "normal"),
    ),
    "pneumoniamnist": MedSet(
        "children's chests (X-ray)", (4_708, 524, 624), 1, False, "28209eda62fecd6e6a2d98b1501bb15f",
        ("normal", "pneumonia"),
    ),
    "retinamnist": MedSet(
        "the back of the eye", (1_080, 120, 400), 3, True, "bd4c0672f1bba3e3a89f0e4e876791e4", tuple("01234"),
    ),
    "breastmnist": MedSet(
        "breasts (ultrasound)", (546, 78, 156), 1, True, "750601b1f35ba3300ea97c75c52ff8f6",
        ("malignant", "normal or benign"),
    ),
    "bloodmnist": MedSet(
        "blood cells", (11_959, 1_712, 3_421), 3, True, "7053d0359d879ad8a5505303e11de1dc",
        ("basophil", "eosinophil", "erythroblast", "immature granulocyte", "lymphocyte", "monocyte", "neutrophil",
         "platelet"),
    ),
    "tissuemnist": MedSet(
        "kidney cells", (165_466, 23_640, 47_280), 1, True, "ebe78ee8b05294063de985d821c1c34b",
        ("collecting duct", "distal convoluted tubule", "glomerular endothelial", "interstitial endothelial",
         "leukocyte", "podocyte", "proximal tubule", "thick ascending limb"),
    ),
    "organamnist": MedSet(
        "organs in axial slices", (34_561, 6_491, 17_778), 1, False, "68e3f8846a6bd62f0c9bf841c0d9eacc", _ORGANS
    ),
    "organcmnist": MedSet(
        "organs in coronal slices", (12_975, 2_392, 8_216), 1, False, "b9ceb9546e10131b32923c5bbeaea2b1", _ORGANS
    ),
    "organsmnist": MedSet(
        "organs in sagittal slices", (13_932, 2_452, 8_827), 1, False, "9ab87b696fb54e2a387ebe992d6ed5f1", _ORGANS
    ),
}  # fmt: skip


def loader(name: str) -> Callable[[], Source]:
    """The loader of one set: its training and validation images to train on, in this order, and its test images."""
    known = MEDMNIST[name]

    def load() -> Source:
        return _load(name)

    colours = "RGB" if known.channels == 3 else "grey"
    train, validation, test = known.counts
    numbers = f"{train + validation:,} + {test:,}"
    load.__doc__ = f"{numbers} images of {known.about}, 28×28 {colours}, {len(known.classes)} classes (MedMNIST)."
    return load


def _load(name: str) -> Source:
    known = MEDMNIST[name]
    remote = Remote(f"medmnist/{name}.npz", (f"{_URL}{name}.npz?download=1",), known.checksum)
    path = local(remote.place, f"{name}.npz") or fetch(remote)
    arrays = npz.read(path, BROKEN_REMEDY)
    parts: list[Pair] = []
    for part, count in zip(("train", "val", "test"), known.counts, strict=True):
        x, y = (arrays.get(f"{part}_{kind}") for kind in ("images", "labels"))
        if x is None or y is None or x.dtype != np.uint8 or y.dtype.kind not in "iu":
            raise broken(
                path, f"has no uint8 array {part}_images with whole numbers {part}_labels", code="data.missing-array"
            )
        pixels = (x[:, None] if known.channels == 1 else np.moveaxis(x, -1, 1)).astype(np.uint8, copy=False)
        labels = y.reshape(-1).astype(np.int64)
        parts.append(formats.checked(path, pixels, labels, (count, known.channels, _SIDE, _SIDE), len(known.classes)))
    train, validation, test = parts
    pool = np.concatenate([train[0], validation[0]]), np.concatenate([train[1], validation[1]])
    return image_source(name, pool, test, known.classes, flip=known.flip)


SOURCES = {name: loader(name) for name in MEDMNIST}
