/* The self test on the machine model: exit status 0 where every element is as simulated. Written by npuc. */
#include <stdio.h>

#include "npuc_model.h"
#include "npuc_self_test.h"

static uint64_t arena[NPUC_ARENA_BYTES / 8 + 1];

int main(void)
{
    struct npuc_difference first;
    long wrong;

    if (npuc_check(&npuc_program, npuc_model_register)) {
        fprintf(stderr, "the program is not for the machine model\n");
        return 1;
    }
    npuc_model_power_up();
    wrong = npuc_self_test(arena, &first);
    if (wrong < 0) {
        fprintf(stderr, "sample %lu: the machine model stopped: %s\n", (unsigned long)first.sample,
                npuc_model_fault());
        return 1;
    }
    if (wrong > 0) {
        fprintf(stderr, "%ld elements differ, first: sample %lu, output %s, element %lu: expected %.9g, found %.9g\n",
                wrong, (unsigned long)first.sample, npuc_program.outputs[first.output].name,
                (unsigned long)first.element, first.expected, first.found);
        return 1;
    }
    printf("%lu samples as simulated\n", (unsigned long)npuc_vector_count);
    return 0;
}
