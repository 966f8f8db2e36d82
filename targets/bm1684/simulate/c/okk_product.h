/* Products of matrices in the host's memory, fast and with the same bits on every machine. */
#ifndef OKK_PRODUCT_H
#define OKK_PRODUCT_H

#include <stddef.h>

#define OKK_PANEL 16 /* columns of a panel */
#define OKK_BLOCK 4  /* rows of a block */

/* A left matrix (rows, depth) in blocks of rows; okk_left_set sets an element. */
struct okk_left {
    float *packed;
    int rows, depth;
};
struct okk_left okk_left_make(int rows, int depth);

static inline void okk_left_set(struct okk_left *left, int row, int column, float value)
{
    size_t block = (size_t)(row / OKK_BLOCK) * (size_t)left->depth;
    left->packed[(block + (size_t)column) * OKK_BLOCK + (size_t)(row % OKK_BLOCK)] = value;
}

/*
 * out (rows, 16) = left * panel, where panel is (depth, 16). Every sum runs over ascending depth, so that the
 * result does not depend on how the work is divided.
 */
void okk_product(const struct okk_left *left, const float *panel, float *out);

#endif
