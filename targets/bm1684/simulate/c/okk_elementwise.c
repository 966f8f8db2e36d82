/* BDC: elementwise calls. */
#include "okk_model.h"


#include <stddef.h>
#define OPERANDS 4

/* A tensor, or a constant. */
struct operand {
    bool constant;
    x32 value;
    struct okk_tensor tensor;
};

/* An element of the result, from those of the operands and its previous value. */
typedef x32 (*function)(const x32 *from, x32 old);

struct work {
    struct okk_tensor dst;
    struct operand from[OPERANDS];
    int count;
    bool adds; /* to the content of dst */
    bool strided;
};

static struct operand tensor(const char *name, local_addr_t address, const dim4 *shape, const dim4 *stride)
{
    return (struct operand){false, {0}, okk_local(name, address, *shape, stride, OKK_ALIGNED, 4)};
}

/* A tensor (1, C, 1, 1) in the compact layout, repeated over the batch and the positions. */
static struct operand per_channel(const char *name, local_addr_t address, const dim4 *shape)
{
    dim4 repeated = {0, 1, 0, 0};
    return tensor(name, address, shape, &repeated);
}

static struct operand constant(x32 value)
{
    return (struct operand){.constant = true, .value = value};
}

static struct operand number(float value)
{
    return constant((x32){.fp32 = value});
}

static bool same_place(const struct okk_tensor *a, const struct okk_tensor *b)
{
    return a->npu == b->npu && a->offset == b->offset && (a->shape.w == 1 || a->stride.w == b->stride.w) &&
           (a->shape.h == 1 || a->stride.h == b->stride.h) && (a->shape.n == 1 || a->stride.n == b->stride.n) &&
           (okk_rows(a) == 1 || a->stride.c == b->stride.c);
}

static void check(const struct work *work)
{
    okk_expect_extents(&work->dst);
    for (int at = 0; at < work->count; at++) {
        const struct okk_tensor *from = &work->from[at].tensor;
        if (work->from[at].constant)
            continue;
        okk_together(&work->dst, from);
        okk_touch(from, OKK_READ);
        if (!same_place(&work->dst, from))
            okk_disjoint(&work->dst, from);
    }
    if (work->adds)
        okk_touch(&work->dst, OKK_READ);
    okk_touch(&work->dst, OKK_WRITE);
}

static x32 *element(const struct okk_tensor *tensor, int n, int c, int h)
{
    return (x32 *)(void *)okk_feature(tensor, n, c) + (ptrdiff_t)h * tensor->stride.h;
}

static void compute_row(const struct work *work, function of, int n, int c, int h)
{
    x32 *dst = element(&work->dst, n, c, h), values[OPERANDS];
    const x32 *from[OPERANDS];
    int step[OPERANDS];
    for (int at = 0; at < work->count; at++) {
        const struct operand *operand = &work->from[at];
        from[at] = operand->constant ? &operand->value : element(&operand->tensor, n, c, h);
        step[at] = operand->constant ? 0 : operand->tensor.stride.w;
    }
    for (int w = 0; w < work->dst.shape.w; w++) {
        for (int at = 0; at < work->count; at++)
            values[at] = from[at][(ptrdiff_t)w * step[at]];
        x32 *place = &dst[(ptrdiff_t)w * work->dst.stride.w];
        *place = of(values, *place);
    }
}

static void compute(const struct work *work, function of)
{
    dim4 shape = work->dst.shape;
    check(work);
    for (int n = 0; n < shape.n; n++)
        for (int c = 0; c < shape.c; c++)
            for (int h = 0; h < shape.h; h++)
                compute_row(work, of, n, c, h);
    okk_record("groups=%lld strided=%d", okk_groups(&work->dst), work->strided);
}

#define DST okk_local("dst", dst_addr, *shape, dst_stride, OKK_ALIGNED, 4)
#define ALIGNED_DST okk_local("dst", dst_addr, *shape, NULL, OKK_ALIGNED, 4)

