/*
 * Runs a kernel on the model: system memory is a file that is changed in place, the arguments are in another, and
 * the call log is written to a third. A KERNEL that begins with @ names the file of a table of calls. Parts of
 * other files may be put into system memory, whole pages at page boundaries; those files are never changed.
 */
#define _POSIX_C_SOURCE 200809L

#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "okk_model.h"
#include "okk_table.h"

#define USAGE "KERNEL ARGUMENTS MEMORY CALLS NPUS LOCAL_BYTES LANES SYSTEM_START [AT FILE OFFSET BYTES]..."
#define GIVEN 9
#define OF_PART 4

/* A file mapped into memory, shared if writes are to be kept. */
static unsigned char *mapped(const char *path, int sharing, uint64_t *bytes)
{
    struct stat status;
    int file = open(path, O_RDWR);
    if (file < 0 || fstat(file, &status) != 0) {
        perror(path);
        exit(1);
    }
    *bytes = (uint64_t)status.st_size;
    void *found = mmap(NULL, (size_t)status.st_size, PROT_READ | PROT_WRITE, sharing, file, 0);
    if (found == MAP_FAILED) {
        perror(path);
        exit(1);
    }
    close(file);
    return found;
}

/* Maps a part of a file to a byte of system memory. */
static void put(uint64_t at, const char *path, uint64_t offset, uint64_t bytes)
{
    uint64_t all = okk_machine.system_bytes;
    int file = open(path, O_RDONLY);
    bool inside = at <= all && bytes <= all - at;
    if (file < 0 || !inside ||
        mmap(okk_machine.system + at, (size_t)bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED, file,
             (off_t)offset) == MAP_FAILED) {
        perror(path);
        exit(1);
    }
    close(file);
}

int main(int count, char **values)
{
    if (count < GIVEN || (count - GIVEN) % OF_PART != 0) {
        fprintf(stderr, "usage: %s %s\n", values[0], USAGE);
        return 2;
    }
    uint64_t argument_bytes;
    const void *arguments = mapped(values[2], MAP_PRIVATE, &argument_bytes);
    okk_machine.npus = atoi(values[5]);
    okk_machine.local_bytes = (uint32_t)strtoul(values[6], NULL, 10);
    okk_machine.lanes = atoi(values[7]);
    okk_machine.system_start = strtoull(values[8], NULL, 10);
    okk_machine.system = mapped(values[3], MAP_SHARED, &okk_machine.system_bytes);
    for (char **part = values + GIVEN; part < values + count; part += OF_PART)
        put(strtoull(part[0], NULL, 10), part[1], strtoull(part[2], NULL, 10), strtoull(part[3], NULL, 10));
    bool table = values[1][0] == '@';
    okk_kernel_func_t kernel = okk_kernel(values[1]);
    if (kernel == NULL && !table) {
        fprintf(stderr, "no kernel %s is registered\n", values[1]);
        return 2;
    }
    okk_begin(values[4]);
    if (table)
        okk_table(values[1] + 1, arguments, (int)(argument_bytes / sizeof(uint64_t)));
    else
        kernel(arguments);
    okk_end();
    return 0;
}
