"""What every data set of the zoo is: images and labels for training and for testing, as torch tensors.

Knows nothing of files or of where the images come from. N is the number of images of one half.
"""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class Data:
    """A set of grey images with one label each.

    Images are float32 in [0, 1] of shape (N, 1, height, width); labels are int64 of shape (N,), each an
    index into `classes`. The tensors belong to the caller: two calls of a loader share no memory.
    """

    train_images: "Tensor"
    train_labels: "Tensor"
    test_images: "Tensor"
    test_labels: "Tensor"
    classes: tuple[str, ...]

    def standardised(self) -> "Data":
        """The same data with the mean of the training pixels at 0 and their standard deviation at 1.

        What a network with sigmoids needs to leave chance level on few images. Copies the images, shares the labels.

        Raises:
            ValueError: all training pixels are equal.
        """
        deviation, mean = self.train_images.std(), self.train_images.mean()
        if not deviation > 0:
            raise ValueError(f"all pixels of the training images are {float(mean)!r}: nothing to scale")
        train, test = ((images - mean) / deviation for images in (self.train_images, self.test_images))
        return replace(self, train_images=train, test_images=test)

    def __repr__(self) -> str:
        train, test = tuple(self.train_images.shape), tuple(self.test_images.shape)
        return f"Data(train_images: {train}, test_images: {test}, {len(self.classes)} classes)"
