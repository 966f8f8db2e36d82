/* GDMA: copies and constants between system memory and local memory. */
#include "okk_model.h"

#include <string.h>

#define MOST 65535 /* of every extent */

/* One side of a move: a tensor in local memory, or in system memory starting at `system`. */
struct side {
    struct okk_tensor tensor;
    unsigned char *system;
};

static struct side local_side(const char *name, local_addr_t address, dim4 shape, const dim4 *stride, int bytes)
{
    return (struct side){okk_local(name, address, shape, stride, OKK_ALIGNED, bytes), NULL};
}

/* The place of a tensor in system memory; refuses one that is outside. */
static struct side system_side(const char *name, system_addr_t address, dim4 shape, const dim4 *stride, int bytes)
{
    struct side made = {{name, shape, {0, 0, 0, 0}, bytes, 0, 0}, NULL};
    okk_expect_shape(name, shape, stride);
    if (stride)
        made.tensor.stride = *stride;
    else
        okk_continuous_stride(&made.tensor.stride, &shape);
    okk_divisible(name, address, (unsigned)bytes);
    dim4 step = made.tensor.stride;
    uint64_t last = (uint64_t)(shape.n - 1) * (uint64_t)step.n + (uint64_t)(shape.c - 1) * (uint64_t)step.c +
                    (uint64_t)(shape.h - 1) * (uint64_t)step.h + (uint64_t)(shape.w - 1) * (uint64_t)step.w;
    bool l2 = address < okk_machine.system_start;
    uint64_t first = l2 ? OKK_L2_START : okk_machine.system_start, all = l2 ? OKK_L2_BYTES : okk_machine.system_bytes;
    uint64_t start = address - first, size = (last + 1) * (uint64_t)bytes;
    if (address < first || start > all || size > all - start)
        okk_refuse("%s, 0x%llx and %llu bytes on, is outside system memory", name, address,
                   (unsigned long long)size);
    made.system = (l2 ? okk_machine.l2 : okk_machine.system) + start;
    return made;
}

const int32_t *okk_l2_words(uint64_t address, int count)
{
    dim4 shape = {1, 1, 1, count};
    const unsigned char *at = system_side("a table", address, shape, NULL, 4).system;
    if (address >= okk_machine.system_start)
        okk_refuse("a table is in system memory");
    for (size_t byte = 3; byte < 4 * (size_t)count; byte += 4)
        if (at[byte] == OKK_L2_EMPTY)
            okk_refuse("a table was never written to L2 memory");
    return (const int32_t *)(const void *)at;
}

static unsigned char *feature(const struct side *side, int n, int c)
{
    if (side->system == NULL)
        return okk_feature(&side->tensor, n, c);
    size_t element = (size_t)n * (size_t)side->tensor.stride.n + (size_t)c * (size_t)side->tensor.stride.c;
    return side->system + element * (size_t)side->tensor.bytes;
}

static void expect_move(const struct okk_tensor *tensor)
{
    okk_expect("n", tensor->shape.n, 1, MOST);
    okk_expect("c", tensor->shape.c, 1, MOST);
    okk_expect("h", tensor->shape.h, 1, MOST);
    okk_expect("w", tensor->shape.w, 1, MOST);
    if (tensor->shape.w > 1)
        okk_expect("the W stride", tensor->stride.w, 1, 1);
}

/* Contiguous runs: rows are merged if contiguous on both sides, channels only between places in system memory. */
static long long runs(const struct side *dst, const struct side *src)
{
    dim4 shape = dst->tensor.shape, to = dst->tensor.stride, from = src->tensor.stride;
    if (!okk_dense(shape, to) || !okk_dense(shape, from))
        return (long long)shape.n * shape.c * shape.h;
    bool scattered = dst->system == NULL || src->system == NULL, gaps = to.c != shape.h * shape.w;
    gaps = gaps || from.c != shape.h * shape.w;
    return (long long)shape.n * (scattered || (gaps && shape.c > 1) ? shape.c : 1);
}

static unsigned char *row(const struct side *side, unsigned char *feature, int h)
{
    return feature + (size_t)h * (size_t)side->tensor.stride.h * (size_t)side->tensor.bytes;
}

static void copy_feature(const struct side *dst, const struct side *src, int n, int c)
{
    dim4 shape = dst->tensor.shape;
    unsigned char *to = feature(dst, n, c), *from = feature(src, n, c);
    for (int h = 0; h < shape.h; h++)
        memmove(row(dst, to, h), row(src, from, h), (size_t)shape.w * (size_t)dst->tensor.bytes);
}

/* Refuses a destination with more elements than system memory has room for: some would overlap. */
static void expect_apart(const struct side *dst)
{
    dim4 shape = dst->tensor.shape;
    uint64_t elements = (uint64_t)shape.n * (uint64_t)shape.c, area = (uint64_t)shape.h * (uint64_t)shape.w;
    uint64_t most = okk_machine.system_bytes / (uint64_t)dst->tensor.bytes;
    if (dst->system != NULL && (area > most || elements > most / area))
        okk_refuse("elements of dst lie on each other");
}

static void copy(const struct side *dst, const struct side *src)
{
    dim4 shape = dst->tensor.shape;
    expect_apart(dst);
    if (src->system == NULL)
        okk_touch(&src->tensor, OKK_READ);
    if (src->system == NULL && dst->system == NULL)
        okk_disjoint(&dst->tensor, &src->tensor);
    if (dst->system == NULL)
        okk_touch(&dst->tensor, OKK_WRITE);
    for (int n = 0; n < shape.n; n++)
        for (int c = 0; c < shape.c; c++)
            copy_feature(dst, src, n, c);
}

