/* Compares the inferences of stored samples with what npuc simulated. Written by npuc. */
#include "npuc_self_test.h"

#include <math.h>
#include <string.h>

#define ROOM 1e-5

static uint64_t found[NPUC_OUTPUT_BYTES / 8 + NPUC_OUTPUTS + 1]; /* every output begins with a whole word */

static uint32_t element_bytes(enum npuc_type type)
{
    return type == NPUC_INT8 || type == NPUC_UINT8 ? 1 : type == NPUC_INT64 ? 8 : 4;
}

static double element(enum npuc_type type, const void *values, uint32_t at)
{
    const unsigned char *place = (const unsigned char *)values + (size_t)at * element_bytes(type);
    int8_t small;
    int64_t large;
    float real;

    switch (type) {
    case NPUC_INT8:
        memcpy(&small, place, sizeof small);
        return small;
    case NPUC_UINT8:
        return *place;
    case NPUC_INT64:
        memcpy(&large, place, sizeof large);
        return (double)large;
    default:
        memcpy(&real, place, sizeof real);
        return real;
    }
}

/* The tolerance of an output's elements against the simulated ones. */
static double room(const struct npuc_tensor *output, const void *wanted, uint32_t count)
{
    double most = 0;
    uint32_t at;

    if (output->type != NPUC_FLOAT32)
        return 0;
    for (at = 0; at < count; at++) {
        double size = fabs(element(output->type, wanted, at));

        if (size > most && size < HUGE_VAL)
            most = size;
    }
    return most * ROOM;
}

static int same(double expected, double given, double far)
{
    if (expected != expected || given != given)
        return expected != expected && given != given;
    return expected == given || fabs(expected - given) <= far;
}

long npuc_self_test(void *arena, struct npuc_difference *first)
{
    long wrong = 0;
    uint32_t sample, number, at;

    memset(first, 0, sizeof *first);
    if (npuc_init(&npuc_program))
        return -1;
    for (sample = 0; sample < npuc_vector_count; sample++) {
        const struct npuc_vector *each = &npuc_vectors[sample];
        void *outputs[NPUC_OUTPUTS];
        size_t next = 0;

        memset(found, 0x55, sizeof found); /* an element that an inference does not write must not match by chance */
        for (number = 0; number < NPUC_OUTPUTS; number++) {
            outputs[number] = found + next;
            next += (npuc_program.outputs[number].bytes + 7) / 8;
        }
        if (npuc_infer(&npuc_program, each->inputs, outputs, arena)) {
            first->sample = sample;
            return -1;
        }
        for (number = 0; number < NPUC_OUTPUTS; number++) {
            const struct npuc_tensor *output = &npuc_program.outputs[number];
            uint32_t count = output->bytes / element_bytes(output->type);
            double far = room(output, each->outputs[number], count);

            for (at = 0; at < count; at++) {
                double expected = element(output->type, each->outputs[number], at);
                double given = element(output->type, outputs[number], at);

                if (!same(expected, given, far) && wrong++ == 0) {
                    first->sample = sample;
                    first->output = number;
                    first->element = at;
                    first->expected = expected;
                    first->found = given;
                }
            }
        }
    }
    return wrong;
}
