/*
 * 8-bit layers: functions of the firmware library that OKK kernels link with, OUTSIDE THE PUBLIC OKK INTERFACE, as
 * observed on the vendor's chip model; they have not run on silicon. Below them, the calls that npuc's tables and
 * exported kernels make.
 *
 * Maps are in the 4N mode: a 32-bit word has one element of each of four images, so shapes count words, and n counts
 * groups of four images. Weights are signed 8-bit integers, biases signed 16-bit integers.
 */
#ifndef OKK_FIX8B_H
#define OKK_FIX8B_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "okk.h"

void okk_get_id_node(void *ids);
void okk_set_id_node(void *ids);
void nodechip_conv_forward_local_fix8b(int bottom, int weight, int bias, int top, int imm, int *bottom_dim,
                                       int *top_dim, int groups, int kh, int kw, int dh, int dw, int up, int down,
                                       int left, int right, int stride_h, int stride_w, int using_bias,
                                       int result_add, int if_relu, int relu_upper_limit, int unused_ht,
                                       int unused_hb, int unused_wl, int unused_wr, int ins_h, int ins_w,
                                       int rshiftbits, int opd0_sign, int opd1_sign, int opd2_sign,
                                       bool if_ic_inner, int if_concat_scale, int concat_scale_val,
                                       int concat_scale_rshift, int concat_output_sign, void *id_node);
void nodechip_pooling_fix8b_forward_local(int bottom, int weight, int bias, int top, int *bottom_dim, int *top_dim,
                                          int kh, int kw, int up, int down, int left, int right, int stride_h,
                                          int stride_w, int ins_w, int ins_h, int is_avg_pooling,
                                          int avg_pooling_mode, int r_shift, int using_bias, int rshift_typ,
                                          int opd0_sign, int opd1_sign, int opd2_sign, int res0_sign, int if_relu,
                                          void *pid_node);
void nodechip_eltwise_fix8b_forward_local(int *bottoms, int top, int imm, int n, int c, int h, int w,
                                          int *cstrides, int cstride_en, int op_code, int *scales, int *rshifts,
                                          int *signs, int count, int if_relu, void *id_node);
void nodechip_broadcast_binary_fix8b_forward_local(uint32_t bottom0, uint32_t bottom1, uint32_t top, uint32_t imm,
                                                   int *b0_shape, int *b1_shape, int tensor_dim, int a_is_coeff,
                                                   int b_is_coeff, int op_code, int scale_A, int scale_B,
                                                   int rshift_A, int rshift_B, int *is_int8, int *is_sign,
                                                   int if_relu, void *id_node);
void nodechip_lut_local_v2(int index, int table_l2_offset, int imm, int output, int *index_shape, int index_dim,
                           int bottom_stmode, int top_dtype, int top_stmode, void *pid_node);

/*
 * The command counters: BDC, GDMA, whether in parallel, and on a chip model the cycles. In a parallel region the
 * functions count in a copy made at its start, as the interface does for its own calls; the copy is merged at its
 * end. A region therefore has either these functions on the BDC or the interface's calls. They lie on the stack: the
 * firmware's data memory has room for little else.
 */
#define NPUC_CYCLES 3
typedef struct {
    unsigned words[64];
    bool beside;
} npuc_ids;

static inline void npuc_parallel_start(npuc_ids *ids)
{
    okk_get_id_node(ids->words);
    ids->beside = false;
    okk_parallel_start();
}

static inline void npuc_parallel_end(npuc_ids *ids)
{
    unsigned joined[64];
    okk_parallel_end();
    if (!ids->beside)
        return;
    okk_get_id_node(joined);
    for (int at = 0; at <= NPUC_CYCLES; at++)
        if (at != 2 && joined[at] < ids->words[at])
            joined[at] = ids->words[at];
    okk_set_id_node(joined);
}

static inline void *npuc_begun(npuc_ids *ids)
{
    if (okk_is_parallel_state())
        ids->beside = true;
    else
        okk_get_id_node(ids->words);
    return ids->words;
}

