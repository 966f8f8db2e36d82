"""npuc compiles ONNX models into programs for neural processing units."""

from pathlib import Path

__version__ = "0.1.0"

# In a checkout passes/, targets/ and models/ stand beside this package; in a wheel they lie inside it.
_checkout = Path(__file__).resolve().parent.parent
if (_checkout / "pyproject.toml").is_file():
    __path__.append(str(_checkout))