/* One operand. */
#define UNARY(name, expression)                                                                               \
    static x32 of_##name(const x32 *from, x32 old)                                                            \
    {                                                                                                         \
        x32 a = from[0];                                                                                      \
        (void)old;                                                                                            \
        return expression;                                                                                    \
    }                                                                                                         \
    void okk_bdc_##name(local_addr_t dst_addr, local_addr_t src_addr, const dim4 *shape,                      \
                        const dim4 *dst_stride, const dim4 *src_stride)                                       \
    {                                                                                                         \
        okk_call(__func__, OKK_BDC_ENGINE);                                                                   \
        struct work work = {DST, {tensor("src", src_addr, shape, src_stride)}, 1, false,                      \
                            dst_stride || src_stride};                                                        \
        compute(&work, of_##name);                                                                            \
    }
#define FLOAT(value) ((x32){.fp32 = (value)})

UNARY(32bit_cpy, a)
UNARY(relu, FLOAT(a.fp32 > 0 ? a.fp32 : 0))
UNARY(neg, FLOAT(-a.fp32))
UNARY(reciprocal, FLOAT(1 / a.fp32))

void okk_bdc_32bit_set_C(local_addr_t dst_addr, x32 C, const dim4 *shape, const dim4 *dst_stride)
{
    okk_call(__func__, OKK_BDC_ENGINE);
    struct work work = {DST, {constant(C)}, 1, false, dst_stride != NULL};
    compute(&work, of_32bit_cpy);
}

/* Two operands, or one and a constant: the same function. */
static x32 shifted(x32 a, int by, bool arithmetic)
{
    if (by <= -32)
        return (x32){.s32 = arithmetic && a.s32 < 0 ? -1 : 0};
    if (by < 0)
        return arithmetic ? (x32){.s32 = a.s32 >> -by} : (x32){.u32 = a.u32 >> -by};
    return (x32){.u32 = by < 32 ? a.u32 << by : 0};
}

#define FUNCTION(name, expression)                                                                            \
    static x32 of_##name(const x32 *from, x32 old)                                                            \
    {                                                                                                         \
        x32 a = from[0], b = from[1];                                                                         \
        (void)old;                                                                                            \
        return expression;                                                                                    \
    }
#define BINARY(name, adds)                                                                                    \
    void okk_bdc_##name(local_addr_t dst_addr, local_addr_t src0_addr, local_addr_t src1_addr,                \
                        const dim4 *shape, const dim4 *dst_stride, const dim4 *src0_stride,                   \
                        const dim4 *src1_stride)                                                              \
    {                                                                                                         \
        okk_call(__func__, OKK_BDC_ENGINE);                                                                   \
        struct work work = {DST,                                                                              \
                            {tensor("src0", src0_addr, shape, src0_stride),                                   \
                             tensor("src1", src1_addr, shape, src1_stride)},                                  \
                            2, adds, dst_stride || src0_stride || src1_stride};                               \
        compute(&work, of_##name);                                                                            \
    }
#define CONSTANT(name, of, type, left, right, adds)                                                           \
    void okk_bdc_##name(local_addr_t dst_addr, local_addr_t src_addr, type C, const dim4 *shape,              \
                        const dim4 *dst_stride, const dim4 *src_stride)                                       \
    {                                                                                                         \
        okk_call(__func__, OKK_BDC_ENGINE);                                                                   \
        struct operand src = tensor("src", src_addr, shape, src_stride);                                      \
        struct work work = {DST, {left, right}, 2, adds, dst_stride || src_stride};                           \
        compute(&work, of);                                                                                   \
    }

FUNCTION(add, FLOAT(a.fp32 + b.fp32))
FUNCTION(sub, FLOAT(a.fp32 - b.fp32))
FUNCTION(mul, FLOAT(a.fp32 *b.fp32))
FUNCTION(div, FLOAT(a.fp32 / b.fp32))
FUNCTION(mac, FLOAT(old.fp32 + a.fp32 * b.fp32))
FUNCTION(max, a.fp32 > b.fp32 ? a : b)
FUNCTION(min, a.fp32 < b.fp32 ? a : b)
FUNCTION(32bit_arithmetic_shift, shifted(a, b.s32, true))
FUNCTION(32bit_logical_shift, shifted(a, b.s32, false))
BINARY(add, false)
BINARY(sub, false)
BINARY(mul, false)
BINARY(div, false)
BINARY(mac, true)
BINARY(max, false)
BINARY(min, false)
BINARY(32bit_arithmetic_shift, false)
BINARY(32bit_logical_shift, false)
CONSTANT(add_C, of_add, float, src, number(C), false)
CONSTANT(sub_C, of_sub, float, src, number(C), false)
CONSTANT(C_sub, of_sub, float, number(C), src, false)
CONSTANT(mul_C, of_mul, float, src, number(C), false)
CONSTANT(div_C, of_div, float, src, number(C), false)
CONSTANT(C_div, of_div, float, number(C), src, false)
CONSTANT(mac_C, of_mac, float, src, number(C), true)
CONSTANT(max_C, of_max, float, src, number(C), false)
CONSTANT(min_C, of_min, float, src, number(C), false)
CONSTANT(32bit_arithmetic_shift_C, of_32bit_arithmetic_shift, int, src, constant((x32){.s32 = C}), false)
CONSTANT(32bit_logical_shift_C, of_32bit_logical_shift, int, src, constant((x32){.s32 = C}), false)

/* Selections: from[2] where the comparison of from[0] and from[1] is true, else from[3]. */
static x32 of_greater(const x32 *from, x32 old)
{
    (void)old;
    return from[from[0].fp32 > from[1].fp32 ? 2 : 3];
}

static x32 of_equal(const x32 *from, x32 old)
{
    (void)old;
    return from[from[0].fp32 == from[1].fp32 ? 2 : 3];
}

