"""Quantisers of other projects, each as a process of its own on one thread, imports included.

Their requirements exclude one another: each may have a Python of its own. A quantiser reads a model and a file of
samples, one array with the input's name, and writes the model in QDQ form.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import onnx
from onnx import version_converter

from npuc import running
from npuc.frontend import load as import_model
from npuc.samples import loading

READ = """
import sys, numpy, onnx
model, samples, output, *given = sys.argv[1:]
(x,) = onnx.load(model).graph.input
shape = [each.dim_value or 1 for each in x.type.tensor_type.shape.dim]
with numpy.load(samples) as data:
    rows = data[x.name if x.name in data else "x"].astype("f4")
feeds = [{x.name: each.reshape(shape)} for each in rows]
"""
PROGRAMS = {
    "onnxruntime": """
from onnxruntime.quantization import CalibrationDataReader, CalibrationMethod, QuantType, quantize_static

class Reader(CalibrationDataReader):
    def __init__(self):
        self.feeds = iter(feeds)

    def get_next(self):
        return next(self.feeds, None)

method, activations = given
quantize_static(
    model, output, Reader(), per_channel=True, calibrate_method=CalibrationMethod[method],
    activation_type=QuantType.QUInt8 if activations == "uint8" else QuantType.QInt8, weight_type=QuantType.QInt8,
    extra_options={"ActivationSymmetric": activations == "symmetric", "WeightSymmetric": True},
)
""",
    "nncf": """
import nncf
data = nncf.Dataset(feeds)
made = nncf.quantize(onnx.load(model), data, subset_size=len(feeds), fast_bias_correction=given == ["fast"])
onnx.save(made, output)
""",
    "neural-compressor": """
from neural_compressor import quantization
from neural_compressor.config import PostTrainingQuantConfig

class Loader:
    batch_size = 1

    def __iter__(self):
        return ((feed, 0) for feed in feeds)

config = PostTrainingQuantConfig(calibration_sampling_size=[len(feeds)], quant_format="QDQ")
quantization.fit(model, config, calib_dataloader=Loader()).save(output)
""",
    "esp-ppq": """
import torch
from esp_ppq import TargetPlatform
from esp_ppq.api import export_ppq_graph, quantize_onnx_model

torch.set_num_threads(1)
data = [torch.from_numpy(each[x.name]) for each in feeds]
made = quantize_onnx_model(
    onnx_import_file=model, calib_dataloader=data, calib_steps=len(data), input_shape=list(data[0].shape),
    platform=TargetPlatform.ONNXRUNTIME, device="cpu",
)
export_ppq_graph(made, platform=TargetPlatform.ONNXRUNTIME, graph_save_to=output, config_save_to=output + ".json")
""",
}
"""Behind READ: what writes the model in QDQ form."""
METHODS = ("MinMax", "Entropy", "Percentile")
SETTINGS: Mapping[str, Sequence[tuple[str, ...]]] = {
    "onnxruntime": [(method, form) for method in METHODS for form in ("symmetric", "uint8")],
    "nncf": [("fast",), ("thorough",)],
    "neural-compressor": [()],
    "esp-ppq": [()],
}
"""The settings of each that are tried."""


class Refused(Exception):
    """A process that failed, with the last line that it printed."""


def measure(command: Sequence[str | Path], folder: Path, home: Mapping[str, str] | None = None) -> float:
    """CPU seconds of a process in a folder. home: environment variables in place of its own. Raises Refused."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    run = subprocess.run(
        [str(each) for each in command],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1", **(home or {})},
        capture_output=True,
        text=True,
        check=False,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if run.returncode:
        raise Refused([*run.stderr.strip().splitlines(), str(run.returncode)][-2])
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def quantised(
    name: str, given: Sequence[str], model: Path, calibration: Path, python: str | None, folder: Path
) -> tuple[bytes, float]:
    """The model in QDQ form by a quantiser with these settings, and its CPU seconds. Raises Refused.

    calibration: as `npuc compile` takes it. python: its own, if it has one. folder: for its files. Models older
    than opset 13 are upgraded to 17, for scales per channel.
    """
    proto = onnx.load(model)
    if proto.opset_import[0].version < 13:
        proto = version_converter.convert_version(proto, 17)
    onnx.save(proto, folder / "m.onnx")
    samples = loading.load([calibration], running.input_types(import_model(model)))
    loading.save(folder / "samples.npz", samples.inputs)
    program = [python or sys.executable, "-c", READ + PROGRAMS[name], "m.onnx", "samples.npz", "q.onnx", *given]
    own = {} if python is None else {"PYTHONPATH": ""}
    seconds = measure(program, folder, own)
    return (folder / "q.onnx").read_bytes(), seconds
