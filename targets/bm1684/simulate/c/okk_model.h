/* Shared by the parts of the OKKernel model: the machine, tensors with their checks, the call log. */
#ifndef OKK_MODEL_H
#define OKK_MODEL_H

#include <stddef.h>
#include <stdint.h>

#include "okk.h"

/* The machine's parameters and its memories. */
struct okk_machine {
    int npus;
    uint32_t local_bytes;
    int lanes;
    uint64_t system_start, system_bytes;
    unsigned char *local, *system, *l2;
};
extern struct okk_machine okk_machine;

enum okk_engine { OKK_GDMA_ENGINE, OKK_BDC_ENGINE };
enum okk_layout { OKK_ALIGNED, OKK_COMPACT };
enum okk_access { OKK_READ, OKK_WRITE };

/*
 * A tensor in local memory: feature (n, c) starts in NPU (npu + c) mod X at `offset` plus, in elements,
 * n * stride.n + floor((npu + c) / X) * stride.c.
 */
struct okk_tensor {
    const char *name;
    dim4 shape, stride;
    int bytes; /* of an element */
    int npu;
    uint32_t offset;
};

/* Begins a call: its name and the engine that runs it. */
void okk_call(const char *name, enum okk_engine engine);
enum okk_engine okk_engine(void);

/* Ends the program with the name of the call and the reason. */
_Noreturn void okk_refuse(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Refuses a value outside least..most. */
void okk_expect(const char *what, long long value, long long least, long long most);

/* Writes a line of the call log: the current call and the values that its cycles depend on. */
void okk_record(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Refuses a shape without elements, and strides below 0 (stride may be NULL). */
void okk_expect_shape(const char *name, dim4 shape, const dim4 *stride);

/* A tensor with these strides, or those of a layout if NULL; refuses one that is misplaced or too large. */
struct okk_tensor okk_local(const char *name, local_addr_t address, dim4 shape, const dim4 *stride,
                            enum okk_layout layout, int bytes);

/* The parts of a matrix in the matrix layout: its whole channels and, if there is one, the partial last one. */
int okk_matrix(const char *name, local_addr_t address, int rows, int cols, int cols_per_channel,
               struct okk_tensor parts[2]);

/* Refuses an address that is not divisible, and a tensor that starts at another NPU than the first. */
void okk_divisible(const char *name, uint64_t address, unsigned by);
void okk_together(const struct okk_tensor *first, const struct okk_tensor *other);

/* Records that a tensor is read or written; refuses reads of unwritten words, and hazards between the engines. */
void okk_touch(const struct okk_tensor *tensor, enum okk_access access);

/* Refuses extents that a BDC call cannot have. */
void okk_expect_extents(const struct okk_tensor *tensor);

/* Refuses an input that shares words with the output of the same call. */
void okk_disjoint(const struct okk_tensor *output, const struct okk_tensor *input);

void okk_hazards_begin(void);
void okk_hazards_region_ends(void);

/* L2 memory: where it starts and its bytes; so many words of it, which must have been written. */
#define OKK_L2_START 0x100A2000ULL
#define OKK_L2_BYTES 2482176ULL
#define OKK_L2_EMPTY 0x7f /* bytes that were not written */
const int32_t *okk_l2_words(uint64_t address, int count);

/* Where a feature (n, c) of a tensor starts. */
unsigned char *okk_feature(const struct okk_tensor *tensor, int n, int c);

static inline float *okk_floats(const struct okk_tensor *tensor, int n, int c)
{
    return (float *)(void *)okk_feature(tensor, n, c);
}

/* Whether the rows of a feature are contiguous. */
bool okk_dense(dim4 shape, dim4 stride);

/* The number of groups (`lanes` elements on all NPUs) of a tensor. */
long long okk_groups(const struct okk_tensor *tensor);

/* Memory that the model needs for a call, and a kernel by its name (NULL if there is none). */
void *okk_memory(size_t bytes);
okk_kernel_func_t okk_kernel(const char *name);

/* Initialises the state before a kernel; the call log is written to a file. */
void okk_begin(const char *calls_file);
void okk_end(void);

static inline int okk_ceil_div(int value, int by)
{
    return (value + by - 1) / by;
}

static inline int okk_rows(const struct okk_tensor *tensor)
{
    return okk_ceil_div(tensor->npu + tensor->shape.c, okk_machine.npus);
}

#endif
