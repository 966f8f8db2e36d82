/*
 * The firmware library's 8-bit layers, bit-exact as docs/bm1684-int8.md describes them, in the forms that were
 * verified on the vendor's chip model; any other form is refused.
 *
 * Sums are exact in 32 bits. A result is floor((sum + 2^(r - 1)) / 2^r), saturated.
 */
#include "okk_fix8b.h"

#include <stdlib.h>

#include "okk_model.h"
#include "okk_windows.h"

#define IMAGES 4 /* in a word */
#define PANEL 32 /* outputs computed at a time: so many elements of 8 words */
#define CHANNELS 4095
#define MOST_SHIFT 15
#define MOST_BIAS 32768
#define UNSIGNED 255

#if defined(__x86_64__) && defined(__linux__) && !defined(__clang__)
#define FAST __attribute__((target_clones("avx2", "default")))
#else
#define FAST
#endif

void okk_get_id_node(void *ids)
{
    (void)ids;
}

void okk_set_id_node(void *ids)
{
    (void)ids;
}

static dim4 words_of(const int *dim)
{
    okk_expect("the number of images", dim[0], 1, 65535);
    return (dim4){okk_ceil_div(dim[0], IMAGES), dim[1], dim[2], dim[3]};
}

static struct okk_tensor words(const char *name, int address, dim4 shape)
{
    struct okk_tensor made = okk_local(name, (local_addr_t)address, shape, NULL, OKK_ALIGNED, 4);
    okk_expect_extents(&made);
    if (shape.n > 1 && okk_rows(&made) > okk_ceil_div(shape.c, okk_machine.npus))
        okk_refuse("%s has more than four images and %d channels from NPU %d on, which wrap once more than from NPU "
                   "0: the firmware then takes the second four from another place",
                   name, shape.c, made.npu);
    return made;
}

static const uint8_t *bytes(const struct okk_tensor *tensor, int n, int c)
{
    return okk_feature(tensor, n, c);
}

/* A value of one or two bytes in the chip's order. */
static int element(uint8_t value, bool is_signed)
{
    return is_signed && value > 127 ? value - 256 : value;
}

static int bias_of(const struct okk_tensor *bias, int c)
{
    const uint8_t *at = bytes(bias, 0, c);
    int value = at[0] | at[1] << 8;
    return value < MOST_BIAS ? value : value - 2 * MOST_BIAS;
}

static int shifted(int64_t sum, int bits)
{
    int64_t half = bits > 0 ? (int64_t)1 << (bits - 1) : 0;
    return (int)((sum + half) >> bits);
}

static uint8_t limited(int value, int least, int most)
{
    return (uint8_t)(value < least ? least : value > most ? most : value);
}

/* A layer with weights, with checked arguments. */
struct layer {
    struct okk_tensor out, in, weight, bias;
    struct okk_window window;
    int shift, least, most;
    bool in_signed;
};

/* Refuses a form that no experiment has verified. */
static void expect_seen(const char *what, bool seen)
{
    if (!seen)
        okk_refuse("%s has a value that was not seen on the vendor's chip model", what);
}

static struct okk_window window_of(const int *from, const int *to, int kh, int kw, const Padding *pad,
                                   const dim2 *stride, const dim2 *dilation)
{
    dim4 in = {from[0], from[1], from[2], from[3]};
    struct okk_window made = okk_window(&in, kh, kw, pad, stride, dilation);
    if (to[0] != from[0] || to[2] != made.out.h || to[3] != made.out.w)
        okk_refuse("the output is (%d, %d, %d, %d): the window gives %d rows, %d columns", to[0], to[1], to[2],
                   to[3], made.out.h, made.out.w);
    return made;
}

static void touch(const struct layer *made)
{
    const struct okk_tensor *inputs[] = {&made->in, &made->weight, &made->bias};
    for (int at = 0; at < 3; at++) {
        okk_touch(inputs[at], OKK_READ);
        okk_disjoint(&made->out, inputs[at]);
    }
    okk_together(&made->out, &made->weight);
    okk_together(&made->out, &made->bias);
    okk_touch(&made->out, OKK_WRITE);
}

