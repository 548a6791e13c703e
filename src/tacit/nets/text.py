"""Networks for text: (n, length) character codes in, the next character out."""

from torch import Tensor, nn

from tacit.nets.layers import Classifier, Norm, scaled


class Lstm(Classifier):
    """LEAF's LSTM for Shakespeare, as in FedMix: the next of 80 characters, 819,920 parameters."""

    norms = ("none",)
    reads = ("text",)

    def __init__(self, shape: tuple[int, ...], classes: int, norm: Norm, width: float) -> None:
        """An embedding in 8 dimensions, two layers of 256 units, and one dense layer."""
        super().__init__()
        inner, hidden = scaled(width, 8, 256)
        self.embedding = nn.Embedding(classes, inner)
        self.lstm = nn.LSTM(inner, hidden, num_layers=2, batch_first=True)
        self.fc = nn.Linear(hidden, classes)

    def features(self, x: Tensor) -> Tensor:
        """The 256 activations of the second layer after the last character."""
        return self.lstm(self.embedding(x))[0][:, -1]  # type: ignore[no-any-return]


NETS = {"lstm": Lstm}
