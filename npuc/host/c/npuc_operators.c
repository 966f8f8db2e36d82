/* The operators of the host. The linker removes unused ones with --gc-sections. */
#include "npuc_operators.h"

#include <math.h>
#include <string.h>

/* Advances to the next element, the last axis fastest, with both offsets. Returns 0 after the last element. */
static int advance(const struct npuc_op_axis *axes, int rank, uint32_t *at, int32_t *x, int32_t *y)
{
    int axis;

    for (axis = rank - 1; axis >= 0; axis--) {
        *x += axes[axis].x;
        *y += axes[axis].y;
        if (++at[axis] < axes[axis].extent) {
            return 1;
        }
        *x -= (int32_t)at[axis] * axes[axis].x;
        *y -= (int32_t)at[axis] * axes[axis].y;
        at[axis] = 0;
    }
    return 0;
}

void npuc_op_map(float *result, const float *x, uint32_t count, npuc_op_unary *f, const float *parameters)
{
    uint32_t i;

    for (i = 0; i < count; i++) {
        result[i] = f(x[i], parameters);
    }
}

void npuc_op_combine(float *result, const float *x, const float *y, const struct npuc_op_axis *axes, int rank,
                     npuc_op_binary *f)
{
    uint32_t at[NPUC_RANK] = {0};
    int32_t left = 0, right = 0;

    do {
        *result++ = f(x[left], y[right]);
    } while (advance(axes, rank, at, &left, &right));
}

static float reduced(const float *x, const struct npuc_op_axis *axes, int rank, enum npuc_op_reduction kind)
{
    uint32_t at[NPUC_RANK] = {0};
    int32_t place = 0, unused = 0;
    uint32_t count = 0;
    double sum = 0;
    float best = x[0];

    do {
        const float value = x[place];
        sum += value;
        if (kind == NPUC_OP_MAX ? value > best || value != value : value < best || value != value) {
            best = value;
        }
        count++;
    } while (advance(axes, rank, at, &place, &unused));
    if (kind == NPUC_OP_MAX || kind == NPUC_OP_MIN) {
        return best;
    }
    return (float)(kind == NPUC_OP_MEAN ? sum / count : sum);
}

void npuc_op_reduce(float *result, const float *x, const struct npuc_op_axis *outer, int outer_rank,
                    const struct npuc_op_axis *inner, int inner_rank, enum npuc_op_reduction kind)
{
    uint32_t at[NPUC_RANK] = {0};
    int32_t place = 0, unused = 0;

    do {
        *result++ = reduced(x + place, inner, inner_rank, kind);
    } while (advance(outer, outer_rank, at, &place, &unused));
}

/* The first element of the i-th row along the axis. */
static uint32_t row_of(uint32_t i, uint32_t extent, uint32_t inner)
{
    return i / inner * extent * inner + i % inner;
}

static float largest(const float *x, uint32_t extent, uint32_t inner)
{
    float found = x[0];
    uint32_t k;

    for (k = 1; k < extent; k++) {
        found = fmaxf(found, x[k * inner]);
    }
    return found;
}

static double sum_of_exponentials(const float *x, uint32_t extent, uint32_t inner, float high)
{
    double sum = 0;
    uint32_t k;

    for (k = 0; k < extent; k++) {
        sum += expf(x[k * inner] - high);
    }
    return sum;
}

void npuc_op_softmax(float *result, const float *x, uint32_t outer, uint32_t extent, uint32_t inner)
{
    uint32_t i, k;

    for (i = 0; i < outer * inner; i++) {
        const uint32_t first = row_of(i, extent, inner);
        const float high = largest(x + first, extent, inner);
        const double sum = sum_of_exponentials(x + first, extent, inner, high);
        for (k = 0; k < extent; k++) {
            result[first + k * inner] = (float)(expf(x[first + k * inner] - high) / sum);
        }
    }
}

void npuc_op_log_softmax(float *result, const float *x, uint32_t outer, uint32_t extent, uint32_t inner)
{
    uint32_t i, k;

    for (i = 0; i < outer * inner; i++) {
        const uint32_t first = row_of(i, extent, inner);
        const float high = largest(x + first, extent, inner);
        const float logarithm = (float)log(sum_of_exponentials(x + first, extent, inner, high));
        for (k = 0; k < extent; k++) {
            result[first + k * inner] = x[first + k * inner] - high - logarithm;
        }
    }
}