/* Weights as rows (OC, IC * kh * kw) of 16 bits. */
static int16_t *weight_rows(const struct layer *made, int IC)
{
    int taps = made->window.kernel_h * made->window.kernel_w, padded = okk_ceil_div(IC, 4) * 4;
    int16_t *rows = okk_memory((size_t)made->out.shape.c * (size_t)IC * (size_t)taps * sizeof *rows), *to = rows;
    for (int oc = 0; oc < made->out.shape.c; oc++) {
        const uint8_t *from = bytes(&made->weight, 0, oc);
        for (int ic = 0; ic < IC; ic++)
            for (int tap = 0; tap < taps; tap++)
                *to++ = (int16_t)element(from[tap * padded + ic], true);
    }
    return rows;
}

/* The elements of PANEL outputs from `first` on, (IC * kh * kw, PANEL): an output is a pixel of one of four images. */
static void fill_panel(const struct layer *made, int n, int first, int16_t *panel)
{
    const struct okk_window *window = &made->window;
    dim4 in = made->in.shape;
    int h[PANEL], w[PANEL], image[PANEL];
    for (int at = 0; at < PANEL; at++) {
        int pixel = (first + at) / IMAGES;
        bool inside = pixel < window->out.h * window->out.w;
        image[at] = (first + at) % IMAGES;
        h[at] = inside ? pixel / window->out.w * window->stride.h - window->pad.top : INT32_MIN / 2;
        w[at] = pixel % window->out.w * window->stride.w - window->pad.left;
    }
    for (int ic = 0; ic < in.c; ic++) {
        const uint8_t *plane = bytes(&made->in, n, ic);
        for (int i = 0; i < window->kernel_h; i++)
            for (int j = 0; j < window->kernel_w; j++)
                for (int at = 0; at < PANEL; at++) {
                    int y = h[at] + i * window->dilation.h, x = w[at] + j * window->dilation.w;
                    bool inside = (unsigned)y < (unsigned)in.h && (unsigned)x < (unsigned)in.w;
                    int value = inside ? plane[(y * in.w + x) * IMAGES + image[at]] : 0;
                    *panel++ = (int16_t)(inside ? element((uint8_t)value, made->in_signed) : 0);
                }
    }
}

FAST static void panel_product(const int16_t *row, const int16_t *panel, int depth, int32_t *sums)
{
    int32_t found[PANEL] = {0};
    for (int k = 0; k < depth; k++, panel += PANEL)
        for (int at = 0; at < PANEL; at++)
            found[at] += row[k] * panel[at];
    for (int at = 0; at < PANEL; at++)
        sums[at] = found[at];
}

static void convolve(const struct layer *made)
{
    int IC = made->in.shape.c, depth = IC * made->window.kernel_h * made->window.kernel_w;
    int count = made->window.out.h * made->window.out.w * IMAGES;
    int16_t *rows = weight_rows(made, IC), *panel = okk_memory((size_t)depth * PANEL * sizeof *panel);
    for (int n = 0; n < made->in.shape.n; n++)
        for (int first = 0; first < count; first += PANEL) {
            fill_panel(made, n, first, panel);
            for (int oc = 0; oc < made->out.shape.c; oc++) {
                int32_t sums[PANEL];
                panel_product(rows + (size_t)oc * (size_t)depth, panel, depth, sums);
                uint8_t *out = okk_feature(&made->out, n, oc) + first;
                for (int at = 0; at < PANEL && first + at < count; at++)
                    out[at] = limited(shifted((int64_t)sums[at] + bias_of(&made->bias, oc), made->shift),
                                      made->least, made->most);
            }
        }
    free(panel);
    free(rows);
}

