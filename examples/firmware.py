"""A program as C: exported, built with make, run on the machine in software, and compared with the simulator.

python examples/firmware.py (needs make and a C compiler)
"""

import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

import npuc

MODEL, CALIBRATION, TEST = "models/digits.onnx", "models/digits_calibration.npz", "models/digits_test.npz"


def main() -> int:
    """Returns exit code 0 if C and simulator agree on every number of 20 samples."""
    with np.load(TEST) as file:
        images = file["x"][:20].astype(np.float32)
    with TemporaryDirectory() as name:
        folder = Path(name)
        program = npuc.compile(MODEL, target="easynpu", calibration=CALIBRATION)
        program.save(folder / "digits.npu")
        npuc_c = [sys.executable, "-m", "npuc", "export", str(folder / "digits.npu"), "--format", "c"]
        subprocess.run([*npuc_c, "-o", str(folder / "c")], check=True)
        subprocess.run(["make", "--silent", "-C", str(folder / "c")], check=True)

        (folder / "in.bin").write_bytes(images.tobytes())
        subprocess.run([folder / "c" / "npuc_test", folder / "in.bin", folder / "out.bin"], check=True)
        from_c = np.frombuffer((folder / "out.bin").read_bytes(), np.float32)

        (simulated,) = program.run(images).values()
        same = np.array_equal(from_c, simulated.ravel())
        print(f"{len(images)} samples: C and simulator {'agree in every number' if same else 'differ'}")
        return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
