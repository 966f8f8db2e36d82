"""NVDLA's in-memory data formats, heading by heading of the document of that name: pack and unpack.

precision    Precision Type: element types and numbers
feature      Feature Data Format
weights      Weight Format: direct convolution, image input (pre- and post-extension), Sparse Compression option
winograd     Basic Weight for Winograd Convolution: extension and transform
operands     Bias, PReLU, Batch Normalization and Element-Wise Data Format
alignment    Alignment of Start Address and Stride: table 35
"""
