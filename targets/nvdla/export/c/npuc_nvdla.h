/* An NVDLA register program, and the loop that plays it. C99, no heap, no state. Written by npuc. */
#ifndef NPUC_NVDLA_H
#define NPUC_NVDLA_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum npuc_kind {
    NPUC_WRITE,        /* a register is written */
    NPUC_POLL,         /* wait until the register's bits under the mask have the value */
    NPUC_WAIT,         /* wait until the bits of the interrupt status are set, then clear them */
    NPUC_WRITE_ADDRESS /* a register is written with the low word of a memory address */
};

struct npuc_command {
    uint32_t kind;
    uint32_t address; /* of the register, in bytes from the beginning of NVDLA's registers */
    uint32_t mask;
    uint32_t value;
};

/* How the loop reaches NVDLA. Each returns 0, or an error of your own that npuc_play returns. */
struct npuc_hooks {
    void *context;
    int (*write)(void *context, uint32_t address, uint32_t value);
    int (*poll)(void *context, uint32_t address, uint32_t mask, uint32_t value);
    int (*wait)(void *context, uint32_t address, uint32_t mask); /* sleep or spin until the interrupt, and clear it */
    uint32_t memory_offset; /* added to every memory address: the program's memory begins NPUC_DRAM_BASE + this */
};

/* Plays commands in order. Returns 0, or the first error of a hook. */
int npuc_play(const struct npuc_command *commands, size_t count, const struct npuc_hooks *hooks);

/* Hooks for registers in the processor's address space; they spin. */
struct npuc_hooks npuc_registers_at(volatile uint32_t *registers);

/* A tensor in the program's memory: channel c of pixel (x, y) is at
   address + channel_offsets[c] + y * line_stride + x * pixel_strides[c > 0]: an image
   in two planes has other pixels in the second one. */
struct npuc_tensor {
    const char *name;
    uint32_t address; /* from the beginning of the program's memory */
    uint32_t channels, height, width;
    uint32_t line_stride, pixel_strides[2], element_bytes;
    const uint32_t *channel_offsets;
    float scale; /* real number = scale * (integer - zero_point); 0 where the host has real numbers */
    int32_t zero_point;
};

/* A blob of the program's memory. */
struct npuc_blob {
    uint32_t address; /* from the beginning of the program's memory */
    uint32_t bytes;
    const uint8_t *data;
};

/* Commands between two steps of the host: put the loads, play, get the stores. */
struct npuc_segment {
    const struct npuc_command *commands;
    size_t command_count;
    const struct npuc_tensor *loads;
    size_t load_count;
    const struct npuc_tensor *stores;
    size_t store_count;
};

/* Elements (channel, row, column), element_bytes each, into memory and out of it. */
void npuc_put(const struct npuc_tensor *tensor, uint8_t *memory, const void *values);
void npuc_get(const struct npuc_tensor *tensor, const uint8_t *memory, void *values);

/* The same for 16-bit floating point, of which the host has float: rounded to the nearest, within +/-65504. */
void npuc_put_floats(const struct npuc_tensor *tensor, uint8_t *memory, const float *values);
void npuc_get_floats(const struct npuc_tensor *tensor, const uint8_t *memory, float *values);

/* The memory before the first segment: zeros and blobs. */
void npuc_fill(const struct npuc_blob *blobs, size_t count, uint8_t *memory, size_t bytes);

#ifdef __cplusplus
}
#endif

#endif
