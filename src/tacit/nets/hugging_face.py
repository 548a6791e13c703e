"""An image classifier of Hugging Face's transformers, built from the text of its config.json; needs tacit[hf].

`--net hf:FOLDER` reads a folder as `save_pretrained` writes it. Nothing is downloaded and no code of the folder runs.
"""

import json
from collections.abc import Mapping
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from tacit.errors import TacitError
from tacit.nets.layers import Classifier

_LOADS_MORE = ("use_pretrained_backbone", "backbone", "auto_map")  # settings that fetch weights or code from elsewhere


class HuggingFace(Classifier):
    """An image classifier of transformers from a local folder: `--net hf:FOLDER`; needs tacit[hf]."""

    def __init__(
        self,
        shape: tuple[int, ...],
        classes: int,
        config: str,
        mean: tuple[float, ...] = (),
        std: tuple[float, ...] = (),
    ) -> None:
        """`config` is the text of config.json; `mean` and `std` are those of its image processor."""
        super().__init__()
        if shape[0] not in (1, 3):
            raise ValueError(f"it reads grey and colour images, not {shape[0]} channels")
        settings = _settings(config)
        self.channels = int(settings.get("num_channels", 3))
        self.model = _build(settings)
        self._head = [name for name, layer in self.model.named_modules() if isinstance(layer, nn.Linear)][-1]
        last = self.model.get_submodule(self._head)
        self.model.set_submodule(self._head, nn.Identity())
        self.size = _side(settings)
        self.fc = nn.Linear(int(last.in_features), classes)  # type: ignore[arg-type]
        if mean and std:
            grey = shape[0] == 1
            self.moments = tuple((sum(each) / len(each),) if grey else tuple(each) for each in (mean, std))  # type: ignore[assignment]

    def features(self, x: Tensor) -> Tensor:
        """What the last linear layer sees, of images scaled to the size that the model was made for."""
        x = x.expand(-1, self.channels, -1, -1)
        if self.size is not None and x.shape[2:] != self.size:
            x = functional.interpolate(x, self.size, mode="bilinear", align_corners=False)
        seen: Tensor = self.model(pixel_values=x).logits
        return seen

    def translate(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The tensors of a file that transformers wrote, under our names; those of a run of ours as they are.

        Transformers itself reads them, since it stores layers under other names than it gives them.
        """
        if "fc.weight" in tensors:
            return dict(tensors)
        kind: Any = type(self.model)
        loaded, info = kind.from_pretrained(
            None, config=self.model.config, state_dict=dict(tensors), output_loading_info=True
        )
        lost = set(info["missing_keys"])
        named = {name: value for name, value in loaded.state_dict().items() if name not in lost}
        named |= {name: tensors[name] for name in info["unexpected_keys"] if name in tensors}
        return {self._own_name(name): value for name, value in named.items()}

    def _own_name(self, name: str) -> str:
        return f"fc{name.removeprefix(self._head)}" if name.startswith(f"{self._head}.") else f"model.{name}"


def _settings(config: str) -> dict[str, Any]:
    try:
        found: Any = json.loads(config)
        found["model_type"]
    except (ValueError, TypeError, KeyError):
        problem, remedy = "net.options.config is not the text of a config.json", "write --net hf:FOLDER"
        raise TacitError(problem, remedy, code="nets.bad-hf-config") from None
    if named := [name for name in _LOADS_MORE if found.get(name)]:
        problem = f"this model's {named[0]} would load weights or code from elsewhere"
        raise TacitError(problem, "save a model that holds all of its weights", code="nets.hf-loads-more")
    return dict(found)


def _build(settings: dict[str, Any]) -> nn.Module:
    try:
        transformers: Any = import_module("transformers")
    except ImportError:
        problem = "a model of Hugging Face needs the package transformers"
        raise TacitError(problem, "install it with pip install 'tacit[hf]'", code="nets.no-transformers") from None
    transformers.utils.logging.disable_progress_bar()
    try:
        others = {name: value for name, value in settings.items() if name != "model_type"}
        config = transformers.AutoConfig.for_model(settings["model_type"], **others)
        with torch.random.fork_rng(devices=[]):
            built: nn.Module = transformers.AutoModelForImageClassification.from_config(config)
    except (ValueError, KeyError, ImportError) as error:
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        problem = f"transformers has no image classifier for this config.json ({reason})"
        raise TacitError(problem, "choose the folder of an image classifier", code="nets.not-a-classifier") from error
    return built.eval()


def _side(settings: dict[str, Any]) -> tuple[int, int] | None:
    """The size that a model with fixed positions needs; None for one that takes any."""
    side = settings.get("image_size")
    if isinstance(side, int):
        return side, side
    return (int(side[0]), int(side[1])) if isinstance(side, list) and len(side) == 2 else None
