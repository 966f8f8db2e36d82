#!/bin/sh
npuc verify /tmp/wt/fp16/models/digits.onnx /tmp/fp16w/d_int16.npu --data sample.npz --allow-modified
npuc compile layer.onnx --target nvdla-full --calibration input.npz -o layer.npu
npuc verify layer.onnx layer.npu --data input.npz