void nodechip_conv_forward_local_fix8b(int bottom, int weight, int bias, int top, int imm, int *bottom_dim,
                                       int *top_dim, int groups, int kh, int kw, int dh, int dw, int up, int down,
                                       int left, int right, int stride_h, int stride_w, int using_bias,
                                       int result_add, int if_relu, int relu_upper_limit, int unused_ht,
                                       int unused_hb, int unused_wl, int unused_wr, int ins_h, int ins_w,
                                       int rshiftbits, int opd0_sign, int opd1_sign, int opd2_sign,
                                       bool if_ic_inner, int if_concat_scale, int concat_scale_val,
                                       int concat_scale_rshift, int concat_output_sign, void *id_node)
{
    okk_call(__func__, OKK_BDC_ENGINE);
    (void)imm;
    (void)id_node;
    expect_seen("groups", groups == 1);
    expect_seen("using_bias", using_bias == 1 && opd2_sign == 1);
    expect_seen("opd1_sign", opd1_sign == 1);
    expect_seen("result_add", !result_add && if_ic_inner);
    expect_seen("unused", !unused_ht && !unused_hb && !unused_wl && !unused_wr && !ins_h && !ins_w);
    expect_seen("concat", !if_concat_scale && !concat_scale_val && !concat_scale_rshift && !concat_output_sign);
    okk_expect("rshiftbits", rshiftbits, 0, MOST_SHIFT);
    okk_expect("relu_upper_limit", relu_upper_limit, 0, UNSIGNED);
    Padding pad = {up, down, left, right};
    dim2 stride = {stride_h, stride_w}, dilation = {dh, dw};
    struct layer made = {.shift = rshiftbits, .in_signed = opd0_sign, .least = if_relu ? 0 : -128};
    made.most = !if_relu ? 127 : relu_upper_limit ? relu_upper_limit : UNSIGNED;
    made.window = window_of(bottom_dim, top_dim, kh, kw, &pad, &stride, &dilation);
    int IC = bottom_dim[1], OC = top_dim[1], depth = kh * kw * okk_ceil_div(IC, 4) * 4;
    okk_expect("the number of input channels", IC, 1, CHANNELS);
    made.in = words("bottom", bottom, words_of(bottom_dim));
    made.out = words("top", top, words_of(top_dim));
    made.weight = okk_local("weight", (local_addr_t)weight, (dim4){1, OC, 1, depth}, NULL, OKK_COMPACT, 1);
    made.bias = okk_local("bias", (local_addr_t)bias, (dim4){1, OC, 1, 1}, NULL, OKK_COMPACT, 2);
    okk_divisible("weight", (uint64_t)(unsigned)weight, 4);
    touch(&made);
    convolve(&made);
    okk_record("groups=%lld IC=%d kernel_h=%d kernel_w=%d stride=%d limited=%d", okk_groups(&made.out), IC, kh, kw,
               stride_h < stride_w ? stride_h : stride_w, relu_upper_limit > 0);
}

/* One output of a window over a channel of one image: the sum of products, or without weights the maximum. */
static int reduced(const struct layer *made, const uint8_t *plane, const uint8_t *weights, int h, int w)
{
    const struct okk_window *window = &made->window;
    dim4 in = made->in.shape;
    int top, bottom, left, right, found = weights ? 0 : INT32_MIN;
    okk_taps(h, window->stride.h, 1, window->pad.top, window->kernel_h, in.h, &top, &bottom);
    okk_taps(w, window->stride.w, 1, window->pad.left, window->kernel_w, in.w, &left, &right);
    for (int i = top; i < bottom; i++)
        for (int j = left; j < right; j++) {
            int y = h * window->stride.h - window->pad.top + i, x = w * window->stride.w - window->pad.left + j;
            int value = element(plane[(y * in.w + x) * IMAGES], made->in_signed);
            if (weights)
                found += value * element(weights[i * window->kernel_w + j], true);
            else
                found = value > found ? value : found;
        }
    return found;
}

