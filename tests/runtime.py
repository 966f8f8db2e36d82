"""The version of onnxruntime: older ones lack a few things, or compute them wrongly."""

from __future__ import annotations

import onnxruntime

RUNTIME = tuple(int(part) for part in onnxruntime.__version__.split(".")[:2])
