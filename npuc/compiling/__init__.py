"""From a model to a proved program: host regions around parts for the NPU, and the proof of each part."""