static void record_move(const struct side *dst, const struct side *src)
{
    dim4 shape = dst->tensor.shape;
    long long elements = (long long)shape.n * shape.c * shape.h * shape.w;
    okk_record("size=%lld runs=%lld", elements * dst->tensor.bytes, runs(dst, src));
}

static void move(struct side dst, struct side src)
{
    expect_move(&dst.tensor);
    expect_move(&src.tensor);
    copy(&dst, &src);
    record_move(&dst, &src);
}

/* Sets every element of a tensor to the constant. */
static void set(struct side dst, const void *constant)
{
    dim4 shape = dst.tensor.shape;
    size_t bytes = (size_t)dst.tensor.bytes;
    expect_move(&dst.tensor);
    expect_apart(&dst);
    if (dst.system == NULL)
        okk_touch(&dst.tensor, OKK_WRITE);
    for (int n = 0; n < shape.n; n++)
        for (int c = 0; c < shape.c; c++)
            for (int h = 0; h < shape.h; h++)
                for (int w = 0; w < shape.w; w++)
                    memcpy(row(&dst, feature(&dst, n, c), h) + (size_t)w * bytes, constant, bytes);
    record_move(&dst, &dst);
}

#define COPY(bits, way, dst_t, src_t, dst_side, src_side)                                                     \
    void okk_gdma_##bits##bit_cpy_##way(dst_t dst_addr, src_t src_addr, const dim4 *shape,                    \
                                        const dim4 *dst_stride, const dim4 *src_stride)                       \
    {                                                                                                         \
        okk_call(__func__, OKK_GDMA_ENGINE);                                                                  \
        move(dst_side("dst", dst_addr, *shape, dst_stride, bits / 8),                                         \
             src_side("src", src_addr, *shape, src_stride, bits / 8));                                        \
    }
/* For narrower elements, the vendor's library treats NULL as the strides of 32-bit elements. */
static struct side set_side(const char *name, local_addr_t address, dim4 shape, const dim4 *stride, int bytes)
{
    if (bytes < 4 && stride == NULL && (shape.n > 1 || shape.c > 1))
        okk_refuse("dst_stride is NULL, which the vendor's library reads as that of 32-bit elements: give it");
    return local_side(name, address, shape, stride, bytes);
}

#define SET(bits, place, dst_t, dst_side)                                                                     \
    void okk_gdma_##bits##bit_set_C_##place(dst_t dst_addr, x##bits C, const dim4 *shape,                     \
                                            const dim4 *dst_stride)                                           \
    {                                                                                                         \
        okk_call(__func__, OKK_GDMA_ENGINE);                                                                  \
        set(dst_side("dst", dst_addr, *shape, dst_stride, bits / 8), &C);                                     \
    }
#define GDMA(bits)                                                                                            \
    COPY(bits, S2L, local_addr_t, system_addr_t, local_side, system_side)                                     \
    COPY(bits, L2S, system_addr_t, local_addr_t, system_side, local_side)                                     \
    COPY(bits, L2L, local_addr_t, local_addr_t, local_side, local_side)                                       \
    COPY(bits, S2S, system_addr_t, system_addr_t, system_side, system_side)                                   \
    SET(bits, local, local_addr_t, set_side)                                                                  \
    SET(bits, system, system_addr_t, system_side)

GDMA(32)
GDMA(16)
GDMA(8)

/* The columns of a matrix in system memory that correspond to a part of it in local memory, in the part's shape. */
static struct side matrix_part(system_addr_t address, int first_column, const struct okk_tensor *part,
                               int row_stride)
{
    dim4 stride = {row_stride, part->shape.w, part->shape.w, 1};
    return system_side("the matrix", address + (system_addr_t)first_column * 4, part->shape, &stride, 4);
}

static void expect_matrix(int rows, int cols, int row_stride)
{
    okk_expect("the number of rows", rows, 1, MOST);
    okk_expect("the number of columns", cols, 1, MOST);
    if (rows > 1)
        okk_expect("the row stride", row_stride, cols, INT32_MAX);
}

void okk_gdma_32bit_matrix_S2L(local_addr_t dst_addr, system_addr_t src_addr, int rows, int cols,
                               int cols_per_channel, int row_stride)
{
    struct okk_tensor parts[2];
    okk_call(__func__, OKK_GDMA_ENGINE);
    expect_matrix(rows, cols, row_stride);
    int count = okk_matrix("dst", dst_addr, rows, cols, cols_per_channel, parts);
    for (int at = 0; at < count; at++) {
        struct side dst = {parts[at], NULL};
        struct side src = matrix_part(src_addr, at ? cols - parts[1].shape.w : 0, &parts[at], row_stride);
        copy(&dst, &src);
    }
    okk_record("rows=%d cols=%d cols_per_channel=%d", rows, cols, cols_per_channel);
}

void okk_gdma_32bit_matrix_L2S(system_addr_t dst_addr, local_addr_t src_addr, int rows, int cols,
                               int cols_per_channel, int row_stride)
{
    struct okk_tensor parts[2];
    okk_call(__func__, OKK_GDMA_ENGINE);
    expect_matrix(rows, cols, row_stride);
    int count = okk_matrix("src", src_addr, rows, cols, cols_per_channel, parts);
    for (int at = 0; at < count; at++) {
        struct side src = {parts[at], NULL};
        struct side dst = matrix_part(dst_addr, at ? cols - parts[1].shape.w : 0, &parts[at], row_stride);
        copy(&dst, &src);
    }
    okk_record("rows=%d cols=%d cols_per_channel=%d", rows, cols, cols_per_channel);
}