void npuc_op_argmax(int64_t *result, const float *x, uint32_t outer, uint32_t extent, uint32_t inner, int last)
{
    uint32_t i, k;

    for (i = 0; i < outer * inner; i++) {
        const float *row = x + row_of(i, extent, inner);
        uint32_t index = 0;
        for (k = 1; k < extent; k++) {
            if (row[k * inner] > row[index * inner] || (last && row[k * inner] == row[index * inner])) {
                index = k;
            }
        }
        result[i] = index;
    }
}

void npuc_op_lrn(float *result, const float *x, uint32_t outer, uint32_t extent, uint32_t inner, uint32_t before,
                 uint32_t after, float factor, float beta, float bias)
{
    uint32_t i, c, k;

    for (i = 0; i < outer * inner; i++) {
        const uint32_t first = row_of(i, extent, inner);
        for (c = 0; c < extent; c++) {
            const uint32_t low = c < before ? 0 : c - before;
            const uint32_t high = extent - 1 - c < after ? extent - 1 : c + after;
            const uint32_t at = first + c * inner;
            float sum = 0;
            for (k = low; k <= high; k++) {
                sum += x[first + k * inner] * x[first + k * inner];
            }
            result[at] = x[at] / powf(bias + factor * sum, beta);
        }
    }
}

void npuc_op_matmul(float *result, const float *x, const float *y, const struct npuc_op_axis *axes, int rank,
                    uint32_t rows, uint32_t inner, uint32_t columns)
{
    uint32_t at[NPUC_RANK] = {0}, row, column, k;
    int32_t left = 0, right = 0;

    do {
        for (row = 0; row < rows; row++) {
            for (column = 0; column < columns; column++) {
                double sum = 0;
                for (k = 0; k < inner; k++) {
                    sum += (double)x[left + (int32_t)(row * inner + k)] * y[right + (int32_t)(k * columns + column)];
                }
                *result++ = (float)sum;
            }
        }
    } while (advance(axes, rank, at, &left, &right));
}

void npuc_op_copy(void *y, const void *x, uint32_t bytes, int32_t first_y, int32_t first_x,
                  const struct npuc_op_axis *axes, int rank)
{
    uint32_t at[NPUC_RANK] = {0};

    do {
        memcpy((uint8_t *)y + first_y, (const uint8_t *)x + first_x, bytes);
    } while (advance(axes, rank, at, &first_x, &first_y));
}

int npuc_op_gather(void *y, const void *x, uint32_t outer, uint32_t extent, uint32_t bytes, const int64_t *indices,
                   uint32_t count)
{
    uint8_t *result = y;
    uint32_t i, k;

    for (i = 0; i < outer; i++) {
        for (k = 0; k < count; k++) {
            const int64_t index = indices[k] < 0 ? indices[k] + extent : indices[k];
            if (index < 0 || index >= extent) {
                return -1;
            }
            memcpy(result, (const uint8_t *)x + ((size_t)i * extent + (size_t)index) * bytes, bytes);
            result += bytes;
        }
    }
    return 0;
}

/* NaN counts as 0, so it gives the zero point. */
static int32_t quantized(float x, float scale, int32_t zero, int32_t low, int32_t high)
{
    const float scaled = rintf(x / scale) + (float)zero;

    if (scaled != scaled) {
        return zero;
    }
    return scaled <= (float)low ? low : scaled >= (float)high ? high : (int32_t)scaled;
}

void npuc_op_quantize_int8(int8_t *result, const float *x, uint32_t count, float scale, int32_t zero)
{
    uint32_t i;

    for (i = 0; i < count; i++) {
        result[i] = (int8_t)quantized(x[i], scale, zero, -128, 127);
    }
}

void npuc_op_quantize_uint8(uint8_t *result, const float *x, uint32_t count, float scale, int32_t zero)
{
    uint32_t i;

    for (i = 0; i < count; i++) {
        result[i] = (uint8_t)quantized(x[i], scale, zero, 0, 255);
    }
}

