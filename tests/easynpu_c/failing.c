/* A machine whose memories cannot be written during a run: 0 if the driver returns the error after the run's end. */
#include "npuc_program.h"

static int runs;
static float input[NPUC_INPUT_BYTES / 4], output[NPUC_OUTPUT_BYTES / 4];
static uint64_t arena[NPUC_ARENA_BYTES / 8 + 1];

int npuc_write(enum npuc_memory memory, uint32_t address, const struct npuc_word *words, uint32_t count)
{
    (void)memory, (void)address, (void)words, (void)count;
    return runs ? 7 : 0;
}

int npuc_read(enum npuc_memory memory, uint32_t address, struct npuc_word *words, uint32_t count)
{
    (void)memory, (void)address, (void)words, (void)count;
    return 0;
}

int npuc_start(uint32_t count)
{
    (void)count;
    runs = 1;
    return 0;
}

int npuc_wait(void)
{
    runs = 0;
    return 0;
}

int main(void)
{
    return npuc_init(&npuc_program) || npuc_run(input, output, arena) != 7 || runs;
}
