/* The layouts of tensors in local memory: the interface's helpers, and checked tensors. */
#include "okk_model.h"

#define ALIGNMENT 128u
#define MOST 131072 /* of an extent: no call takes more */

int okk_npu_num(void)
{
    return okk_machine.npus;
}

unsigned int okk_local_mem_size_per_npu(void)
{
    return okk_machine.local_bytes;
}

int okk_start_npu_index(local_addr_t addr)
{
    return (int)(addr / okk_machine.local_bytes);
}

int okk_channle_num_per_npu(int start_idx, int num_channels)
{
    return okk_ceil_div(start_idx + num_channels, okk_machine.npus);
}

/* A stride in the interface's type; refuses one too large for any memory. */
static int stride_of(long long elements)
{
    if (elements > INT32_MAX)
        okk_refuse("a stride of %lld elements", elements);
    return (int)elements;
}

static dim4 layout_stride(int start_idx, const dim4 *shape, int multiple)
{
    long long area = (long long)shape->h * shape->w, channel = (area + multiple - 1) / multiple * multiple;
    return (dim4){stride_of(channel * okk_channle_num_per_npu(start_idx, shape->c)), stride_of(channel), shape->w, 1};
}

void okk_128_byte_aligned_stride_for_32bit(dim4 *stride, int start_idx, const dim4 *shape)
{
    *stride = layout_stride(start_idx, shape, 32);
}

void okk_128_byte_aligned_stride_for_16bit(dim4 *stride, int start_idx, const dim4 *shape)
{
    *stride = layout_stride(start_idx, shape, 64);
}

void okk_128_byte_aligned_stride_for_8bit(dim4 *stride, int start_idx, const dim4 *shape)
{
    *stride = layout_stride(start_idx, shape, 128);
}

void okk_compact_stride(dim4 *stride, int start_idx, const dim4 *shape)
{
    *stride = layout_stride(start_idx, shape, 1);
}

void okk_continuous_stride(dim4 *stride, const dim4 *shape)
{
    long long area = (long long)shape->h * shape->w;
    *stride = (dim4){stride_of(shape->c * area), stride_of(area), shape->w, 1};
}

void okk_divisible(const char *name, uint64_t address, unsigned by)
{
    if (address % by)
        okk_refuse("the address of %s, 0x%llx, is not divisible by %u", name, (unsigned long long)address, by);
}

void okk_together(const struct okk_tensor *first, const struct okk_tensor *other)
{
    if (first->npu != other->npu)
        okk_refuse("%s starts at NPU %d, %s at NPU %d", first->name, first->npu, other->name, other->npu);
}

bool okk_dense(dim4 shape, dim4 stride)
{
    return (shape.w == 1 || stride.w == 1) && (shape.h == 1 || stride.h == shape.w);
}

/* The elements from a tensor's offset to the end of its last one, in the NPU where it extends furthest. */
static long long extent(const struct okk_tensor *tensor)
{
    dim4 last = {tensor->shape.n - 1, okk_rows(tensor) - 1, tensor->shape.h - 1, tensor->shape.w - 1};
    return (long long)last.n * tensor->stride.n + (long long)last.c * tensor->stride.c +
           (long long)last.h * tensor->stride.h + (long long)last.w * tensor->stride.w + 1;
}

void okk_expect_shape(const char *name, dim4 shape, const dim4 *stride)
{
    int least = shape.n < shape.c ? shape.n : shape.c, most = shape.n > shape.c ? shape.n : shape.c;
    least = shape.h < least ? shape.h : least;
    least = shape.w < least ? shape.w : least;
    most = shape.h > most ? shape.h : most;
    most = shape.w > most ? shape.w : most;
    if (least < 1 || most > MOST)
        okk_refuse("%s has shape (%d, %d, %d, %d)", name, shape.n, shape.c, shape.h, shape.w);
    if (stride != NULL && (stride->n < 0 || stride->c < 0 || stride->h < 0 || stride->w < 0))
        okk_refuse("%s has a stride below 0", name);
}

struct okk_tensor okk_local(const char *name, local_addr_t address, dim4 shape, const dim4 *stride,
                            enum okk_layout layout, int bytes)
{
    struct okk_tensor made = {name, shape, {0, 0, 0, 0}, bytes, okk_start_npu_index(address),
                              address % okk_machine.local_bytes};
    if (made.npu >= okk_machine.npus)
        okk_refuse("%s is at 0x%x, behind the last NPU", name, address);
    okk_expect_shape(name, shape, stride);
    bool aligned = stride == NULL && layout == OKK_ALIGNED;
    okk_divisible(name, address, aligned ? ALIGNMENT : (unsigned)bytes);
    made.stride = stride ? *stride : layout_stride(made.npu, &shape, aligned ? (int)ALIGNMENT / bytes : 1);
    long long end = made.offset + extent(&made) * bytes;
    if (end > okk_machine.local_bytes)
        okk_refuse("%s ends at byte %lld of %u of an NPU's local memory", name, end, okk_machine.local_bytes);
    return made;
}

void okk_expect_extents(const struct okk_tensor *tensor)
{
    okk_expect("n", tensor->shape.n, 1, 65535);
    okk_expect("c", tensor->shape.c, 1, 4095);
    okk_expect("h", tensor->shape.h, 1, 2047);
    okk_expect("w", tensor->shape.w, 1, 2047);
}

unsigned char *okk_feature(const struct okk_tensor *tensor, int n, int c)
{
    int at = tensor->npu + c, row = at / okk_machine.npus, npu = at % okk_machine.npus;
    size_t element = (size_t)n * (size_t)tensor->stride.n + (size_t)row * (size_t)tensor->stride.c;
    return okk_machine.local + (size_t)npu * okk_machine.local_bytes + tensor->offset +
           element * (size_t)tensor->bytes;
}

long long okk_groups(const struct okk_tensor *tensor)
{
    int per_feature = okk_ceil_div(tensor->shape.h * tensor->shape.w, okk_machine.lanes);
    return (long long)tensor->shape.n * okk_rows(tensor) * per_feature;
}

int okk_matrix(const char *name, local_addr_t address, int rows, int cols, int cols_per_channel,
               struct okk_tensor parts[2])
{
    okk_expect("the number of columns per channel", cols_per_channel, 1, cols);
    int whole = cols / cols_per_channel, rest = cols % cols_per_channel;
    dim4 all = {rows, whole + (rest > 0), 1, cols_per_channel}, stride;
    parts[0] = okk_local(name, address, all, NULL, OKK_ALIGNED, 4);
    if (rows > 1 && okk_rows(&parts[0]) > okk_ceil_div(all.c, okk_machine.npus))
        okk_refuse("%s has %d channels from NPU %d on, which wrap once more than from NPU 0: the vendor's library "
                   "then moves a matrix to other places than the layout says",
                   name, all.c, parts[0].npu);
    if (rest == 0)
        return 1;
    stride = parts[0].stride;
    parts[0].shape.c = whole;
    int at = parts[0].npu + whole, row = at / okk_machine.npus, npu = at % okk_machine.npus;
    uint32_t offset = parts[0].offset + (uint32_t)(row * stride.c) * 4;
    parts[1] = okk_local(name, (uint32_t)npu * okk_machine.local_bytes + offset, (dim4){rows, 1, 1, rest}, &stride,
                         OKK_ALIGNED, 4);
    return 2;
}
