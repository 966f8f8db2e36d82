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

static unsigned char input[NPUC_INPUT_BYTES], output[NPUC_OUTPUT_BYTES], arena[NPUC_ARENA_BYTES];

/* The buffers of the inputs and outputs, one after the other. */
static int infer(void)
{
    const void *inputs[NPUC_INPUTS];
    void *outputs[NPUC_OUTPUTS];
    uint32_t i, at;

    for (i = 0, at = 0; i < NPUC_INPUTS; at += npuc_program.inputs[i].bytes, i++) {
        inputs[i] = input + at;
    }
    for (i = 0, at = 0; i < NPUC_OUTPUTS; at += npuc_program.outputs[i].bytes, i++) {
        outputs[i] = output + at;
    }
    return npuc_infer(&npuc_program, inputs, outputs, arena);
}

static int run(FILE *in, FILE *out)
{
    size_t bytes;

    while ((bytes = fread(input, 1, sizeof input, in)) == sizeof input) {
        if (infer()) {
            fprintf(stderr, "the machine model stopped: %s\n", npuc_model_fault());
            return 1;
        }
        if (fwrite(output, 1, sizeof output, out) != sizeof output) {
            perror("the output");
            return 1;
        }
    }
    if (bytes > 0) {
        fprintf(stderr, "the last sample has %lu of %lu bytes\n", (unsigned long)bytes,
                (unsigned long)sizeof input);
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
    if (npuc_init(&npuc_program)) {
        fprintf(stderr, "the machine model stopped: %s\n", npuc_model_fault());
        failed = 1;
    } else {
        failed = run(in, out);
    }
    fclose(in);
    return fclose(out) || failed;
}
