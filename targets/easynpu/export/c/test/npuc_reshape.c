/*
 * The order in which a reshape word writes its map: the dimensions N, H, W, C are permuted; then C, W, H and N
 * in turn are split into parts, which are stacked on a dimension, one after the other or inserted between its
 * indices.
 */
#include "npuc_array.h"

enum { DIMENSIONS = 4 };

/* The place-th permutation of 0..3 in lexicographic order. */
static void permutation(int32_t place, int32_t *order)
{
    int32_t left[DIMENSIONS] = {0, 1, 2, 3};
    int32_t count = 6, dimension, i;

    for (dimension = 0; dimension < DIMENSIONS; dimension++) {
        const int32_t chosen = place / count;
        order[dimension] = left[chosen];
        for (i = chosen; i + 1 < DIMENSIONS - dimension; i++) {
            left[i] = left[i + 1];
        }
        place %= count;
        count = dimension == 0 ? 2 : 1;
    }
}

/* Splits a dimension of `extents`, and moves the element at `index` accordingly. */
static void split(const struct reshape *reshape, int32_t dimension, int32_t *extents, int32_t *index)
{
    const int32_t parts = reshape->parts[dimension], onto = reshape->onto[dimension];
    const int32_t rest = extents[dimension] / parts;
    const int32_t minor = reshape->minor >> dimension & 1, insert = reshape->insert >> dimension & 1;
    const int32_t part = minor ? index[dimension] % parts : index[dimension] / rest;

    index[dimension] = minor ? index[dimension] / parts : index[dimension] % rest;
    extents[dimension] = rest;
    index[onto] = insert ? index[onto] * parts + part : part * extents[onto] + index[onto];
    extents[onto] *= parts;
}

static void permuted(const struct reshape *reshape, const int32_t *values, int32_t *result)
{
    int32_t order[DIMENSIONS], dimension;

    permutation(reshape->perm, order);
    for (dimension = 0; dimension < DIMENSIONS; dimension++) {
        result[dimension] = values[order[dimension]];
    }
}

void model_check_reshape(const struct stage *stage)
{
    const struct reshape *reshape = &stage->reshape;
    const int32_t before[DIMENSIONS] = {1, stage->Hi, stage->Wi, stage->Ci};
    int32_t extents[DIMENSIONS], index[DIMENSIONS] = {0}, dimension;

    if (reshape->perm >= 24) {
        model_expect(0, "a reshape word has an undefined permutation");
        return;
    }
    permuted(reshape, before, extents);
    for (dimension = DIMENSIONS - 1; dimension >= 0; dimension--) {
        if (extents[dimension] % reshape->parts[dimension] != 0) {
            model_expect(0, "a reshape word splits a dimension into parts of unequal size");
            return;
        }
        split(reshape, dimension, extents, index);
    }
    model_expect(extents[0] == 1 && extents[1] == reshape->Ho && extents[2] == reshape->Wo &&
                     extents[3] == reshape->Co,
                 "a reshape word has another result than its splits give");
}

void model_rearranged(const struct stage *stage, int32_t *row, int32_t *column, int32_t *channel)
{
    const int32_t before[DIMENSIONS] = {1, stage->Hi, stage->Wi, stage->Ci};
    const int32_t at[DIMENSIONS] = {0, *row, *column, *channel};
    int32_t extents[DIMENSIONS], index[DIMENSIONS], dimension;

    permuted(&stage->reshape, before, extents);
    permuted(&stage->reshape, at, index);
    for (dimension = DIMENSIONS - 1; dimension >= 0; dimension--) {
        split(&stage->reshape, dimension, extents, index);
    }
    *row = index[1];
    *column = index[2];
    *channel = index[3];
}
