"""What the samples of a source are, where a test knows it."""

from tacit.data.inputs import ImageInputs
from tacit.data.sources import Source


def pictured(source: Source) -> ImageInputs:
    """The inputs of a source of images."""
    assert isinstance(source.inputs, ImageInputs)
    return source.inputs
