/*
 * Stored samples with the outputs that npuc simulated, and the check that your machine gives the same. Link it with
 * npuc_vectors.c and all that an inference needs. Written by npuc.
 */
#ifndef NPUC_SELF_TEST_H
#define NPUC_SELF_TEST_H

#include "npuc_program.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A sample: the program's inputs and expected outputs, in the order of npuc_program.h. */
struct npuc_vector {
    const void *const *inputs;
    const void *const *outputs;
};

extern const struct npuc_vector npuc_vectors[];
extern const uint32_t npuc_vector_count;

/* The first element that is not what was simulated. */
struct npuc_difference {
    uint32_t sample, output, element; /* all counted from 0; the element row by row */
    double expected, found;
};

/*
 * Infers every sample and compares: 0 where all elements are as simulated, else how many are not. Negative where
 * npuc_infer failed; sample then says where. Integers must be equal; floats may differ by 1e-5 of the largest
 * magnitude of their output, as C libraries round exp otherwise. arena: NPUC_ARENA_BYTES, as for npuc_infer.
 */
long npuc_self_test(void *arena, struct npuc_difference *first);

#ifdef __cplusplus
}
#endif

#endif
