/*
 * The OKKernel interface of BM1684, as far as npuc's kernels use it: fp32 arithmetic, moves of 8, 16 and 32 bits.
 *
 * Names, parameters and binary interface are those of the vendor, so that one kernel source runs on the chip, on
 * the vendor's chip model and on the model beside this file. A NULL stride means the 128-byte aligned layout in
 * local memory and the continuous layout in system memory. Strides are in elements, addresses in bytes.
 */
#ifndef OKK_H
#define OKK_H

#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef unsigned int local_addr_t;
typedef unsigned long long system_addr_t;

typedef struct {
    int n, c, h, w;
} dim4;

typedef struct {
    int h, w;
} dim2;

typedef struct {
    int top, bottom, left, right;
} Padding;

/* A constant of 32, 16 or 8 bits. */
typedef union {
    float fp32;
    int s32;
    unsigned int u32;
} x32;

typedef union {
    short s16;
    unsigned short u16;
} x16;

typedef union {
    signed char s8;
    unsigned char u8;
} x8;

/* An operand that is a tensor in the aligned layout or a constant. */
typedef struct {
    bool is_addr;
    union {
        float val;
        local_addr_t addr;
    } context;
} fp32_or_addr_t;

typedef struct {
    bool is_addr;
    union {
        x32 val;
        local_addr_t addr;
    } context;
} x32_or_addr_t;

/* Kernels are found by their names. */
typedef void (*okk_kernel_func_t)(const void *args);
void okk_register_kernel_func(const char *name, okk_kernel_func_t func);
#define OKKERNEL_FUNC_REGISTER(func)                                                                          \
    __attribute__((constructor)) static void okk_register_##func(void)                                        \
    {                                                                                                         \
        okk_register_kernel_func(#func, func);                                                                \
    }

/* A kernel begins with okk_initialize and ends with okk_poll; in parallel regions GDMA and BDC overlap. */
void okk_initialize(void);
void okk_poll(void);
void okk_parallel_start(void);
void okk_parallel_end(void);
bool okk_is_parallel_state(void);

/* The machine and its layouts. */
int okk_npu_num(void);
unsigned int okk_local_mem_size_per_npu(void);
int okk_start_npu_index(local_addr_t addr);
int okk_channle_num_per_npu(int start_idx, int num_channels);
void okk_128_byte_aligned_stride_for_32bit(dim4 *stride, int start_idx, const dim4 *shape);
void okk_128_byte_aligned_stride_for_16bit(dim4 *stride, int start_idx, const dim4 *shape);
void okk_128_byte_aligned_stride_for_8bit(dim4 *stride, int start_idx, const dim4 *shape);
void okk_compact_stride(dim4 *stride, int start_idx, const dim4 *shape);
void okk_continuous_stride(dim4 *stride, const dim4 *shape);

/* GDMA: S is system memory, L local memory. W strides are 1 unless W is 1. */
#define OKK_COPY(bits, way, dst_t, src_t)                                                                     \
    void okk_gdma_##bits##bit_cpy_##way(dst_t dst_addr, src_t src_addr, const dim4 *shape,                    \
                                        const dim4 *dst_stride, const dim4 *src_stride)
#define OKK_SET(bits, place, dst_t)                                                                           \
    void okk_gdma_##bits##bit_set_C_##place(dst_t dst_addr, x##bits C, const dim4 *shape,                     \
                                            const dim4 *dst_stride)
#define OKK_GDMA(bits)                                                                                        \
    OKK_COPY(bits, S2L, local_addr_t, system_addr_t);                                                         \
    OKK_COPY(bits, L2S, system_addr_t, local_addr_t);                                                         \
    OKK_COPY(bits, L2L, local_addr_t, local_addr_t);                                                          \
    OKK_COPY(bits, S2S, system_addr_t, system_addr_t);                                                        \
    OKK_SET(bits, local, local_addr_t);                                                                       \
    OKK_SET(bits, system, system_addr_t)
OKK_GDMA(32);
OKK_GDMA(16);
OKK_GDMA(8);
void okk_gdma_32bit_matrix_S2L(local_addr_t dst_addr, system_addr_t src_addr, int rows, int cols,
                               int cols_per_channel, int row_stride);