/* Bytes of further images in the last word stay as they are. */
static void pool(const struct layer *made, bool weighted, int images)
{
    for (int n = 0; n < made->in.shape.n; n++)
        for (int c = 0; c < made->in.shape.c; c++) {
            const uint8_t *plane = bytes(&made->in, n, c), *weights = weighted ? bytes(&made->weight, 0, c) : NULL;
            uint8_t *out = okk_feature(&made->out, n, c);
            int bias = weighted ? bias_of(&made->bias, c) : 0;
            for (int h = 0; h < made->window.out.h; h++)
                for (int w = 0; w < made->window.out.w; w++)
                    for (int image = 0; image < IMAGES; image++, out++) {
                        if (IMAGES * n + image >= images)
                            continue;
                        int64_t sum = (int64_t)reduced(made, plane + image, weights, h, w) + bias;
                        *out = limited(shifted(sum, made->shift), made->least, made->most);
                    }
        }
}

static void expect_met(const struct okk_window *window)
{
    bool met = window->pad.top < window->kernel_h && window->pad.bottom < window->kernel_h &&
               window->pad.left < window->kernel_w && window->pad.right < window->kernel_w;
    if (!met)
        okk_refuse("a window lies in the padding alone");
}

void nodechip_pooling_fix8b_forward_local(int bottom, int weight, int bias, int top, int *bottom_dim, int *top_dim,
                                          int kh, int kw, int up, int down, int left, int right, int stride_h,
                                          int stride_w, int ins_w, int ins_h, int is_avg_pooling,
                                          int avg_pooling_mode, int r_shift, int using_bias, int rshift_typ,
                                          int opd0_sign, int opd1_sign, int opd2_sign, int res0_sign, int if_relu,
                                          void *pid_node)
{
    okk_call(__func__, OKK_BDC_ENGINE);
    (void)pid_node;
    bool weighted = is_avg_pooling == 2;
    expect_seen("is_avg_pooling", weighted || is_avg_pooling == 0);
    expect_seen("ins", !ins_w && !ins_h && !avg_pooling_mode && opd1_sign == 1 && opd2_sign == 1);
    expect_seen("res0_sign", weighted ? res0_sign == !if_relu : res0_sign == opd0_sign && !if_relu);
    expect_seen("using_bias", weighted ? using_bias == 1 && rshift_typ == 1 : !using_bias && !rshift_typ && !r_shift);
    okk_expect("r_shift", r_shift, 0, MOST_SHIFT);
    Padding pad = {up, down, left, right};
    dim2 stride = {stride_h, stride_w}, dilation = {1, 1};
    struct layer made = {.shift = r_shift, .in_signed = opd0_sign};
    made.least = weighted ? (if_relu ? 0 : -128) : (opd0_sign ? -128 : 0);
    made.most = made.least + UNSIGNED;
    made.window = window_of(bottom_dim, top_dim, kh, kw, &pad, &stride, &dilation);
    expect_met(&made.window);
    int C = bottom_dim[1];
    if (top_dim[1] != C)
        okk_refuse("%d channels become %d", C, top_dim[1]);
    made.in = words("bottom", bottom, words_of(bottom_dim));
    made.out = words("top", top, words_of(top_dim));
    okk_together(&made.out, &made.in);
    if (weighted) {
        made.weight = okk_local("weight", (local_addr_t)weight, (dim4){1, C, 1, kh * kw}, NULL, OKK_COMPACT, 1);
        made.bias = okk_local("bias", (local_addr_t)bias, (dim4){1, C, 1, 1}, NULL, OKK_COMPACT, 2);
        touch(&made);
    } else {
        okk_touch(&made.in, OKK_READ);
        okk_disjoint(&made.out, &made.in);
        okk_touch(&made.out, OKK_WRITE);
    }
    pool(&made, weighted, bottom_dim[0]);
    long long tiles = okk_ceil_div(made.window.out.h * made.window.out.w, IMAGES * okk_machine.lanes);
    okk_record("groups=%lld kernel_h=%d kernel_w=%d stride_w=%d weighted=%d",
               bottom_dim[0] * (long long)okk_rows(&made.out) * tiles, kh, kw, stride_w, weighted);
}

