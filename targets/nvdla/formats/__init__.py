"""NVDLA's in-memory data formats, heading by heading of the document of that name: pack and unpack.

precision    Precision Type: element types and numbers
feature      Feature Data Format
pixels       Pixel Format: table 33
weights      Weight Format: table 34, direct convolution, image input, Winograd, Sparse Compression option
operands     Bias, PReLU, Batch Normalization and Element-Wise Data Format
alignment    Alignment of Start Address and Stride: table 35
"""