static inline void npuc_done(npuc_ids *ids)
{
    if (!okk_is_parallel_state())
        okk_set_id_node(ids->words);
}

static inline int npuc_extent(int extent, int before, int behind, int kernel, int dilation, int stride)
{
    return stride < 1 ? 0 : (extent + before + behind - ((kernel - 1) * dilation + 1)) / stride + 1;
}

/* Results are floor((sum + bias + 2^(shift - 1)) / 2^shift), saturated at -128..127, or with a ReLU at 0..upper. */
static inline void npuc_fix8b_conv2d(npuc_ids *ids, local_addr_t out, local_addr_t in, local_addr_t weight,
                                     local_addr_t bias, const dim4 *shape, int channels, int kernel_h,
                                     int kernel_w, const Padding *pad, const dim2 *stride, const dim2 *dilation,
                                     int shift, bool in_signed, bool relu, int upper)
{
    int from[4] = {4 * shape->n, shape->c, shape->h, shape->w};
    int to[4] = {4 * shape->n, channels,
                 npuc_extent(shape->h, pad->top, pad->bottom, kernel_h, dilation->h, stride->h),
                 npuc_extent(shape->w, pad->left, pad->right, kernel_w, dilation->w, stride->w)};
    nodechip_conv_forward_local_fix8b((int)in, (int)weight, (int)bias, (int)out, 0, from, to, 1, kernel_h,
                                      kernel_w, dilation->h, dilation->w, pad->top, pad->bottom, pad->left,
                                      pad->right, stride->h, stride->w, 1, 0, relu, upper, 0, 0, 0, 0, 0, 0, shift,
                                      in_signed, 1, 1, true, 0, 0, 0, 0, npuc_begun(ids));
    npuc_done(ids);
}

/* The same for depthwise convolutions of so many images, without a separate upper limit. */
static inline void npuc_fix8b_depthwise2d(npuc_ids *ids, local_addr_t out, local_addr_t in, local_addr_t weight,
                                          local_addr_t bias, const dim4 *shape, int kernel_h, int kernel_w,
                                          const Padding *pad, const dim2 *stride, int shift, bool in_signed,
                                          bool relu, int images)
{
    int from[4] = {images, shape->c, shape->h, shape->w};
    int to[4] = {images, shape->c, npuc_extent(shape->h, pad->top, pad->bottom, kernel_h, 1, stride->h),
                 npuc_extent(shape->w, pad->left, pad->right, kernel_w, 1, stride->w)};
    nodechip_pooling_fix8b_forward_local((int)in, (int)weight, (int)bias, (int)out, from, to, kernel_h, kernel_w,
                                         pad->top, pad->bottom, pad->left, pad->right, stride->h, stride->w, 0, 0,
                                         2, 0, shift, 1, 1, in_signed, 1, 1, !relu, relu, npuc_begun(ids));
    npuc_done(ids);
}

/* The largest element of a window of so many images; padding is never the largest. */
static inline void npuc_fix8b_max_pool2d(npuc_ids *ids, local_addr_t out, local_addr_t in, const dim4 *shape,
                                         int kernel_h, int kernel_w, const Padding *pad, const dim2 *stride,
                                         bool in_signed, int images)
{
    int from[4] = {images, shape->c, shape->h, shape->w};
    int to[4] = {images, shape->c, npuc_extent(shape->h, pad->top, pad->bottom, kernel_h, 1, stride->h),
                 npuc_extent(shape->w, pad->left, pad->right, kernel_w, 1, stride->w)};
    nodechip_pooling_fix8b_forward_local((int)in, 0, 0, (int)out, from, to, kernel_h, kernel_w, pad->top,
                                         pad->bottom, pad->left, pad->right, stride->h, stride->w, 0, 0, 0, 0, 0, 0,
                                         0, in_signed, 1, 1, in_signed, 0, npuc_begun(ids));
    npuc_done(ids);
}

