"""The papers' splits by name: each is a set of `[data]` settings that a user could also write.

Where a paper contradicts itself or its release, a comment says which reading is used; docs/data.md has the full list.
"""

from itertools import product
from typing import Any

from tacit.errors import unknown

# FedMatch: 60,000 images in 54,000 / 3,000 / 3,000; 5 labels per class and 490 unlabeled images at each of 100 clients.
_FEDMATCH = {"name": "cifar10", "test": 3000, "validation": 3000, "clients": 100, "normalise": "unit"}
# As released: 56,000 / 2,000 / 2,000, and 100 labels per class at the server instead of 500.
_RELEASED = _FEDMATCH | {"test": 2000, "validation": 2000, "augment": "fedmatch"}
# 70,000 images in 63,000 / 3,500 / 3,500. "5 labeled instances per class for each client" leaves 62,500 unlabeled
# images; the paper's 62,000 would mean 10 labels per class. We use the first.
_STREAMING = {
    "name": "fashion-mnist",
    "test": 3500,
    "validation": 3500,
    "clients": 10,
    "partition": "fedmatch",
    "stream_steps": 10,
    "rounds_per_step": 10,
    "normalise": "unit",
}
_AT_CLIENT = {"labels": "client", "per_class": 5}
# FedSEAL's Fashion-MNIST: 500 labels, 200 for validation, 10 clients with 1,200 images, 3,000 for testing.
_FEDSEAL_FMNIST = {"name": "fashion-mnist", "samples": 12_500, "test": 3000, "validation": 200, "clients": 10}
_FEDSEAL_FMNIST |= {"flip": True, "shift": 3}  # "random image flipping and random image cropping", also of clothes
_FEDSIAM = {"clients": 100, "label_fraction": 0.1}  # γ; set 0.15 and 0.2 (clients) or 0.01 (server) by option
_SSFL = {"labels": "server", "partition": "main-class:0.4", "augment": "ssfl"}
_MOON = {"clients": 10, "partition": "dirichlet:0.5", "labels": "all"}

Settings = dict[str, Any]

SPLITS: dict[str, Settings] = {
    "fedmatch-batch-iid": _FEDMATCH | _AT_CLIENT | {"partition": "even"},
    "fedmatch-batch-noniid": _FEDMATCH | _AT_CLIENT | {"partition": "fedmatch"},
    "fedmatch-batch-iid-server": _FEDMATCH | {"partition": "even", "labels": "server", "per_class": 500},
    "fedmatch-batch-noniid-server": _FEDMATCH | {"partition": "fedmatch", "labels": "server", "per_class": 500},
    "fedmatch-batch-iid-released": _RELEASED | _AT_CLIENT | {"partition": "even"},
    "fedmatch-batch-noniid-released": _RELEASED | _AT_CLIENT | {"partition": "fedmatch"},
    "fedmatch-batch-iid-server-released": _RELEASED | {"partition": "even", "labels": "server", "per_class": 100},
    "fedmatch-batch-noniid-server-released": _RELEASED
    | {"partition": "fedmatch", "labels": "server", "per_class": 100},
    "fedmatch-streaming": _STREAMING | _AT_CLIENT,
    "fedmatch-streaming-server": _STREAMING | {"labels": "server", "per_class": 50},
    "fedseal-fmnist": _FEDSEAL_FMNIST | {"partition": "even", "labels": "server", "per_class": 50},
    "fedseal-fmnist-noniid": _FEDSEAL_FMNIST
    | {"partition": "client-dirichlet:0.1", "labels": "server", "per_class": 50},
    # "The exact same setting as that in the paper of FedMatch": also its pixels.
    "fedseal-cifar": _FEDMATCH | {"partition": "even", "labels": "server", "per_class": 500},
    "fedseal-cifar-noniid": _FEDMATCH | {"partition": "fedmatch", "labels": "server", "per_class": 500},
    "fedseal-svhn": {
        "name": "svhn",
        "samples": 50_000,
        "clients": 100,
        "partition": "even",
        "labels": "server",
        "n_labels": 1000,
        "flip": True,
    },
    **{
        f"fedsiam-{name}-{kind}": _FEDSIAM | {"name": name, "labels": "client", "partition": partition}
        for name, (kind, partition) in product(
            ("mnist", "cifar10", "svhn"),
            (("iid", "iid"), ("1", "fedsiam-1"), ("2", "fedsiam-2"), ("3", "fedsiam-3")),
        )
    },
    **{
        f"fedsiam-{name}-server-{kind}": _FEDSIAM | {"name": name, "labels": "server", "partition": partition}
        for name, (kind, partition) in product(("mnist", "cifar10", "svhn"), (("iid", "iid"), ("noniid", "fedsiam-1")))
    },
    "ssfl-cifar10": _SSFL | {"name": "cifar10", "clients": 10, "n_labels": 1000},
    "ssfl-svhn": _SSFL | {"name": "svhn", "clients": 10, "n_labels": 1000, "flip": True},
    "ssfl-emnist": _SSFL | {"name": "emnist-balanced", "clients": 47, "n_labels": 4700, "flip": True},
    "moon-cifar10": _MOON | {"name": "cifar10"},
    "moon-cifar100": _MOON | {"name": "cifar100"},
    "moon-tiny-imagenet": _MOON | {"name": "tiny-imagenet"},
    "fedmix-cifar10": {"name": "cifar10", "clients": 60, "partition": "classes:2", "labels": "all"},
    "fedmix-cifar100": {"name": "cifar100", "clients": 100, "partition": "classes:20", "labels": "all"},
    "fedmix-femnist": {"name": "femnist", "clients": 100, "partition": "by-writer:1", "labels": "all"},
    "fedmix-shakespeare": {"name": "shakespeare", "clients": 60, "partition": "by-speaker:1", "labels": "all"},
}

AMOUNTS = {"per_class", "n_labels", "label_fraction"}  # exclusive: a given one replaces the split's


def completed(given: Settings) -> Settings:
    """The given settings on top of those of the split they name, if they name one."""
    name = given.get("split")
    if name is None:
        return given
    if not isinstance(name, str) or name not in SPLITS:
        raise unknown("split", str(name), SPLITS)
    replaced = AMOUNTS if AMOUNTS & given.keys() else set()
    return {key: value for key, value in SPLITS[name].items() if key not in replaced} | given


def describe(name: str) -> str:
    """A named split in a few words: data, clients, partition, place and number of labels, and held-out samples."""
    of = SPLITS[name]
    amounts = {"per_class": "{} per class", "n_labels": "{:,} in all", "label_fraction": "{:.0%}"}
    amount = "".join(f", {form.format(of[key])}" for key, form in amounts.items() if key in of)
    where = {"client": "labels at clients", "server": "labels at server", "all": "all labels"}[of["labels"]]
    parts = {"samples": "training", "validation": "validation", "test": "test"}
    sizes = "".join(f", {of[key]:,} {part}" for key, part in parts.items() if key in of)
    steps = f", {of['stream_steps']} steps" if "stream_steps" in of else ""
    pixels = ", pixels 0..1" if of.get("normalise") == "unit" else ""
    return f"{of['name']}, {of['clients']} clients, {of['partition']}, {where}{amount}{sizes}{steps}{pixels}"