void okk_gdma_32bit_matrix_L2S(system_addr_t dst_addr, local_addr_t src_addr, int rows, int cols,
                               int cols_per_channel, int row_stride);

/* BDC, one operand: relu is max(src, 0), reciprocal 1 / src. */
#define OKK_UNARY(name)                                                                                       \
    void okk_bdc_##name(local_addr_t dst_addr, local_addr_t src_addr, const dim4 *shape,                      \
                        const dim4 *dst_stride, const dim4 *src_stride)
OKK_UNARY(32bit_cpy);
OKK_UNARY(relu);
OKK_UNARY(neg);
OKK_UNARY(reciprocal);
void okk_bdc_32bit_set_C(local_addr_t dst_addr, x32 C, const dim4 *shape, const dim4 *dst_stride);

/* dst = src0 op src1; mac adds the product to dst. Shifts are to the left, negative ones to the right. */
#define OKK_BINARY(name)                                                                                      \
    void okk_bdc_##name(local_addr_t dst_addr, local_addr_t src0_addr, local_addr_t src1_addr,                \
                        const dim4 *shape, const dim4 *dst_stride, const dim4 *src0_stride,                   \
                        const dim4 *src1_stride)
OKK_BINARY(add);
OKK_BINARY(sub);
OKK_BINARY(mul);
OKK_BINARY(div);
OKK_BINARY(mac);
OKK_BINARY(max);
OKK_BINARY(min);
OKK_BINARY(32bit_arithmetic_shift);
OKK_BINARY(32bit_logical_shift);

/* BDC, an operand and a constant: dst = src op C; C_sub is C - src, C_div is C / src. */
#define OKK_CONSTANT(name, type)                                                                              \
    void okk_bdc_##name(local_addr_t dst_addr, local_addr_t src_addr, type C, const dim4 *shape,              \
                        const dim4 *dst_stride, const dim4 *src_stride)
OKK_CONSTANT(add_C, float);
OKK_CONSTANT(sub_C, float);
OKK_CONSTANT(C_sub, float);
OKK_CONSTANT(mul_C, float);
OKK_CONSTANT(div_C, float);
OKK_CONSTANT(C_div, float);
OKK_CONSTANT(mac_C, float);
OKK_CONSTANT(max_C, float);
OKK_CONSTANT(min_C, float);
OKK_CONSTANT(32bit_arithmetic_shift_C, int);
OKK_CONSTANT(32bit_logical_shift_C, int);

/* BDC, selection: select_val where the comparison is true, else 0. */
#define OKK_SELECT_VALUE(name)                                                                                \
    void okk_bdc_##name##_select_value(local_addr_t dst_addr, local_addr_t src0_addr,                         \
                                       local_addr_t src1_addr, x32 select_val, const dim4 *shape,             \
                                       const dim4 *dst_stride, const dim4 *src0_stride,                       \
                                       const dim4 *src1_stride)
#define OKK_SELECT_VALUE_C(name)                                                                              \
    void okk_bdc_##name##_select_value(local_addr_t dst_addr, local_addr_t src_addr, float C, x32 select_val, \
                                       const dim4 *shape, const dim4 *dst_stride, const dim4 *src_stride)
OKK_SELECT_VALUE(greater);
OKK_SELECT_VALUE(equal);
OKK_SELECT_VALUE_C(greater_C);
OKK_SELECT_VALUE_C(C_greater);
OKK_SELECT_VALUE_C(equal_C);

/* BDC, selection: select0 where src0 > src1 (src0 == src1), else select1. Tensors are in the aligned layout. */
#define OKK_SELECT(name)                                                                                      \
    void okk_bdc_##name##_select(local_addr_t dst_addr, const fp32_or_addr_t *src0,                           \
                                 const fp32_or_addr_t *src1, const x32_or_addr_t *select0,                    \
                                 const x32_or_addr_t *select1, const dim4 *shape)
OKK_SELECT(greater);
OKK_SELECT(equal);

