/* BDC: convolution, as a product of the weights with panels of the windows' elements. */
#include <stdlib.h>

#include "okk_product.h"
#include "okk_windows.h"

#define CHANNELS 4095
#define STRIDES ((1 << 19) - 1)
#define OUTSIDE (-1)

struct convolution {
    struct okk_tensor out, in, weight, bias;
    struct okk_window window;
    bool using_bias, result_add;
};

static void check(const struct convolution *made)
{
    okk_expect("the number of input channels", made->in.shape.c, 1, CHANNELS);
    okk_expect("the number of output channels", made->out.shape.c, 1, CHANNELS);
    okk_expect("n", made->in.shape.n, 1, 65535);
    long long taps = (long long)made->weight.shape.h * made->weight.shape.w;
    okk_expect("the number of weights", taps * made->in.shape.c * made->out.shape.c, 1,
               okk_machine.local_bytes / 4 * (long long)okk_machine.npus);
    okk_expect("the N stride of input", made->in.stride.n, 0, STRIDES);
    okk_expect("the C stride of input", made->in.stride.c, 0, STRIDES);
    okk_expect("the N stride of weight", made->weight.stride.n, 0, STRIDES);
    okk_expect("the C stride of weight", made->weight.stride.c, 0, STRIDES);
    okk_together(&made->out, &made->weight);
    okk_touch(&made->in, OKK_READ);
    okk_touch(&made->weight, OKK_READ);
    okk_disjoint(&made->out, &made->in);
    okk_disjoint(&made->out, &made->weight);
    if (made->using_bias) {
        okk_together(&made->out, &made->bias);
        okk_touch(&made->bias, OKK_READ);
        okk_disjoint(&made->out, &made->bias);
    }
    if (made->result_add)
        okk_touch(&made->out, OKK_READ);
    okk_touch(&made->out, OKK_WRITE);
}

/* The weights as rows (OC, IC * kernel_h * kernel_w), without the dummy elements of an odd IC. */
static struct okk_left weight_rows(const struct convolution *made)
{
    dim4 kernel = made->weight.shape, stride = made->weight.stride;
    int IC = made->in.shape.c, taps = kernel.h * kernel.w;
    struct okk_left rows = okk_left_make(kernel.c, IC * taps);
    for (int ic = 0; ic < IC; ic++)
        for (int oc = 0; oc < kernel.c; oc++) {
            const float *pair = okk_floats(&made->weight, ic / 2, oc) + ic % 2;
            for (int i = 0; i < kernel.h; i++)
                for (int j = 0; j < kernel.w; j++)
                    okk_left_set(&rows, oc, ic * taps + i * kernel.w + j,
                                 pair[2 * (i * (ptrdiff_t)stride.h + j * (ptrdiff_t)stride.w)]);
        }
    return rows;
}

/*
 * Where the windows of 16 outputs from `first` on read a plane: offsets (kernel_h * kernel_w, 16) in elements, the
 * same for every channel; OUTSIDE in the padding.
 */
static void find_windows(const struct convolution *made, int first, int *offsets)
{
    const struct okk_window *window = &made->window;
    dim4 in = made->in.shape, stride = made->in.stride;
    for (int i = 0; i < window->kernel_h; i++)
        for (int j = 0; j < window->kernel_w; j++)
            for (int at = first; at < first + OKK_PANEL; at++) {
                int y = at / window->out.w * window->stride.h - window->pad.top + i * window->dilation.h;
                int x = at % window->out.w * window->stride.w - window->pad.left + j * window->dilation.w;
                bool inside = at < window->out.h * window->out.w && (unsigned)y < (unsigned)in.h;
                inside = inside && (unsigned)x < (unsigned)in.w;
                *offsets++ = inside ? y * stride.h + x * stride.w : OUTSIDE;
            }
}

/* The elements there: (IC * kernel_h * kernel_w, 16); 0 in the padding. */
static void fill_panel(const struct convolution *made, int n, const int *offsets, float *panel)
{
    int count = made->window.kernel_h * made->window.kernel_w * OKK_PANEL;
    for (int ic = 0; ic < made->in.shape.c; ic++) {
        const float *plane = okk_floats(&made->in, n, ic);
        for (int at = 0; at < count; at++)
            *panel++ = offsets[at] < 0 ? 0 : plane[offsets[at]];
    }
}

/* 16 outputs of every channel from `first` on: sums (OC, 16), plus the bias and the previous content. */
static void store_panel(const struct convolution *made, int n, int first, const float *sums)
{
    int area = made->window.out.h * made->window.out.w;
    int count = area - first < OKK_PANEL ? area - first : OKK_PANEL;
    for (int oc = 0; oc < made->out.shape.c; oc++) {
        float *out = okk_floats(&made->out, n, oc) + first;
        float bias = made->using_bias ? *okk_floats(&made->bias, 0, oc) : 0;
        for (int at = 0; at < count; at++) {
            float sum = sums[(size_t)oc * OKK_PANEL + (size_t)at] + bias;
            out[at] = made->result_add ? out[at] + sum : sum;
        }
    }
}

static void compute(const struct convolution *made)
{
    struct okk_left weights = weight_rows(made);
    float *panel = okk_memory((size_t)weights.depth * OKK_PANEL * sizeof(float));
    float *sums = okk_memory((size_t)weights.rows * OKK_PANEL * sizeof(float));
    size_t taps = (size_t)made->window.kernel_h * (size_t)made->window.kernel_w;
    int *offsets = okk_memory(taps * OKK_PANEL * sizeof *offsets);
    for (int first = 0; first < made->window.out.h * made->window.out.w; first += OKK_PANEL) {
        find_windows(made, first, offsets);
        for (int n = 0; n < made->in.shape.n; n++) {
            fill_panel(made, n, offsets, panel);
            okk_product(&weights, panel, sums);
            store_panel(made, n, first, sums);
        }
    }
    free(offsets);
    free(sums);
    free(panel);
    free(weights.packed);
}

void okk_bdc_conv2d(local_addr_t output_addr, local_addr_t input_addr, local_addr_t weight_addr,
                    local_addr_t bias_addr, const dim4 *input_shape, int output_c, int kernel_h, int kernel_w,
                    const dim4 *input_stride, const dim4 *kernel_stride, bool using_bias, bool result_add,
                    const Padding *padding, const dim2 *stride, const dim2 *dilation)
{
    okk_call(__func__, OKK_BDC_ENGINE);
    struct convolution made = {.using_bias = using_bias, .result_add = result_add};
    if (kernel_stride == NULL)
        okk_refuse("kernel_stride is NULL, which the chip's library does not allow");
    made.window = okk_window(input_shape, kernel_h, kernel_w, padding, stride, dilation);
    dim4 output = {input_shape->n, output_c, made.window.out.h, made.window.out.w}, each = {1, output_c, 1, 1};
    dim4 kernel = {okk_ceil_div(input_shape->c, 2), output_c, kernel_h, kernel_w};
    made.out = okk_local("output", output_addr, output, NULL, OKK_ALIGNED, 4);
    made.in = okk_local("input", input_addr, *input_shape, input_stride, OKK_ALIGNED, 4);
    made.weight = okk_local("weight", weight_addr, kernel, kernel_stride, OKK_COMPACT, 8);
    if (using_bias)
        made.bias = okk_local("bias", bias_addr, each, NULL, OKK_COMPACT, 4);
    check(&made);
    compute(&made);
    okk_record("groups=%lld IC=%d kernel_h=%d kernel_w=%d stride_w=%d using_bias=%d", okk_groups(&made.out),
               input_shape->c, kernel_h, kernel_w, made.window.stride.w, using_bias);
}
