/* What exported kernels share: how their calls are written, and the runner of their tables of copies. */
#ifndef NPUC_KERNEL_H
#define NPUC_KERNEL_H

#include <stddef.h>

#include "okk.h"

#ifndef NPUC_DONE
#define NPUC_DONE(layer)  /* define it to inspect the result of each layer */
#endif
#define DIM4(n, c, h, w) (&(dim4){(n), (c), (h), (w)})
#define DIM2(h, w) (&(dim2){(h), (w)})
#define PADS(top, bottom, left, right) (&(Padding){(top), (bottom), (left), (right)})
#define SYSTEM(region, offset) (to->region + (system_addr_t)(offset))

typedef struct {
    local_addr_t to;
    int region;  /* of the arguments */
    system_addr_t offset;
    dim4 shape, to_stride, from_stride;
} npuc_copy;

/* Makes so many copies. regions: the addresses that the kernel was given. */
static inline void npuc_load(const system_addr_t *regions, const npuc_copy *copies, int count)
{
    for (const npuc_copy *each = copies; each < copies + count; each++)
        okk_gdma_32bit_cpy_S2L(each->to, regions[each->region] + each->offset, &each->shape, &each->to_stride,
                               &each->from_stride);
}

#endif
