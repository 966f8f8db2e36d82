/*
 * Instruction words on the machine model, with memories as given: from stdin the number of words, then ITCM, weight,
 * Fmap and skip DTCM; to stdout the Fmap and skip DTCM afterwards. Exit code 1 and the reason where the model stops.
 */
#include <stdio.h>

#include "npuc_driver.h"
#include "npuc_program.h"
#include "test/npuc_model.h"

static struct npuc_word words[NPUC_WEIGHT_WORDS];

static int fill(enum npuc_memory memory, uint32_t count)
{
    return fread(words, sizeof *words, count, stdin) != count || npuc_write(memory, 0, words, count);
}

static int show(enum npuc_memory memory, uint32_t count)
{
    return npuc_read(memory, 0, words, count) || fwrite(words, sizeof *words, count, stdout) != count;
}

int main(void)
{
    uint32_t count;
    int failed = fread(&count, sizeof count, 1, stdin) != 1 || fill(NPUC_ITCM, NPUC_ITCM_WORDS) ||
                 fill(NPUC_WEIGHT, NPUC_WEIGHT_WORDS) || fill(NPUC_FMAP, NPUC_FMAP_WORDS) ||
                 fill(NPUC_SKIP, NPUC_SKIP_WORDS) || npuc_execute(count) || show(NPUC_FMAP, NPUC_FMAP_WORDS) ||
                 show(NPUC_SKIP, NPUC_SKIP_WORDS);

    if (failed) {
        fprintf(stderr, "%s\n", npuc_model_fault());
    }
    return failed;
}