/*
 * The sum of a and b, each multiplied by its scale (0..127), shifted right and saturated to 16 bits; the sum is
 * saturated at -128..127, or with a ReLU at 0..255. work: (2n, c, h, w) words.
 */
static inline void npuc_fix8b_sum(npuc_ids *ids, local_addr_t out, local_addr_t a, local_addr_t b,
                                  local_addr_t work, const dim4 *shape, const dim2 *scales, const dim2 *shifts,
                                  bool a_signed, bool b_signed, bool relu)
{
    int from[2] = {(int)a, (int)b}, strides[2] = {0, 0}, factors[2] = {scales->h, scales->w};
    int bits[2] = {shifts->h, shifts->w}, signs[3] = {a_signed, b_signed, !relu};
    nodechip_eltwise_fix8b_forward_local(from, (int)out, (int)work, 4 * shape->n, shape->c, shape->h, shape->w,
                                         strides, 0, 1, factors, bits, signs, 2, relu, npuc_begun(ids));
    npuc_done(ids);
}

/* The same with a single operand. */
static inline void npuc_fix8b_rescale(npuc_ids *ids, local_addr_t out, local_addr_t a, local_addr_t work,
                                      const dim4 *shape, int scale, int shift, bool a_signed, bool relu)
{
    int from[1] = {(int)a}, strides[1] = {0}, signs[2] = {a_signed, !relu};
    nodechip_eltwise_fix8b_forward_local(from, (int)out, (int)work, 4 * shape->n, shape->c, shape->h, shape->w,
                                         strides, 0, 1, &scale, &shift, signs, 1, relu, npuc_begun(ids));
    npuc_done(ids);
}

/*
 * The product of a and b times a scale (0..127), shifted right by 0..31, saturated at -128..127 or with a ReLU at
 * 0..255. b has a's shape, or extent 1 along H or W. work: (4n, c, h, w) words.
 */
static inline void npuc_fix8b_product(npuc_ids *ids, local_addr_t out, local_addr_t a, local_addr_t b,
                                      local_addr_t work, const dim4 *shape, const dim4 *b_shape, int scale,
                                      int shift, bool a_signed, bool b_signed, bool relu)
{
    int from[4] = {4 * shape->n, shape->c, shape->h, shape->w}, signs[3] = {a_signed, b_signed, !relu};
    int other[4] = {4 * b_shape->n, b_shape->c, b_shape->h, b_shape->w}, bytes[3] = {1, 1, 1};
    nodechip_broadcast_binary_fix8b_forward_local(a, b, out, work, from, other, 4, 0, 0, 2, scale, 1,
                                                  shift, 0, bytes, signs, relu, npuc_begun(ids));
    npuc_done(ids);
}

/* Where the firmware counts from, where L2 memory starts, and the words of a table: one for each byte. */
#define NPUC_BASE 0x10000000ULL
#define NPUC_L2 0x100a2000ULL
#define NPUC_TABLE 256

/* Copies tables from system memory to L2 memory. */
static inline void npuc_fix8b_tables(system_addr_t tables, int count)
{
    dim4 shape = {1, 1, count, NPUC_TABLE};
    okk_gdma_32bit_cpy_S2S(NPUC_L2, tables, &shape, NULL, NULL);
}

/* The entries of a table in L2 memory, by its number, for so many images. work: (2n, c, h, w) words. */
static inline void npuc_fix8b_lookup(npuc_ids *ids, local_addr_t out, local_addr_t in, local_addr_t work,
                                     const dim4 *shape, int table, int images)
{
    int from[4] = {images, shape->c, shape->h, shape->w};
    int at = (int)(NPUC_L2 - NPUC_BASE) + 4 * NPUC_TABLE * table;
    nodechip_lut_local_v2((int)in, at, (int)work, (int)out, from, 4, 0, 1, 1, npuc_begun(ids));
    npuc_done(ids);
}

#endif
