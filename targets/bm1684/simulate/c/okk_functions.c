/*
 * BDC: elementwise functions, computed here by the C library.
 *
 * The chip's exp looks up the integer part and sums a series for the fraction. Its table ends near the largest fp32;
 * arguments beyond it silently give wrong results, so the model refuses them.
 */
#include "okk_model.h"

#include <math.h>

#define TERMS 32
#define TERMS_ENOUGH 10

/* A function, and the arguments for which the chip computes it. */
struct curve {
    float (*of)(float x);
    float least, most;
};

static float sigmoid(float x)
{
    return (float)(1 / (1 + exp(-(double)x)));
}

static float rsqrt(float x)
{
    return (float)(1 / sqrt((double)x));
}

static const struct curve EXP = {expf, -128, 88}, SIGMOID = {sigmoid, -88, 128}, TANH = {tanhf, -86, 88};
static const struct curve SQRT = {sqrtf, 0, INFINITY}, RSQRT = {rsqrt, 0, INFINITY};

static float value(const struct curve *curve, float x)
{
    if (!(x >= curve->least && x <= curve->most))
        okk_refuse("an argument is %g: the chip computes %g..%g", (double)x, (double)curve->least,
                   (double)curve->most);
    return curve->of(x);
}

static void compute(const struct curve *curve, const struct okk_tensor *dst, const struct okk_tensor *src)
{
    dim4 shape = dst->shape;
    okk_expect_extents(dst);
    okk_together(dst, src);
    okk_touch(src, OKK_READ);
    if (dst->offset != src->offset)
        okk_disjoint(dst, src);
    okk_touch(dst, OKK_WRITE);
    for (int n = 0; n < shape.n; n++)
        for (int c = 0; c < shape.c; c++) {
            const float *from = okk_floats(src, n, c);
            float *to = okk_floats(dst, n, c);
            for (int at = 0; at < shape.h * shape.w; at++)
                to[at] = value(curve, from[at]);
        }
}

static struct okk_tensor aligned(const char *name, local_addr_t address, const dim4 *shape)
{
    return okk_local(name, address, *shape, NULL, OKK_ALIGNED, 4);
}

/* With a work tensor for the chip's intermediates, which must not overlap the others. */
static void compute_working(const struct curve *curve, local_addr_t dst_addr, local_addr_t src_addr,
                            local_addr_t work_addr, const dim4 *shape)
{
    struct okk_tensor dst = aligned("dst", dst_addr, shape), src = aligned("src", src_addr, shape);
    struct okk_tensor work = aligned("work", work_addr, shape);
    okk_together(&dst, &work);
    okk_disjoint(&dst, &work);
    okk_disjoint(&src, &work);
    okk_touch(&work, OKK_WRITE);
    compute(curve, &dst, &src);
}

#define FUNCTION(name, curve)                                                                                 \
    void okk_bdc_##name(local_addr_t dst_addr, local_addr_t src_addr, const dim4 *shape)                      \
    {                                                                                                         \
        okk_call(__func__, OKK_BDC_ENGINE);                                                                   \
        struct okk_tensor dst = aligned("dst", dst_addr, shape), src = aligned("src", src_addr, shape);       \
        compute(&curve, &dst, &src);                                                                          \
        okk_record("groups=%lld strided=0", okk_groups(&dst));                                                \
    }
#define WORKING(name, curve)                                                                                  \
    void okk_bdc_##name(local_addr_t dst_addr, local_addr_t src_addr, local_addr_t work_addr, const dim4 *shape)\
    {                                                                                                         \
        okk_call(__func__, OKK_BDC_ENGINE);                                                                   \
        compute_working(&curve, dst_addr, src_addr, work_addr, shape);                                        \
        struct okk_tensor dst = aligned("dst", dst_addr, shape);                                              \
        okk_record("groups=%lld strided=0", okk_groups(&dst));                                                \
    }                                                                                                         \
    void okk_bdc_##name##_tunable(local_addr_t dst_addr, local_addr_t src_addr, local_addr_t work_addr,       \
                                  const dim4 *shape, int num_series)                                          \
    {                                                                                                         \
        okk_call(__func__, OKK_BDC_ENGINE);                                                                   \
        okk_expect("num_series", num_series, TERMS_ENOUGH, TERMS);                                            \
        compute_working(&curve, dst_addr, src_addr, work_addr, shape);                                        \
        struct okk_tensor dst = aligned("dst", dst_addr, shape);                                              \
        okk_record("groups=%lld num_series=%d", okk_groups(&dst), num_series);                                \
    }

FUNCTION(sqrt, SQRT)
FUNCTION(rsqrt, RSQRT)
WORKING(exp, EXP)
WORKING(sigmoid, SIGMOID)
WORKING(tanh, TANH)
