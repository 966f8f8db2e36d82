/* Blocks of 4 rows and 16 columns, in registers. No product is contracted with its sum. */
#include "okk_product.h"

#include <string.h>

#include "okk_model.h"

#define WIDTH 8

typedef float vector __attribute__((vector_size(4 * WIDTH), aligned(4), may_alias));

#if defined(__x86_64__) && defined(__linux__) && !defined(__clang__)
#define FAST __attribute__((target_clones("avx2", "default")))
#else
#define FAST
#endif

struct okk_left okk_left_make(int rows, int depth)
{
    size_t blocks = (size_t)okk_ceil_div(rows, OKK_BLOCK);
    return (struct okk_left){okk_memory(blocks * OKK_BLOCK * (size_t)depth * sizeof(float)), rows, depth};
}

FAST static void block_product(const float *left, const float *panel, int depth, float *out)
{
    vector sums[OKK_BLOCK][OKK_PANEL / WIDTH] = {0};
    for (int k = 0; k < depth; k++, left += OKK_BLOCK, panel += OKK_PANEL)
        for (int at = 0; at < OKK_PANEL / WIDTH; at++) {
            vector right = *(const vector *)(panel + at * WIDTH);
            for (int row = 0; row < OKK_BLOCK; row++)
                sums[row][at] += left[row] * right;
        }
    for (int row = 0; row < OKK_BLOCK; row++)
        for (int at = 0; at < OKK_PANEL / WIDTH; at++)
            *(vector *)(out + row * OKK_PANEL + at * WIDTH) = sums[row][at];
}

void okk_product(const struct okk_left *left, const float *panel, float *out)
{
    float block[OKK_BLOCK * OKK_PANEL];
    for (int row = 0; row < left->rows; row += OKK_BLOCK) {
        int count = left->rows - row < OKK_BLOCK ? left->rows - row : OKK_BLOCK;
        block_product(left->packed + (size_t)row * (size_t)left->depth, panel, left->depth, block);
        memcpy(out + (size_t)row * OKK_PANEL, block, (size_t)count * OKK_PANEL * sizeof(float));
    }
}