#define SELECT_VALUE(name)                                                                                    \
    void okk_bdc_##name##_select_value(local_addr_t dst_addr, local_addr_t src0_addr, local_addr_t src1_addr, \
                                       x32 select_val, const dim4 *shape, const dim4 *dst_stride,             \
                                       const dim4 *src0_stride, const dim4 *src1_stride)                      \
    {                                                                                                         \
        okk_call(__func__, OKK_BDC_ENGINE);                                                                   \
        struct work work = {DST,                                                                              \
                            {tensor("src0", src0_addr, shape, src0_stride),                                   \
                             tensor("src1", src1_addr, shape, src1_stride), constant(select_val), number(0)}, \
                            4, false, dst_stride || src0_stride || src1_stride};                              \
        compute(&work, of_##name);                                                                            \
    }
#define SELECT_VALUE_C(name, of, left, right)                                                                 \
    void okk_bdc_##name##_select_value(local_addr_t dst_addr, local_addr_t src_addr, float C, x32 select_val, \
                                       const dim4 *shape, const dim4 *dst_stride, const dim4 *src_stride)     \
    {                                                                                                         \
        okk_call(__func__, OKK_BDC_ENGINE);                                                                   \
        struct operand src = tensor("src", src_addr, shape, src_stride);                                      \
        struct work work = {DST, {left, right, constant(select_val), number(0)}, 4, false,                    \
                            dst_stride || src_stride};                                                        \
        compute(&work, of);                                                                                   \
    }
SELECT_VALUE(greater)
SELECT_VALUE(equal)
SELECT_VALUE_C(greater_C, of_greater, src, number(C))
SELECT_VALUE_C(C_greater, of_greater, number(C), src)
SELECT_VALUE_C(equal_C, of_equal, src, number(C))

static struct operand number_or_tensor(const char *name, const fp32_or_addr_t *given, const dim4 *shape)
{
    return given->is_addr ? tensor(name, given->context.addr, shape, NULL) : number(given->context.val);
}

static struct operand bits_or_tensor(const char *name, const x32_or_addr_t *given, const dim4 *shape)
{
    return given->is_addr ? tensor(name, given->context.addr, shape, NULL) : constant(given->context.val);
}

/* The vendor's library compares a tensor and a constant for equality incorrectly. */
static void expect_comparable(const fp32_or_addr_t *src0, const fp32_or_addr_t *src1, function of)
{
    if (of == of_equal && src0->is_addr != src1->is_addr)
        okk_refuse("src0 and src1 must both be tensors: use okk_bdc_equal_C_select_value");
}

#define SELECT(name)                                                                                          \
    void okk_bdc_##name##_select(local_addr_t dst_addr, const fp32_or_addr_t *src0,                           \
                                 const fp32_or_addr_t *src1, const x32_or_addr_t *select0,                    \
                                 const x32_or_addr_t *select1, const dim4 *shape)                             \
    {                                                                                                         \
        okk_call(__func__, OKK_BDC_ENGINE);                                                                   \
        expect_comparable(src0, src1, of_##name);                                                             \
        struct work work = {ALIGNED_DST,                                                                      \
                            {number_or_tensor("src0", src0, shape), number_or_tensor("src1", src1, shape),    \
                             bits_or_tensor("select0", select0, shape),                                       \
                             bits_or_tensor("select1", select1, shape)},                                      \
                            4, false, false};                                                                 \
        compute(&work, of_##name);                                                                            \
    }
SELECT(greater)
SELECT(equal)

/* A value per channel. */
void okk_bdc_bias(local_addr_t dst_addr, local_addr_t src_addr, local_addr_t bias_addr, const dim4 *shape,
                  const dim4 *dst_stride, const dim4 *src_stride)
{
    okk_call(__func__, OKK_BDC_ENGINE);
    struct work work = {DST,
                        {tensor("src", src_addr, shape, src_stride), per_channel("bias", bias_addr, shape)},
                        2, false, dst_stride || src_stride};
    compute(&work, of_add);
}

void okk_bdc_scale(local_addr_t dst_addr, local_addr_t src_addr, local_addr_t scale_addr, const dim4 *shape,
                   const dim4 *dst_stride, const dim4 *src_stride)
{
    okk_call(__func__, OKK_BDC_ENGINE);
    struct work work = {DST,
                        {tensor("src", src_addr, shape, src_stride), per_channel("scale", scale_addr, shape)},
                        2, false, dst_stride || src_stride};
    compute(&work, of_mul);
}

static x32 of_scale_bias(const x32 *from, x32 old)
{
    (void)old;
    return FLOAT(from[0].fp32 * from[1].fp32 + from[2].fp32);
}

void okk_bdc_scale_bias(local_addr_t dst_addr, local_addr_t src_addr, local_addr_t scale_addr,
                        local_addr_t bias_addr, const dim4 *shape, const dim4 *dst_stride,
                        const dim4 *src_stride)
{
    okk_call(__func__, OKK_BDC_ENGINE);
    struct work work = {DST,
                        {tensor("src", src_addr, shape, src_stride), per_channel("scale", scale_addr, shape),
                         per_channel("bias", bias_addr, shape)},
                        3, false, dst_stride || src_stride};
    compute(&work, of_scale_bias);
}
