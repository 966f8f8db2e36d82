/*
 * Stored samples with the outputs that npuc simulated, and the check that your machine gives the same. Link it with
 * npuc_vectors.c and the files of an inference. Written by npuc.
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

/* The first element that differs from the simulated one. */
struct npuc_difference {
    uint32_t sample, output, element; /* all counted from 0; the element row by row */
    double expected, found;
};

/*
 * Infers every sample and compares. Returns the number of elements that differ from the simulated ones, or a negative
 * value if npuc_infer failed, in the sample that `sample` names. Integers must be equal; floats may differ by 1e-5 of
 * the largest magnitude of their output, as C libraries round exp differently. arena: as for npuc_infer.
 */
long npuc_self_test(void *arena, struct npuc_difference *first);

#ifdef __cplusplus
}
#endif

#endif
