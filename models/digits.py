"""A small residual network trained on scikit-learn's 8x8 digits by npuc.models.train_digits.

`digits_calibration.npz` (`x`) and `digits_test.npz` (`x`, `y`) are stored beside the model: grey values 0..16 as
uint8 in the input's shape without the batch, to be fed as float32.
"""

from pathlib import Path

import onnx

FOLDER = Path(__file__).parent


def build() -> onnx.ModelProto:
    """1x1x8x8 -> 1x10 logits."""
    return onnx.load(FOLDER / "digits.onnx")