void npuc_op_quantize_int16(int16_t *result, const float *x, uint32_t count, float scale, int32_t zero)
{
    uint32_t i;

    for (i = 0; i < count; i++) {
        result[i] = (int16_t)quantized(x[i], scale, zero, -32768, 32767);
    }
}

void npuc_op_dequantize_int8(float *result, const int8_t *x, uint32_t count, float scale, int32_t zero)
{
    uint32_t i;

    for (i = 0; i < count; i++) {
        result[i] = (float)(x[i] - zero) * scale;
    }
}

void npuc_op_dequantize_uint8(float *result, const uint8_t *x, uint32_t count, float scale, int32_t zero)
{
    uint32_t i;

    for (i = 0; i < count; i++) {
        result[i] = (float)(x[i] - zero) * scale;
    }
}

void npuc_op_dequantize_int16(float *result, const int16_t *x, uint32_t count, float scale, int32_t zero)
{
    uint32_t i;

    for (i = 0; i < count; i++) {
        result[i] = (float)(x[i] - zero) * scale;
    }
}

void npuc_op_frame(int8_t *result, const uint8_t *x, uint32_t count)
{
    uint32_t i;

    for (i = 0; i < count; i++) {
        result[i] = (int8_t)(x[i] - 128);
    }
}

#define UNARY(name, expression)                                                                                      \
    float name(float x, const float *p)                                                                              \
    {                                                                                                                \
        (void)p;                                                                                                     \
        return expression;                                                                                           \
    }

static float clamped(float x, float low, float high)
{
    const float above = x < low ? low : x;

    return above > high ? high : above;
}

static float softplus(float x)
{
    return x > 0.0f ? x + log1pf(expf(-x)) : log1pf(expf(x));
}

UNARY(npuc_op_relu, x < 0.0f ? 0.0f : x)
UNARY(npuc_op_abs, fabsf(x))
UNARY(npuc_op_neg, -x)
UNARY(npuc_op_sigmoid, x >= 0.0f ? 1.0f / (1.0f + expf(-x)) : expf(x) / (1.0f + expf(x)))
UNARY(npuc_op_tanh, tanhf(x))
UNARY(npuc_op_hard_swish, x * clamped(x / 6.0f + 0.5f, 0.0f, 1.0f))
UNARY(npuc_op_hard_sigmoid, clamped(p[0] * x + p[1], 0.0f, 1.0f))
UNARY(npuc_op_swish, x / (1.0f + expf(-p[0] * x)))
UNARY(npuc_op_softplus, softplus(x))
UNARY(npuc_op_softsign, x / (1.0f + fabsf(x)))
UNARY(npuc_op_elu, x < 0.0f ? p[0] * expm1f(x) : x)
UNARY(npuc_op_gelu, 0.5f * x * (1.0f + erff(x * 0.70710678f)))
UNARY(npuc_op_gelu_tanh, 0.5f * x * (1.0f + tanhf(0.79788456f * (x + 0.044715f * x * x * x))))
UNARY(npuc_op_mish, x * tanhf(softplus(x)))
UNARY(npuc_op_clip, clamped(x, p[0], p[1]))
UNARY(npuc_op_leaky_relu, x < 0.0f ? p[0] * x : x)
UNARY(npuc_op_exp, expf(x))
UNARY(npuc_op_log, logf(x))
UNARY(npuc_op_erf, erff(x))
UNARY(npuc_op_sqrt, sqrtf(x))
UNARY(npuc_op_reciprocal, 1.0f / x)
UNARY(npuc_op_floor, floorf(x))
UNARY(npuc_op_ceil, ceilf(x))
UNARY(npuc_op_round, rintf(x))

#define BINARY(name, expression)                                                                                     \
    float name(float x, float y)                                                                                     \
    {                                                                                                                \
        return expression;                                                                                           \
    }

BINARY(npuc_op_add, x + y)
BINARY(npuc_op_sub, x - y)
BINARY(npuc_op_mul, x * y)
BINARY(npuc_op_div, x / y)
BINARY(npuc_op_pow, powf(x, y))
BINARY(npuc_op_max, x > y || x != x ? x : y)
BINARY(npuc_op_min, x < y || x != x ? x : y)
BINARY(npuc_op_prelu, x < 0.0f ? y * x : x)
