"""Draw what FedMix's clients send: means of M_k images, next to the images themselves.

    python benchmarks/fedmix_means.py [--data fashion-mnist] [--client 0] [--out docs/methods/fedmix-means.png]

The split is that of benchmarks/fedmix_fashion.toml: two classes per client. The means come from the client's first
reply.
"""

import argparse
from pathlib import Path

import matplotlib.pyplot as plt
from torch import Tensor

from tacit.methods.fedmix import FedMixDown, FedMixUp, Means
from tacit.runs import config as configs
from tacit.runs.build import build_job

SHOWN = 10
GROUPS = {2: "means of 2", 5: "of 5", 20: "of 20", 50: "of 50", 0: "of all"}
OPTIONS = {"labels": "all", "clients": 60, "partition": "classes:2", "data.samples": 6000, "method": "fedmix"}


def sent(data: str, client: int, group: int) -> tuple[Tensor, Means]:
    """The client's images, and the means it sends."""
    config = configs.from_options(OPTIONS | {"data": data, "method.group": group, "method.force": True})
    job, _ = build_job(config)
    context = job.client(0, client)
    reply = job.method.client_update(context, None, FedMixDown(None, None))
    assert isinstance(reply.up, FedMixUp)
    assert reply.up.means is not None
    return context.data.x, reply.up.means


def draw(data: str, client: int, out: Path) -> None:
    """Draw a row of images, then a row of means for each M_k."""
    images = sent(data, client, 0)[0]
    rows = {"images": images} | {title: sent(data, client, group)[1].x for group, title in GROUPS.items()}
    figure, axes = plt.subplots(len(rows), SHOWN, figsize=(SHOWN * 0.75, len(rows) * 0.8))
    for line, (title, pictures) in zip(axes, rows.items(), strict=True):
        for place, axis in enumerate(line):
            axis.axis("off")
            if place < len(pictures):
                axis.imshow(pictures[place].permute(1, 2, 0).float() / 255, cmap="gray", vmin=0, vmax=1)
        line[0].text(-0.15, 0.5, title, transform=line[0].transAxes, ha="right", va="center", fontsize=9)
    figure.subplots_adjust(left=0.14, right=0.99, top=0.99, bottom=0.01, wspace=0.06, hspace=0.06)
    figure.savefig(out, dpi=130)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="fashion-mnist")
    parser.add_argument("--client", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("docs/methods/fedmix-means.png"))
    arguments = parser.parse_args()
    draw(arguments.data, arguments.client, arguments.out)
    print(f"drawn: {arguments.out}")
