/* Kernels as tables: the calls of a program, one a line, carried out one after another. */
#ifndef OKK_TABLE_H
#define OKK_TABLE_H

#include <stdint.h>

#define OKK_MALFORMED 4 /* the exit code where a table is none */

/* Makes the calls of a table in a file; addresses: where the regions of system memory start. */
void okk_table(const char *path, const uint64_t *addresses, int count);

#endif
