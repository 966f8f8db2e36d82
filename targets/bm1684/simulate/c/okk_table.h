/* Kernels as tables: the calls of a program, one per line, executed in sequence. */
#ifndef OKK_TABLE_H
#define OKK_TABLE_H

#include <stdint.h>

#define OKK_MALFORMED 4 /* the exit code for a malformed table */

/* Makes the calls of a table in a file; addresses: where the regions of system memory start. */
void okk_table(const char *path, const uint64_t *addresses, int count);

#endif