#define OPERANDS 2
#define MOST_SCALE 127

void nodechip_eltwise_fix8b_forward_local(int *bottoms, int top, int imm, int n, int c, int h, int w,
                                          int *cstrides, int cstride_en, int op_code, int *scales, int *rshifts,
                                          int *signs, int count, int if_relu, void *id_node)
{
    okk_call(__func__, OKK_BDC_ENGINE);
    (void)cstrides;
    (void)id_node;
    expect_seen("op_code", op_code == 1 && !cstride_en && count >= 1 && count <= OPERANDS);
    expect_seen("the result's sign", signs[count] == !if_relu);
    int dim[4] = {n, c, h, w};
    dim4 shape = words_of(dim), twice = shape;
    twice.n *= 2;
    struct okk_tensor out = words("top", top, shape), in[OPERANDS];
    struct okk_tensor work = okk_local("imm", (local_addr_t)imm, twice, NULL, OKK_ALIGNED, 4);
    okk_together(&out, &work);
    okk_disjoint(&work, &out);
    bool is_signed = false;
    for (int at = 0; at < count; at++) {
        okk_expect("a scale", scales[at], 0, MOST_SCALE);
        okk_expect("a shift", rshifts[at], 0, MOST_SHIFT);
        in[at] = words("bottom", bottoms[at], shape);
        okk_together(&out, &in[at]);
        okk_touch(&in[at], OKK_READ);
        okk_disjoint(&work, &in[at]);
        okk_disjoint(&out, &in[at]);
        is_signed = is_signed || signs[at];
    }
    if (!is_signed && !if_relu)
        okk_refuse("no operand has a sign: the chip's result then has none either");
    okk_touch(&work, OKK_WRITE);
    okk_touch(&out, OKK_WRITE);
    for (int group = 0; group < shape.n; group++)
        for (int channel = 0; channel < c; channel++) {
            uint8_t *to = okk_feature(&out, group, channel);
            for (int at = 0; at < h * w * IMAGES; at++) {
                int sum = 0;
                for (int each = 0; each < count; each++) {
                    int x = element(bytes(&in[each], group, channel)[at], signs[each]);
                    int part = shifted(scales[each] * x, rshifts[each]);
                    sum += part < -MOST_BIAS ? -MOST_BIAS : part > MOST_BIAS - 1 ? MOST_BIAS - 1 : part;
                }
                to[at] = limited(sum, if_relu ? 0 : -128, if_relu ? UNSIGNED : 127);
            }
        }
    okk_record("groups=%lld operands=%d limited=%d", okk_groups(&out), count, if_relu && is_signed);
}

static void multiply(const struct okk_tensor *out, const struct okk_tensor *a, const struct okk_tensor *b,
                     const int *signs, int scale, int shift)
{
    dim4 shape = out->shape, other = b->shape;
    for (int n = 0; n < shape.n; n++)
        for (int c = 0; c < shape.c; c++) {
            const uint8_t *left = bytes(a, n, c), *right = bytes(b, n, c);
            uint8_t *to = okk_feature(out, n, c);
            for (int at = 0; at < shape.h * shape.w * IMAGES; at++) {
                int h = at / IMAGES / shape.w % other.h, w = at / IMAGES % shape.w % other.w;
                int y = element(right[(h * other.w + w) * IMAGES + at % IMAGES], signs[1]);
                int found = shifted((int64_t)element(left[at], signs[0]) * y * scale, shift);
                to[at] = limited(found, signs[2] ? -128 : 0, signs[2] ? 127 : UNSIGNED);
            }
        }
}

