/* BDC: depthwise convolution and pooling, one feature at a time. */
#include "okk_windows.h"

#include <math.h>

static void expect_window(const struct okk_window *window)
{
    okk_expect("the padding above", window->pad.top, 0, 15);
    okk_expect("the padding below", window->pad.bottom, 0, 15);
    okk_expect("the padding to the left", window->pad.left, 0, 15);
    okk_expect("the padding to the right", window->pad.right, 0, 15);
    okk_expect("the stride in h", window->stride.h, 1, 15);
    okk_expect("the stride in w", window->stride.w, 1, 15);
    okk_expect("the dilation in h", window->dilation.h, 1, 16);
    okk_expect("the dilation in w", window->dilation.w, 1, 16);
}

struct okk_window okk_window(const dim4 *input, int kernel_h, int kernel_w, const Padding *padding,
                             const dim2 *stride, const dim2 *dilation)
{
    struct okk_window made = {kernel_h, kernel_w, {0, 0, 0, 0}, {1, 1}, {1, 1}, {0, 0}};
    made.pad = padding ? *padding : made.pad;
    made.stride = stride ? *stride : made.stride;
    made.dilation = dilation ? *dilation : made.dilation;
    expect_window(&made);
    okk_expect_shape("input", *input, NULL);
    okk_expect("the height of the kernel", kernel_h, 1, 65535);
    okk_expect("the width of the kernel", kernel_w, 1, 65535);
    int h = input->h + made.pad.top + made.pad.bottom, w = input->w + made.pad.left + made.pad.right;
    okk_expect("the padded height", h, 1, 2047);
    okk_expect("the padded width", w, 1, 2047);
    okk_expect("the height of the kernel with its dilation", (kernel_h - 1) * made.dilation.h + 1, 1, h);
    okk_expect("the width of the kernel with its dilation", (kernel_w - 1) * made.dilation.w + 1, 1, w);
    made.out.h = (h - (kernel_h - 1) * made.dilation.h - 1) / made.stride.h + 1;
    made.out.w = (w - (kernel_w - 1) * made.dilation.w - 1) / made.stride.w + 1;
    return made;
}

void okk_taps(int out, int stride, int dilation, int pad, int kernel, int extent, int *first, int *behind)
{
    int start = out * stride - pad;
    *first = start < 0 ? okk_ceil_div(-start, dilation) : 0;
    *behind = start < extent ? (extent - 1 - start) / dilation + 1 : 0;
    *behind = *behind < kernel ? *behind : kernel;
}

/* Computes one output of the window at (out_h, out_w) on a plane (h, w); weights are (kernel_h, kernel_w). */
typedef float (*reduction)(float sum, float x, float weight);

static float multiply(float sum, float x, float weight)
{
    return sum + x * weight;
}

static float larger(float most, float x, float weight)
{
    (void)weight;
    return x > most ? x : most;
}

static float plus(float sum, float x, float weight)
{
    (void)weight;
    return sum + x;
}

struct plane {
    const float *elements, *weights;
    int h, w;
};

static float at(const struct okk_window *window, const struct plane *plane, reduction of, float start, int h,
                int w)
{
    int top, bottom, left, right;
    okk_taps(h, window->stride.h, window->dilation.h, window->pad.top, window->kernel_h, plane->h, &top, &bottom);
    okk_taps(w, window->stride.w, window->dilation.w, window->pad.left, window->kernel_w, plane->w, &left, &right);
    for (int i = top; i < bottom; i++)
        for (int j = left; j < right; j++) {
            int y = h * window->stride.h - window->pad.top + i * window->dilation.h;
            int x = w * window->stride.w - window->pad.left + j * window->dilation.w;
            float weight = plane->weights ? plane->weights[i * window->kernel_w + j] : 1;
            start = of(start, plane->elements[y * plane->w + x], weight);
        }
    return start;
}

struct pair {
    struct okk_tensor out, in;
};

