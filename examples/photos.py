"""From photos to a program: pictures of digits, what their input expects, a program on frames, and its answers.

python examples/photos.py
"""

import subprocess
import sys
from pathlib import Path

import numpy as np
from PIL import Image

import npuc

PHOTOS = Path("photos")
INPUT = """\
order = "gray"
std = 15.9375       # the network was trained on 0..16, and pixels are 0..255
labels = ["0", "1", "2", "3", "4", "5", "6", "7", "8", "9"]
"""


def write_photos(count: int = 60) -> None:
    """PNG files from the digits that npuc ships, in a folder for each class."""
    with np.load("models/digits_test.npz") as file:
        digits, classes = file["x"][:count, 0], file["y"][:count]
    for at, (digit, number) in enumerate(zip(digits, classes, strict=True)):
        folder = PHOTOS / str(number)
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.rint(digit * 15.9375).astype(np.uint8)).save(folder / f"{at:03}.png")
    Path("digits.toml").write_text(INPUT, encoding="utf-8")


def main() -> None:
    """Writes the pictures, compiles for them, measures, and asks about one."""
    write_photos()
    program = npuc.compile("models/digits.onnx", "easynpu", calibration=PHOTOS, input="digits.toml")
    program.save("digits.npu", force=True)
    (port,) = program.program.inputs
    print(f"the program takes {port.dtype} {list(port.shape)}: the bytes of a picture")
    report = npuc.accuracy("models/digits.onnx", program, PHOTOS)
    print(f"top-1: fp32 {report['fp32']['top1']:.3f}, the program {report['simulator']['top1']:.3f}")
    first = min((PHOTOS / "7").iterdir())
    sys.stdout.flush()
    subprocess.run([sys.executable, "-m", "npuc", "run", "digits.npu", "--data", first], check=True)


if __name__ == "__main__":
    main()
