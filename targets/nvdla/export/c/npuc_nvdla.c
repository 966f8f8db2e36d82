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
        + (size_t)column * tensor->pixel_strides[channel > 0];
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

static uint16_t half_of(float value)
{
    uint32_t bits, sign, magnitude;

    memcpy(&bits, &value, sizeof bits);
    sign = bits >> 16 & 0x8000u;
    magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) {
        return (uint16_t)(sign | 0x7e00u); /* not a number */
    }
    if (magnitude >= 0x477fe000u) {
        return (uint16_t)(sign | 0x7bffu); /* 65504 and more */
    }
    if (magnitude < 0x38800000u) { /* below the least normal number: in steps of 2^-24 */
        const uint32_t shift = 126 - (magnitude >> 23);
        const uint32_t mantissa = (magnitude & 0x7fffffu) | 0x800000u;
        uint32_t half = 1, kept;

        if (shift > 24) {
            return (uint16_t)sign;
        }
        half <<= shift - 1;
        kept = mantissa >> shift;
        kept += (mantissa & (2 * half - 1)) > half || ((mantissa & (2 * half - 1)) == half && (kept & 1));
        return (uint16_t)(sign | kept);
    }
    magnitude += 0xfffu + (magnitude >> 13 & 1u); /* half to even */
    return (uint16_t)(sign | (magnitude - 0x38000000u) >> 13);
}

static float float_of(uint16_t half)
{
    const uint32_t exponent = half >> 10 & 0x1fu, mantissa = half & 0x3ffu;
    uint32_t bits = (uint32_t)(half & 0x8000u) << 16;
    float value;

    if (exponent == 0) {
        value = (float)mantissa / 16777216.0f;
        return bits ? -value : value;
    }
    bits |= (exponent == 31 ? 255 : exponent + 112) << 23 | mantissa << 13;
    memcpy(&value, &bits, sizeof value);
    return value;
}

void npuc_put_floats(const struct npuc_tensor *tensor, uint8_t *memory, const float *values)
{
    uint32_t channel, row, column;

    for (channel = 0; channel < tensor->channels; channel++)
        for (row = 0; row < tensor->height; row++)
            for (column = 0; column < tensor->width; column++, values++) {
                const uint16_t half = half_of(*values);

                memcpy(memory + place(tensor, channel, row, column), &half, sizeof half);
            }
}

void npuc_get_floats(const struct npuc_tensor *tensor, const uint8_t *memory, float *values)
{
    uint32_t channel, row, column;

    for (channel = 0; channel < tensor->channels; channel++)
        for (row = 0; row < tensor->height; row++)
            for (column = 0; column < tensor->width; column++, values++) {
                uint16_t half;

                memcpy(&half, memory + place(tensor, channel, row, column), sizeof half);
                *values = float_of(half);
            }
}

void npuc_fill(const struct npuc_blob *blobs, size_t count, uint8_t *memory, size_t bytes)
{
    size_t at;

    memset(memory, 0, bytes);
    for (at = 0; at < count; at++)
        memcpy(memory + blobs[at].address, blobs[at].data, blobs[at].bytes);
}
