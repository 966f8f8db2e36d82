"""Variants of a machine from a TOML file: costs and benefits of more PEs or a wider memory.

python examples/chip_variant.py
"""

from pathlib import Path
from tempfile import TemporaryDirectory

import npuc
from npuc.target import Options

MODEL, CALIBRATION = "models/digits.onnx", "models/digits_calibration.npz"
VARIANTS = {
    "as documented": "",
    "two rows of PEs": "pe_rows = 2\n",
    "four rows of PEs": "pe_rows = 4\n",
    "twice the memory for maps": "fmap_words = 2560\n",
}


def main() -> None:
    """Prints cycles and utilization of the same network on each variant."""
    with TemporaryDirectory() as folder:
        for name, text in VARIANTS.items():
            file = Path(folder) / "variant.toml"
            file.write_text(text, encoding="utf-8")
            options = Options(machine=str(file))
            program = npuc.compile(MODEL, target="easynpu", calibration=CALIBRATION, options=options)
            report = program.report
            print(f"{name:26s} {report['cycles']:8,d} cycles, utilization {report['utilization']:.3f}")


if __name__ == "__main__":
    main()
