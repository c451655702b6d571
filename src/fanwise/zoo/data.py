"""The type of all data sets."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class Data:
    """Grey images with one label each, for training and for testing.

    Images are float32 in [0, 1] of shape (N, 1, height, width). Labels are int64 of shape (N,), indices into `classes`.
    Two calls of a loader share no memory.
    """

    train_images: "Tensor"
    train_labels: "Tensor"
    test_images: "Tensor"
    test_labels: "Tensor"
    classes: tuple[str, ...]

    def standardized(self) -> "Data":
        """Return the data with mean 0 and standard deviation 1 of the training pixels. The labels are shared.

        Networks with sigmoids need this to learn from few images.

        Raises:
            ValueError: all training pixels are equal.
        """
        deviation, mean = self.train_images.std(), self.train_images.mean()
        if not deviation > 0:
            raise ValueError(f"all pixels of the training images are {float(mean)!r}: they cannot be standardized")
        train, test = ((images - mean) / deviation for images in (self.train_images, self.test_images))
        return replace(self, train_images=train, test_images=test)

    def __repr__(self) -> str:
        train, test = tuple(self.train_images.shape), tuple(self.test_images.shape)
        return f"Data(train_images: {train}, test_images: {test}, {len(self.classes)} classes)"