/* BDC, a value per channel, (1, C, 1, 1) in the compact layout: src + bias, src * scale, src * scale + bias. */
void okk_bdc_bias(local_addr_t dst_addr, local_addr_t src_addr, local_addr_t bias_addr, const dim4 *shape,
                  const dim4 *dst_stride, const dim4 *src_stride);
void okk_bdc_scale(local_addr_t dst_addr, local_addr_t src_addr, local_addr_t scale_addr, const dim4 *shape,
                   const dim4 *dst_stride, const dim4 *src_stride);
void okk_bdc_scale_bias(local_addr_t dst_addr, local_addr_t src_addr, local_addr_t scale_addr,
                        local_addr_t bias_addr, const dim4 *shape, const dim4 *dst_stride,
                        const dim4 *src_stride);

/*
 * BDC, functions of tensors in the aligned layout. work is as large as src; its content is undefined afterwards. The
 * chip computes exp only for -128..88, sigmoid for -88..128 and tanh for -86..88; outside, its results are wrong
 * (exp(100) is 0) and the model refuses the call. tunable: the number of terms of the series is an argument; 10 are
 * as exact as the 32 of the other functions.
 */
#define OKK_FUNCTION(name) void okk_bdc_##name(local_addr_t dst_addr, local_addr_t src_addr, const dim4 *shape)
OKK_FUNCTION(sqrt);
OKK_FUNCTION(rsqrt);
#define OKK_WORKING(name)                                                                                     \
    void okk_bdc_##name(local_addr_t dst_addr, local_addr_t src_addr, local_addr_t work_addr, const dim4 *shape)
OKK_WORKING(exp);
OKK_WORKING(sigmoid);
OKK_WORKING(tanh);
#define OKK_TUNABLE(name)                                                                                     \
    void okk_bdc_##name##_tunable(local_addr_t dst_addr, local_addr_t src_addr, local_addr_t work_addr,       \
                                  const dim4 *shape, int num_series)
OKK_TUNABLE(exp);
OKK_TUNABLE(sigmoid);
OKK_TUNABLE(tanh);

/*
 * BDC, convolutions. Weights of conv2d are in the 2IC mode, (ceil(IC / 2), OC, kernel_h, kernel_w) of fp32x2, with
 * kernel_stride (never NULL) counting fp32x2; those of depthwise2d are (1, C, kernel_h, kernel_w) in the compact
 * layout. A bias is (1, OC, 1, 1) in the compact layout. Outputs are in the aligned layout; result_add adds to
 * the output's previous content.
 */
void okk_bdc_conv2d(local_addr_t output_addr, local_addr_t input_addr, local_addr_t weight_addr,
                    local_addr_t bias_addr, const dim4 *input_shape, int output_c, int kernel_h, int kernel_w,
                    const dim4 *input_stride, const dim4 *kernel_stride, bool using_bias, bool result_add,
                    const Padding *padding, const dim2 *stride, const dim2 *dilation);
void okk_bdc_depthwise2d(local_addr_t output_addr, local_addr_t input_addr, local_addr_t weight_addr,
                         local_addr_t bias_addr, const dim4 *input_shape, int kernel_h, int kernel_w,
                         bool using_bias, const Padding *padding, const dim2 *stride, const dim2 *dilation);

/* BDC, pooling of tensors in the aligned layout; the average counts the padding. */
void okk_bdc_max_pool2d(local_addr_t output_addr, local_addr_t input_addr, const dim4 *input_shape, int kernel_h,
                        int kernel_w, const Padding *padding, const dim2 *stride);
void okk_bdc_avg_pool2d(local_addr_t output_addr, local_addr_t input_addr, const dim4 *input_shape, int kernel_h,
                        int kernel_w, const Padding *padding, const dim2 *stride);

/* BDC, output = left * right (+ bias, a matrix of one row), every matrix in the matrix layout. */
void okk_bdc_matmul(local_addr_t output_addr, local_addr_t left_addr, local_addr_t right_addr,
                    local_addr_t bias_addr, int left_rows, int left_cols, int right_cols,
                    int left_cols_per_channel, int right_cols_per_channel, bool using_bias, bool result_add);

#ifdef __cplusplus
}
#endif

#endif
