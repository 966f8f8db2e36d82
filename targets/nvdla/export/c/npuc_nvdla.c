/* The loop that plays an NVDLA register program. Written by npuc. */
#include "npuc_nvdla.h"

#include <string.h>

int npuc_play(const struct npuc_command *commands, size_t count, const struct npuc_hooks *hooks)
{
    size_t at;
    int failed = 0;

    for (at = 0; at < count && !failed; at++) {
        const struct npuc_command *each = &commands[at];

        switch (each->kind) {
        case NPUC_POLL:
            failed = hooks->poll(hooks->context, each->address, each->mask, each->value);
            break;
        case NPUC_WAIT:
            failed = hooks->wait(hooks->context, each->address, each->mask);
            break;
        case NPUC_WRITE_ADDRESS:
            failed = hooks->write(hooks->context, each->address, each->value + hooks->memory_offset);
            break;
        default:
            failed = hooks->write(hooks->context, each->address, each->value);
            break;
        }
    }
    return failed;
}

static int write_register(void *context, uint32_t address, uint32_t value)
{
    volatile uint32_t *registers = context;

    registers[address / 4] = value;
    return 0;
}

static int poll_register(void *context, uint32_t address, uint32_t mask, uint32_t value)
{
    volatile uint32_t *registers = context;

    while ((registers[address / 4] & mask) != (value & mask)) {
    }
    return 0;
}

static int wait_for_interrupt(void *context, uint32_t address, uint32_t mask)
{
    volatile uint32_t *registers = context;

    while ((registers[address / 4] & mask) != mask) {
    }
    registers[address / 4] = mask; /* a bit is cleared by writing 1 */
    return 0;
}

struct npuc_hooks npuc_registers_at(volatile uint32_t *registers)
{
    struct npuc_hooks hooks = {(void *)registers, write_register, poll_register, wait_for_interrupt, 0};

    return hooks;
}

static size_t place(const struct npuc_tensor *tensor, uint32_t channel, uint32_t row, uint32_t column)
{
    return (size_t)tensor->address + tensor->channel_offsets[channel] + (size_t)row * tensor->line_stride
        + (size_t)column * tensor->pixel_stride;
}

void npuc_put(const struct npuc_tensor *tensor, uint8_t *memory, const void *values)
{
    const uint8_t *from = values;
    uint32_t channel, row, column;

    for (channel = 0; channel < tensor->channels; channel++)
        for (row = 0; row < tensor->height; row++)
            for (column = 0; column < tensor->width; column++, from += tensor->element_bytes)
                memcpy(memory + place(tensor, channel, row, column), from, tensor->element_bytes);
}

void npuc_get(const struct npuc_tensor *tensor, const uint8_t *memory, void *values)
{
    uint8_t *to = values;
    uint32_t channel, row, column;

    for (channel = 0; channel < tensor->channels; channel++)
        for (row = 0; row < tensor->height; row++)
            for (column = 0; column < tensor->width; column++, to += tensor->element_bytes)
                memcpy(to, memory + place(tensor, channel, row, column), tensor->element_bytes);
}

void npuc_fill(const struct npuc_blob *blobs, size_t count, uint8_t *memory, size_t bytes)
{
    size_t at;

    memset(memory, 0, bytes);
    for (at = 0; at < count; at++)
        memcpy(memory + blobs[at].address, blobs[at].data, blobs[at].bytes);
}
