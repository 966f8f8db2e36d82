/*
 * Runs an EasyNPU program: plain C99, no heap, of the C library only math.h, string.h and stdint.h.
 *
 * You supply three functions that access the machine (npuc_write, npuc_read, npuc_execute) and the buffers of one
 * inference; npuc_init, called once, and npuc_infer do the rest. The program itself is the table in npuc_program.c. If
 * the machine has identification registers, npuc_check uses a fourth function to check that the program suits it.
 */
#ifndef NPUC_DRIVER_H
#define NPUC_DRIVER_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A word of any memory: 16 bytes, the byte of lane 0 (of an instruction: bits 7..0) first. */
struct npuc_word {
    uint8_t lane[16];
};

enum npuc_memory { NPUC_ITCM, NPUC_WEIGHT, NPUC_FMAP, NPUC_SKIP };

/*
 * The machine, as you connect it. Addresses and counts are in words; 0 means done, anything else ends the
 * inference, which then returns it. npuc_execute starts `count` instructions at ITCM address 0 and waits for the last.
 */
int npuc_write(enum npuc_memory memory, uint32_t address, const struct npuc_word *words, uint32_t count);
int npuc_read(enum npuc_memory memory, uint32_t address, struct npuc_word *words, uint32_t count);
int npuc_execute(uint32_t count);

/*
 * With NPUC_OVERLAP defined, in place of npuc_execute: npuc_start returns at once, and npuc_wait when the last
 * instruction has ended. Between them the driver loads later segments' weights and maps where the program allows it
 * (a machine with overlap); without it, it does so behind npuc_execute.
 */
int npuc_start(uint32_t count);
int npuc_wait(void);

/*
 * A register of the machine, as you connect it: 0 means done. Register n is word n of the port's region 4, or the
 * 32 bits at byte 4 n of the AXI4-Lite bus. 4 is the version of the instruction set, 5 the words beyond the document's
 * (a bit each), 6 to 10 rows of PEs and entries of the pads (ifmap, psum, weight, bias and scale), 11 to 14 the words of
 * the memories (Fmap, skip, weight, instructions).
 */
typedef int npuc_register(uint32_t number, uint32_t *value);

/* The program's requirement on a register: this value, no less, or all its bits. */
enum npuc_demand { NPUC_EQUAL, NPUC_AT_LEAST, NPUC_ALL_BITS };

struct npuc_requirement {
    uint32_t number;
    enum npuc_demand demand;
    uint32_t value;
};

/* A tensor of the host: a buffer of the caller (its number is `at`), in the arena (at byte `at`), or constant. */
enum npuc_where { NPUC_INPUT, NPUC_OUTPUT, NPUC_ARENA, NPUC_CONSTANT };

struct npuc_buffer {
    enum npuc_where where;
    uint32_t at;
    const void *constant;
};

/* Words that are copied to a memory unchanged. */
struct npuc_image {
    enum npuc_memory memory;
    uint32_t address;
    const struct npuc_word *words;
    uint32_t count;
};

/* The place of a feature map: pixel (y, x), channels 16 g .. 16 g + 15 at base + y row + x pixel + g group. */
struct npuc_place {
    enum npuc_memory memory;
    int32_t base, row, pixel, group;
};

struct npuc_extent {
    uint32_t channels, height, width;
};

/* A transfer of a map, or a window of one, between an int8 tensor [channels][height][width] and a memory. */
struct npuc_move {
    uint16_t tensor;
    struct npuc_place place;
    struct npuc_extent whole; /* of the tensor */
    struct npuc_extent start; /* the window's first channel, row and column */
    struct npuc_extent size;  /* of the window */
};

/* Load, run, store; ahead: what later segments need, loaded while this one runs. */
struct npuc_segment {
    const struct npuc_image *images;
    uint32_t image_count;
    const struct npuc_move *loads;
    uint32_t load_count;
    uint32_t instructions;
    const struct npuc_move *stores;
    uint32_t store_count;
    const struct npuc_image *ahead_images;
    uint32_t ahead_image_count;
    const struct npuc_move *ahead_loads;
    uint32_t ahead_load_count;
};

enum npuc_type { NPUC_INT8, NPUC_INT64, NPUC_FLOAT32, NPUC_UINT8 };

/* An input or output of the network. scale, zero: scale and zero point of its int8 form on the machine; scale is 0 if
 * it has none. */
struct npuc_tensor {
    const char *name;
    enum npuc_type type;
    uint32_t rank;
    const uint32_t *shape;
    uint32_t bytes;
    float scale;
    float zero;
};

/* The buffers of one inference. */
struct npuc_inference {
    const struct npuc_buffer *buffers;
    const void *const *inputs;
    void *const *outputs;
    uint8_t *arena;
};

struct npuc_program {
    const struct npuc_tensor *inputs;
    uint32_t input_count;
    const struct npuc_tensor *outputs;
    uint32_t output_count;
    const struct npuc_buffer *buffers;
    const struct npuc_image *init; /* words that stay in the machine from inference to inference */
    uint32_t init_count;
    int (*steps)(const struct npuc_inference *all);
    const struct npuc_requirement *requirements;
    uint32_t requirement_count;
};

/*
 * Checks that the program suits the machine; call it before the first inference. Returns 0, the value of `read` if
 * that failed, or NPUC_UNFIT - n if register n does not meet the program's requirement.
 */
#define NPUC_UNFIT (-4096)

int npuc_check(const struct npuc_program *program, npuc_register *read);

/*
 * Loads the words that stay in the machine. Call it before the first inference, and again when anything else has used
 * the machine or its power was off. Returns 0, or the error of npuc_write.
 */
int npuc_init(const struct npuc_program *program);

/*
 * One inference. inputs, outputs: a buffer each, in the program's order, `bytes` long, aligned for its type; arena:
 * NPUC_ARENA_BYTES at a multiple of 8 that nothing else uses meanwhile. Returns 0, or the error of a function of the
 * machine.
 */
int npuc_infer(const struct npuc_program *program, const void *const *inputs, void *const *outputs, void *arena);

/* For npuc_program.c: the memory of a tensor that is read, and written; runs of consecutive segments. */
const void *npuc_from(const struct npuc_inference *all, uint32_t tensor);
void *npuc_to(const struct npuc_inference *all, uint32_t tensor);
int npuc_play(const struct npuc_segment *segments, uint32_t count, const struct npuc_inference *all);

#ifdef __cplusplus
}
#endif

#endif
