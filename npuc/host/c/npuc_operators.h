/*
 * The operators of the host: plain C99, no heap, only math.h, string.h and stdint.h of the C library.
 * Written by npuc. Extents are those of the result, outermost first; steps are strides between elements.
 */
#ifndef NPUC_OPERATORS_H
#define NPUC_OPERATORS_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define NPUC_RANK 8

/* An axis: its extent, and the strides of the operands along it, 0 where one is broadcast. */
struct npuc_op_axis {
    uint32_t extent;
    int32_t x, y;
};

typedef float npuc_op_unary(float x, const float *parameters);
typedef float npuc_op_binary(float x, float y);

/* result[i] = f(x[i]) */
void npuc_op_map(float *result, const float *x, uint32_t count, npuc_op_unary *f, const float *parameters);

/* result = f(x, y) with broadcasting; the result is contiguous. */
void npuc_op_combine(float *result, const float *x, const float *y, const struct npuc_op_axis *axes, int rank,
                     npuc_op_binary *f);

/* Sum, mean, largest or smallest of the elements along the inner axes, for each position along the outer ones. */
enum npuc_op_reduction { NPUC_OP_SUM, NPUC_OP_MEAN, NPUC_OP_MAX, NPUC_OP_MIN };
void npuc_op_reduce(float *result, const float *x, const struct npuc_op_axis *outer, int outer_rank,
                    const struct npuc_op_axis *inner, int inner_rank, enum npuc_op_reduction kind);

/* Along an axis of `extent` elements, `inner` apart, `outer` times. */
void npuc_op_softmax(float *result, const float *x, uint32_t outer, uint32_t extent, uint32_t inner);
void npuc_op_log_softmax(float *result, const float *x, uint32_t outer, uint32_t extent, uint32_t inner);

/* int64 indices of the largest elements: among equal ones, the first or the last. */
void npuc_op_argmax(int64_t *result, const float *x, uint32_t outer, uint32_t extent, uint32_t inner, int last);
/* x / (bias + factor * the sum of squares of the elements from `before` to `after` it along the axis) ^ beta. */
void npuc_op_lrn(float *result, const float *x, uint32_t outer, uint32_t extent, uint32_t inner, uint32_t before,
                 uint32_t after, float factor, float beta, float bias);

/* Products of matrices (rows, inner) and (inner, columns) for every position along the axes; strides in elements. */
void npuc_op_matmul(float *result, const float *x, const float *y, const struct npuc_op_axis *axes, int rank,
                    uint32_t rows, uint32_t inner, uint32_t columns);

/* Copies runs of `bytes` bytes from x to y; strides and first offsets in bytes. */
void npuc_op_copy(void *y, const void *x, uint32_t bytes, int32_t first_y, int32_t first_x,
                  const struct npuc_op_axis *axes, int rank);

/* Rows of `bytes` bytes selected by indices out of `extent`, `outer` times; negative indices count from the end.
 * Returns 0, or -1 for an index out of range. */
int npuc_op_gather(void *y, const void *x, uint32_t outer, uint32_t extent, uint32_t bytes, const int64_t *indices,
                   uint32_t count);

/* x / scale, rounded half to even, plus zero, saturated; and the inverse. */
void npuc_op_quantize_int8(int8_t *result, const float *x, uint32_t count, float scale, int32_t zero);
void npuc_op_quantize_uint8(uint8_t *result, const float *x, uint32_t count, float scale, int32_t zero);
void npuc_op_quantize_int16(int16_t *result, const float *x, uint32_t count, float scale, int32_t zero);
void npuc_op_dequantize_int8(float *result, const int8_t *x, uint32_t count, float scale, int32_t zero);
void npuc_op_dequantize_uint8(float *result, const uint8_t *x, uint32_t count, float scale, int32_t zero);
void npuc_op_dequantize_int16(float *result, const int16_t *x, uint32_t count, float scale, int32_t zero);

/* The bytes of a frame as int8: less 128. */
void npuc_op_frame(int8_t *result, const uint8_t *x, uint32_t count);

/* Functions for npuc_op_map; those with parameters say which. */
npuc_op_unary npuc_op_relu, npuc_op_abs, npuc_op_neg, npuc_op_sigmoid, npuc_op_tanh, npuc_op_hard_swish,
    npuc_op_hard_sigmoid /* alpha, beta */, npuc_op_swish /* alpha */, npuc_op_softplus, npuc_op_softsign,
    npuc_op_elu /* alpha */, npuc_op_gelu, npuc_op_gelu_tanh, npuc_op_mish, npuc_op_clip /* min, max */,
    npuc_op_leaky_relu /* alpha */, npuc_op_exp, npuc_op_log, npuc_op_erf, npuc_op_sqrt, npuc_op_reciprocal,
    npuc_op_floor, npuc_op_ceil, npuc_op_round;
/* Functions for npuc_op_combine. */
npuc_op_binary npuc_op_add, npuc_op_sub, npuc_op_mul, npuc_op_div, npuc_op_pow, npuc_op_max, npuc_op_min,
    npuc_op_prelu;

#ifdef __cplusplus
}
#endif

#endif
