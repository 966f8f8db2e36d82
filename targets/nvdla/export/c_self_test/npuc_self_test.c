/* Compares the segments of stored samples with what npuc simulated. Written by npuc. */
#include "npuc_self_test.h"

#include <string.h>

static uint32_t element(const uint8_t *at, uint32_t bytes)
{
    int8_t small;
    int16_t wide;

    if (bytes == 1) {
        memcpy(&small, at, sizeof small);
        return (uint32_t)(int32_t)small;
    }
    memcpy(&wide, at, sizeof wide);
    return (uint32_t)(int32_t)wide;
}

/* The number of wrong elements of a tensor in memory; first: set to the first wrong one unless already set. */
static long differing(const struct npuc_tensor *tensor, const uint8_t *memory, const void *wanted,
                      struct npuc_difference *first)
{
    const uint8_t *expected = wanted;
    uint32_t channel, row, column;
    long wrong = 0;

    for (channel = 0; channel < tensor->channels; channel++)
        for (row = 0; row < tensor->height; row++)
            for (column = 0; column < tensor->width; column++, expected += tensor->element_bytes) {
                const uint8_t *place = memory + tensor->address + tensor->channel_offsets[channel]
                    + (size_t)row * tensor->line_stride + (size_t)column * tensor->pixel_strides[channel > 0];

                if (memcmp(place, expected, tensor->element_bytes) == 0)
                    continue;
                if (wrong++ == 0 && first->tensor == NULL) {
                    first->tensor = tensor;
                    first->channel = channel;
                    first->row = row;
                    first->column = column;
                    first->expected = element(expected, tensor->element_bytes);
                    first->found = element(place, tensor->element_bytes);
                }
            }
    return wrong;
}

long npuc_self_test(uint8_t *memory, const struct npuc_hooks *hooks, struct npuc_difference *first)
{
    const struct npuc_vector *vector = npuc_vectors;
    uint32_t sample, at, number;
    long wrong = 0;

    memset(first, 0, sizeof *first);
    for (sample = 0; sample < npuc_sample_count; sample++) {
        npuc_fill(npuc_blobs, NPUC_BLOBS, memory, NPUC_DRAM_BYTES);
        for (at = 0; at != NPUC_SEGMENTS; at++, vector++) {
            const struct npuc_segment *segment = &npuc_segments[at];

            if (wrong == 0) {
                first->sample = sample;
                first->segment = at;
            }
            for (number = 0; number < segment->load_count; number++)
                npuc_put(&segment->loads[number], memory, vector->loads[number]);
            if (npuc_play(segment->commands, segment->command_count, hooks)) {
                first->sample = sample;
                first->segment = at;
                return -1;
            }
            for (number = 0; number < segment->store_count; number++)
                wrong += differing(&segment->stores[number], memory, vector->stores[number], first);
        }
    }
    return wrong;
}
