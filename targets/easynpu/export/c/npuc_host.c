/* The operators that the host computes. --gc-sections removes those that a program does not use. */
#include "npuc_driver.h"

#include <math.h>
#include <string.h>

/* Elements are accessed by memcpy: a buffer may have any alignment and any declared type. */
static float get(const void *x, uint32_t index)
{
    float value;

    memcpy(&value, (const uint8_t *)x + index * sizeof value, sizeof value);
    return value;
}

static void set(void *y, uint32_t index, float value)
{
    memcpy((uint8_t *)y + index * sizeof value, &value, sizeof value);
}

static uint32_t elements(const struct npuc_host *step)
{
    return step->outer * step->extent * step->inner;
}

/* x / scale in float32, half to even, plus zero, saturated; NaN counts as 0. */
void npuc_quantize(const struct npuc_host *step, const void *x, void *y)
{
    int8_t *result = y;
    uint32_t i;

    for (i = 0; i < elements(step); i++) {
        const float scaled = rintf(get(x, i) / step->scale) + step->zero;
        if (scaled >= 127.0f) {
            result[i] = 127;
        } else if (scaled <= -128.0f) {
            result[i] = -128;
        } else {
            result[i] = (int8_t)(scaled == scaled ? scaled : 0.0f);
        }
    }
}

void npuc_dequantize(const struct npuc_host *step, const void *x, void *y)
{
    const int8_t *values = x;
    uint32_t i;

    for (i = 0; i < elements(step); i++) {
        set(y, i, ((float)values[i] - step->zero) * step->scale);
    }
}

/* The bytes of a frame as the machine's int8: less 128. */
void npuc_frame(const struct npuc_host *step, const void *x, void *y)
{
    const uint8_t *values = x;
    int8_t *result = y;
    uint32_t i;

    for (i = 0; i < elements(step); i++) {
        result[i] = (int8_t)(values[i] - 128);
    }
}

/* The number of the first element of the i-th row along the axis; its other elements follow, `inner` apart. */
static uint32_t row_of(const struct npuc_host *step, uint32_t i)
{
    return i / step->inner * step->extent * step->inner + i % step->inner;
}

static float largest(const struct npuc_host *step, const void *x, uint32_t first)
{
    float found = get(x, first);
    uint32_t k;

    for (k = 1; k < step->extent; k++) {
        found = fmaxf(found, get(x, first + k * step->inner));
    }
    return found;
}

static double sum_of_exponentials(const struct npuc_host *step, const void *x, uint32_t first, float high)
{
    double sum = 0;
    uint32_t k;

    for (k = 0; k < step->extent; k++) {
        sum += expf(get(x, first + k * step->inner) - high);
    }
    return sum;
}

void npuc_softmax(const struct npuc_host *step, const void *x, void *y)
{
    uint32_t i, k;

    for (i = 0; i < step->outer * step->inner; i++) {
        const uint32_t first = row_of(step, i);
        const float high = largest(step, x, first);
        const double sum = sum_of_exponentials(step, x, first, high);
        for (k = first; k < first + step->extent * step->inner; k += step->inner) {
            set(y, k, (float)(expf(get(x, k) - high) / sum));
        }
    }
}

void npuc_log_softmax(const struct npuc_host *step, const void *x, void *y)
{
    uint32_t i, k;

    for (i = 0; i < step->outer * step->inner; i++) {
        const uint32_t first = row_of(step, i);
        const float high = largest(step, x, first);
        const float logarithm = (float)log(sum_of_exponentials(step, x, first, high));
        for (k = first; k < first + step->extent * step->inner; k += step->inner) {
            set(y, k, get(x, k) - high - logarithm);
        }
    }
}

/* int64 indices, one per row; among equal elements, the first or the last. */
static void index_of_largest(const struct npuc_host *step, const void *x, void *y, int last)
{
    uint32_t i, k;

    for (i = 0; i < step->outer * step->inner; i++) {
        const uint32_t first = row_of(step, i);
        int64_t index = 0;
        float high = get(x, first);
        for (k = 1; k < step->extent; k++) {
            const float value = get(x, first + k * step->inner);
            if (value > high || (last && value == high)) {
                high = value;
                index = k;
            }
        }
        memcpy((uint8_t *)y + i * sizeof index, &index, sizeof index);
    }
}

void npuc_argmax(const struct npuc_host *step, const void *x, void *y)
{
    index_of_largest(step, x, y, 0);
}

void npuc_argmax_last(const struct npuc_host *step, const void *x, void *y)
{
    index_of_largest(step, x, y, 1);
}

/* x / (bias + factor * the sum of the neighbouring channels' squares) ^ beta; the axis is the channels. */
void npuc_lrn(const struct npuc_host *step, const void *x, void *y)
{
    const struct npuc_lrn *lrn = step->lrn;
    uint32_t i, c, k;

    for (i = 0; i < step->outer * step->inner; i++) {
        const uint32_t first = row_of(step, i);
        for (c = 0; c < step->extent; c++) {
            const uint32_t low = c < lrn->before ? 0 : c - lrn->before;
            const uint32_t high = step->extent - 1 - c < lrn->after ? step->extent - 1 : c + lrn->after;
            const uint32_t at = first + c * step->inner;
            float sum = 0;
            for (k = low; k <= high; k++) {
                const float value = get(x, first + k * step->inner);
                sum += value * value;
            }
            set(y, at, get(x, at) / powf(lrn->bias + lrn->factor * sum, lrn->beta));
        }
    }
}

void npuc_copy(const struct npuc_host *step, const void *x, void *y)
{
    const struct npuc_copy *copy = step->copy;
    int32_t from = copy->from, to = copy->to;
    uint32_t count[NPUC_AXES] = {0};
    int axis;

    do {
        memcpy((uint8_t *)y + to, (const uint8_t *)x + from, copy->bytes);
        for (axis = NPUC_AXES - 1; axis >= 0; axis--) {
            from += copy->axis[axis].from;
            to += copy->axis[axis].to;
            if (++count[axis] < copy->axis[axis].extent) {
                break;
            }
            from -= (int32_t)count[axis] * copy->axis[axis].from;
            to -= (int32_t)count[axis] * copy->axis[axis].to;
            count[axis] = 0;
        }
    } while (axis >= 0);
}