/* Output and input in the aligned layout, checked and recorded as accessed. */
static struct pair aligned_pair(local_addr_t output_addr, local_addr_t input_addr, const dim4 *input,
                                const struct okk_window *window)
{
    dim4 output = {input->n, input->c, window->out.h, window->out.w};
    struct pair made = {okk_local("output", output_addr, output, NULL, OKK_ALIGNED, 4),
                        okk_local("input", input_addr, *input, NULL, OKK_ALIGNED, 4)};
    okk_expect_extents(&made.in);
    okk_together(&made.out, &made.in);
    okk_touch(&made.in, OKK_READ);
    okk_disjoint(&made.out, &made.in);
    okk_touch(&made.out, OKK_WRITE);
    return made;
}

static void record(const struct pair *pair, const struct okk_window *window)
{
    okk_record("groups=%lld kernel_h=%d kernel_w=%d stride_w=%d", okk_groups(&pair->out), window->kernel_h,
               window->kernel_w, window->stride.w);
}

static void pool(local_addr_t output_addr, local_addr_t input_addr, const dim4 *input,
                 const struct okk_window *window, reduction of, float start, float divisor)
{
    struct pair pair = aligned_pair(output_addr, input_addr, input, window);
    for (int n = 0; n < input->n; n++)
        for (int c = 0; c < input->c; c++) {
            struct plane plane = {okk_floats(&pair.in, n, c), NULL, input->h, input->w};
            float *out = okk_floats(&pair.out, n, c);
            for (int h = 0; h < window->out.h; h++)
                for (int w = 0; w < window->out.w; w++)
                    out[h * window->out.w + w] = at(window, &plane, of, start, h, w) / divisor;
        }
    record(&pair, window);
}

void okk_bdc_max_pool2d(local_addr_t output_addr, local_addr_t input_addr, const dim4 *input_shape, int kernel_h,
                        int kernel_w, const Padding *padding, const dim2 *stride)
{
    okk_call(__func__, OKK_BDC_ENGINE);
    struct okk_window window = okk_window(input_shape, kernel_h, kernel_w, padding, stride, NULL);
    pool(output_addr, input_addr, input_shape, &window, larger, -INFINITY, 1);
}

void okk_bdc_avg_pool2d(local_addr_t output_addr, local_addr_t input_addr, const dim4 *input_shape, int kernel_h,
                        int kernel_w, const Padding *padding, const dim2 *stride)
{
    okk_call(__func__, OKK_BDC_ENGINE);
    struct okk_window window = okk_window(input_shape, kernel_h, kernel_w, padding, stride, NULL);
    pool(output_addr, input_addr, input_shape, &window, plus, 0, (float)(kernel_h * kernel_w));
}

void okk_bdc_depthwise2d(local_addr_t output_addr, local_addr_t input_addr, local_addr_t weight_addr,
                         local_addr_t bias_addr, const dim4 *input_shape, int kernel_h, int kernel_w,
                         bool using_bias, const Padding *padding, const dim2 *stride, const dim2 *dilation)
{
    okk_call(__func__, OKK_BDC_ENGINE);
    struct okk_window window = okk_window(input_shape, kernel_h, kernel_w, padding, stride, dilation);
    dim4 kernel = {1, input_shape->c, kernel_h, kernel_w}, each = {1, input_shape->c, 1, 1};
    struct okk_tensor weight = okk_local("weight", weight_addr, kernel, NULL, OKK_COMPACT, 4), bias = weight;
    if (using_bias)
        bias = okk_local("bias", bias_addr, each, NULL, OKK_COMPACT, 4);
    okk_touch(&weight, OKK_READ);
    okk_touch(&bias, OKK_READ);
    struct pair pair = aligned_pair(output_addr, input_addr, input_shape, &window);
    okk_together(&pair.out, &weight);
    okk_together(&pair.out, &bias);
    okk_disjoint(&pair.out, &weight);
    okk_disjoint(&pair.out, &bias);
    for (int n = 0; n < input_shape->n; n++)
        for (int c = 0; c < input_shape->c; c++) {
            struct plane plane = {okk_floats(&pair.in, n, c), okk_floats(&weight, 0, c), input_shape->h,
                                  input_shape->w};
            float *out = okk_floats(&pair.out, n, c), add = using_bias ? *okk_floats(&bias, 0, c) : 0;
            for (int h = 0; h < window.out.h; h++)
                for (int w = 0; w < window.out.w; w++)
                    out[h * window.out.w + w] = at(&window, &plane, multiply, 0, h, w) + add;
        }
    record(&pair, &window);
}
