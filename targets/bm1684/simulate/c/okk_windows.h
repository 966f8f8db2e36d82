/* What convolutions and pooling share: a window that moves over a padded input. */
#ifndef OKK_WINDOWS_H
#define OKK_WINDOWS_H

#include "okk_model.h"

struct okk_window {
    int kernel_h, kernel_w;
    Padding pad;
    dim2 stride, dilation, out;
};

/* A window and its outputs; refuses values beyond the registers. NULL: no padding, stride 1, dilation 1. */
struct okk_window okk_window(const dim4 *input, int kernel_h, int kernel_w, const Padding *padding,
                             const dim2 *stride, const dim2 *dilation);

/* The first and one past the last tap (0 .. kernel) of the output at `out` that lie inside 0 .. extent. */
void okk_taps(int out, int stride, int dilation, int pad, int kernel, int extent, int *first, int *behind);

#endif
