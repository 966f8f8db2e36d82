/* BDC: the product of two matrices in the matrix layout. */
#include <stdlib.h>

#include "okk_model.h"
#include "okk_product.h"

#define CHANNELS 4095

/* A matrix in the matrix layout: its whole channels and the partial last one. */
struct matrix {
    int rows, cols, cols_per_channel, count;
    struct okk_tensor parts[2];
};

static struct matrix matrix(const char *name, local_addr_t address, int rows, int cols, int cols_per_channel)
{
    struct matrix made = {rows, cols, cols_per_channel, 0, {{0}}};
    okk_expect("the number of rows", rows, 1, 65535);
    okk_expect("the number of columns", cols, 1, INT32_MAX / 2);
    okk_expect("the number of columns per channel", cols_per_channel, 1, cols);
    okk_expect("the number of channels", okk_ceil_div(cols, cols_per_channel), 1, CHANNELS);
    made.count = okk_matrix(name, address, rows, cols, cols_per_channel, made.parts);
    return made;
}

static float *element(const struct matrix *of, int row, int col)
{
    int channel = col / of->cols_per_channel, whole = of->parts[0].shape.c;
    const struct okk_tensor *part = &of->parts[channel >= whole];
    unsigned char *found = okk_feature(part, row, channel < whole ? channel : 0);
    return (float *)(void *)found + col % of->cols_per_channel;
}

static void touch(const struct matrix *of, enum okk_access access)
{
    for (int at = 0; at < of->count; at++)
        okk_touch(&of->parts[at], access);
}

static void expect_disjoint(const struct matrix *out, const struct matrix *in)
{
    for (int at = 0; at < out->count; at++)
        for (int from = 0; from < in->count; from++)
            okk_disjoint(&out->parts[at], &in->parts[from]);
}

static struct okk_left left_rows_of(const struct matrix *left)
{
    struct okk_left rows = okk_left_make(left->rows, left->cols);
    for (int row = 0; row < left->rows; row++)
        for (int col = 0; col < left->cols; col++)
            okk_left_set(&rows, row, col, *element(left, row, col));
    return rows;
}

struct product {
    struct matrix out, left, right, bias;
    bool using_bias, result_add;
};

/* Columns of the right matrix from `first` on: (rows, 16); the rows of a column are one N stride apart. */
static void fill_panel(const struct matrix *right, int first, int count, float *panel)
{
    const float *columns[OKK_PANEL] = {NULL};
    for (int at = 0; at < count; at++)
        columns[at] = element(right, 0, first + at);
    const ptrdiff_t stride = right->parts[0].stride.n;
    for (int k = 0; k < right->rows; k++)
        for (int at = 0; at < OKK_PANEL; at++)
            *panel++ = at < count ? columns[at][k * stride] : 0;
}

static void compute_columns(const struct product *made, const struct okk_left *rows, int first, float *panel,
                            float *sums)
{
    int count = made->out.cols - first < OKK_PANEL ? made->out.cols - first : OKK_PANEL;
    fill_panel(&made->right, first, count, panel);
    okk_product(rows, panel, sums);
    for (int row = 0; row < made->out.rows; row++)
        for (int at = 0; at < count; at++) {
            float *out = element(&made->out, row, first + at);
            float sum = sums[row * OKK_PANEL + at];
            if (made->using_bias)
                sum += *element(&made->bias, 0, first + at);
            *out = made->result_add ? *out + sum : sum;
        }
}

static void compute(const struct product *made)
{
    struct okk_left rows = left_rows_of(&made->left);
    float *panel = okk_memory((size_t)made->right.rows * OKK_PANEL * sizeof(float));
    float *sums = okk_memory((size_t)made->out.rows * OKK_PANEL * sizeof(float));
    for (int first = 0; first < made->out.cols; first += OKK_PANEL)
        compute_columns(made, &rows, first, panel, sums);
    free(sums);
    free(panel);
    free(rows.packed);
}

static void check(const struct product *made)
{
    okk_together(&made->out.parts[0], &made->right.parts[0]);
    touch(&made->left, OKK_READ);
    touch(&made->right, OKK_READ);
    expect_disjoint(&made->out, &made->left);
    expect_disjoint(&made->out, &made->right);
    if (made->using_bias) {
        okk_together(&made->out.parts[0], &made->bias.parts[0]);
        touch(&made->bias, OKK_READ);
        expect_disjoint(&made->out, &made->bias);
    }
    if (made->result_add)
        touch(&made->out, OKK_READ);
    touch(&made->out, OKK_WRITE);
}

void okk_bdc_matmul(local_addr_t output_addr, local_addr_t left_addr, local_addr_t right_addr,
                    local_addr_t bias_addr, int left_rows, int left_cols, int right_cols,
                    int left_cols_per_channel, int right_cols_per_channel, bool using_bias, bool result_add)
{
    okk_call(__func__, OKK_BDC_ENGINE);
    struct product made = {.using_bias = using_bias, .result_add = result_add};
    made.out = matrix("output", output_addr, left_rows, right_cols, right_cols_per_channel);
    made.left = matrix("left", left_addr, left_rows, left_cols, left_cols_per_channel);
    made.right = matrix("right", right_addr, left_cols, right_cols, right_cols_per_channel);
    if (using_bias)
        made.bias = matrix("bias", bias_addr, 1, right_cols, right_cols_per_channel);
    check(&made);
    compute(&made);
    okk_record("left_rows=%d left_cols=%d right_cols=%d right_cols_per_channel=%d start_idx=%d using_bias=%d "
               "result_add=%d",
               left_rows, left_cols, right_cols, right_cols_per_channel, made.out.parts[0].npu, using_bias,
               result_add);
}
