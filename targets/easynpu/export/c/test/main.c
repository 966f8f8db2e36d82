/*
 * Runs the program on a machine model: npuc_test IN OUT
 *
 * IN: the inputs of one sample after the other, each as npuc_program.h describes it, in this machine's byte order;
 * OUT: the outputs in the same form.
 */
#include <stdio.h>

#include "npuc_driver.h"
#include "npuc_model.h"
#include "npuc_program.h"

/* Every tensor begins with a whole word. */
static uint64_t input[NPUC_INPUT_BYTES / 8 + NPUC_INPUTS + 1], output[NPUC_OUTPUT_BYTES / 8 + NPUC_OUTPUTS + 1];
static uint64_t arena[NPUC_ARENA_BYTES / 8 + 1];

/* Reads the inputs of a sample; returns the bytes read before the end of the file. */
static size_t read_sample(FILE *in, void *const *inputs)
{
    size_t bytes = 0;
    uint32_t i;

    for (i = 0; i < npuc_program.input_count; i++) {
        bytes += fread(inputs[i], 1, npuc_program.inputs[i].bytes, in);
    }
    return bytes;
}

static int run(FILE *in, FILE *out)
{
    void *inputs[NPUC_INPUTS], *outputs[NPUC_OUTPUTS];
    size_t bytes, at;
    uint32_t i;

    for (i = 0, at = 0; i < npuc_program.input_count; at += (npuc_program.inputs[i].bytes + 7) / 8, i++) {
        inputs[i] = input + at;
    }
    for (i = 0, at = 0; i < npuc_program.output_count; at += (npuc_program.outputs[i].bytes + 7) / 8, i++) {
        outputs[i] = output + at;
    }
    while ((bytes = read_sample(in, inputs)) == NPUC_INPUT_BYTES) {
        if (npuc_infer(&npuc_program, (const void *const *)inputs, outputs, arena)) {
            fprintf(stderr, "the machine model stopped: %s\n", npuc_model_fault());
            return 1;
        }
        for (i = 0; i < npuc_program.output_count; i++) {
            if (fwrite(outputs[i], 1, npuc_program.outputs[i].bytes, out) != npuc_program.outputs[i].bytes) {
                perror("the output");
                return 1;
            }
        }
    }
    if (bytes > 0) {
        fprintf(stderr, "the last sample has %lu of %lu bytes\n", (unsigned long)bytes,
                (unsigned long)NPUC_INPUT_BYTES);
    }
    return bytes > 0;
}

int main(int count, char **arguments)
{
    FILE *in, *out;
    int failed;

    if (count != 3) {
        fprintf(stderr, "usage: %s IN OUT\n", arguments[0]);
        return 2;
    }
    failed = npuc_check(&npuc_program, npuc_model_register);
    if (failed) {
        fprintf(stderr, "the program is not for the machine model: npuc_check gives %d\n", failed);
        return 1;
    }
    in = fopen(arguments[1], "rb");
    if (in == NULL) {
        perror(arguments[1]);
        return 1;
    }
    out = fopen(arguments[2], "wb");
    if (out == NULL) {
        perror(arguments[2]);
        fclose(in);
        return 1;
    }
    npuc_model_power_up();
    failed = run(in, out);
    fclose(in);
    return fclose(out) || failed;
}
