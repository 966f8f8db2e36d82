/*
 * Stored samples with what npuc simulated for every segment, and the check that your NVDLA gives the same. Written by
 * npuc.
 */
#ifndef NPUC_SELF_TEST_H
#define NPUC_SELF_TEST_H

#include "npuc_program.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What a segment loads and is expected to store, for one sample: tensors as npuc_put takes them. */
struct npuc_vector {
    const void *const *loads;
    const void *const *stores;
};

extern const struct npuc_vector npuc_vectors[]; /* all segments of the first sample, then of the next */
extern const uint32_t npuc_sample_count;

/* The first element that is not what was simulated, or the command that a hook refused. */
struct npuc_difference {
    uint32_t sample, segment;
    const struct npuc_tensor *tensor;
    uint32_t channel, row, column;
    uint32_t expected, found; /* the element's bits, those of a byte sign-extended */
};

/*
 * Plays every sample and compares each stored element bit for bit: 0 where all are as simulated, else how many are
 * not. Negative where a hook gave an error; sample and segment then say where. memory: NPUC_DRAM_BYTES that NVDLA
 * sees, coherent. Start from reset: segments and samples are played one after the other.
 */
long npuc_self_test(uint8_t *memory, const struct npuc_hooks *hooks, struct npuc_difference *first);

#ifdef __cplusplus
}
#endif

#endif