void nodechip_broadcast_binary_fix8b_forward_local(uint32_t bottom0, uint32_t bottom1, uint32_t top, uint32_t imm,
                                                   int *b0_shape, int *b1_shape, int tensor_dim, int a_is_coeff,
                                                   int b_is_coeff, int op_code, int scale_A, int scale_B,
                                                   int rshift_A, int rshift_B, int *is_int8, int *is_sign,
                                                   int if_relu, void *id_node)
{
    okk_call(__func__, OKK_BDC_ENGINE);
    (void)id_node;
    expect_seen("op_code", op_code == 2 && tensor_dim == 4 && !a_is_coeff && !b_is_coeff);
    expect_seen("a type", is_int8[0] && is_int8[1] && is_int8[2] && is_sign[2] == !if_relu);
    expect_seen("the second operand's scale or shift", scale_B == 1 && !rshift_B);
    okk_expect("a scale", scale_A, 0, MOST_SCALE);
    okk_expect("a shift", rshift_A, 0, 31);
    dim4 shape = words_of(b0_shape), other = words_of(b1_shape), four = shape;
    expect_seen("the second operand's shape",
                other.n == shape.n && other.c == shape.c && (other.h == shape.h || other.h == 1) &&
                    (other.w == shape.w || other.w == 1));
    four.n *= 4;
    struct okk_tensor out = words("top", (int)top, shape), a = words("bottom0", (int)bottom0, shape);
    struct okk_tensor b = words("bottom1", (int)bottom1, other);
    struct okk_tensor work = okk_local("imm", imm, four, NULL, OKK_ALIGNED, 4);
    const struct okk_tensor *others[] = {&a, &b, &work};
    for (int at = 0; at < 3; at++) {
        okk_together(&out, others[at]);
        okk_disjoint(&out, others[at]);
        okk_disjoint(&work, at == 2 ? &out : others[at]);
        okk_touch(others[at], at == 2 ? OKK_WRITE : OKK_READ);
    }
    okk_touch(&out, OKK_WRITE);
    multiply(&out, &a, &b, is_sign, scale_A, rshift_A);
    okk_record("groups=%lld limited=%d", okk_groups(&out), if_relu);
}

void nodechip_lut_local_v2(int index, int table_l2_offset, int imm, int output, int *index_shape, int index_dim,
                           int bottom_stmode, int top_dtype, int top_stmode, void *pid_node)
{
    okk_call(__func__, OKK_BDC_ENGINE);
    (void)pid_node;
    expect_seen("a mode", index_dim == 4 && bottom_stmode == 0 && top_dtype == 1 && top_stmode == 1);
    dim4 shape = words_of(index_shape), twice = shape;
    twice.n *= 2;
    struct okk_tensor in = words("index", index, shape), out = words("output", output, shape);
    struct okk_tensor work = okk_local("imm", (local_addr_t)imm, twice, NULL, OKK_ALIGNED, 4);
    okk_together(&out, &in);
    okk_together(&out, &work);
    okk_disjoint(&out, &in);
    okk_disjoint(&work, &in);
    okk_disjoint(&work, &out);
    okk_touch(&in, OKK_READ);
    okk_touch(&work, OKK_WRITE);
    okk_touch(&out, OKK_WRITE);
    const int32_t *table = okk_l2_words(NPUC_BASE + (uint64_t)table_l2_offset, NPUC_TABLE);
    for (int n = 0; n < shape.n; n++)
        for (int c = 0; c < shape.c; c++) {
            const uint8_t *from = bytes(&in, n, c);
            uint8_t *to = okk_feature(&out, n, c);
            for (int at = 0; at < shape.h * shape.w * IMAGES; at++)
                to[at] = IMAGES * n + at % IMAGES < index_shape[0] ? (uint8_t)table[from[at]] : 0;
        }
    long long rows = okk_groups(&out) / shape.n;
    okk_record("groups=%lld images=%d", rows, index_shape[0]);
}
