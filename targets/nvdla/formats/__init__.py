"""NVDLA's in-memory data formats, heading by heading of the document of that name: pack and unpack.

precision    Precision Type: tables 29 to 32, conversion equations
feature      Feature Data Format
weights      Weight Format: direct convolution and image input (pre-extension, post-extension)
compression  Sparse Compression option
winograd     Basic Weight for Winograd Convolution: extension and transform
operands     Bias, PReLU, Batch Normalization and Element-Wise Data Format
alignment    Alignment of Start Address and Stride: table 35
"""
