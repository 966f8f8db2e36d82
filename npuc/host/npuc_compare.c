/*
 * Compares a device's results with those that npuc simulated: npuc_compare FOUND EXPECTED TYPE [ROOM [MASK]]
 *
 * Files hold raw little-endian elements. TYPE: int8, int16, float16 (compared bit by bit) or float32. ROOM: the
 * permitted error, of an integer absolute, of a float32 relative to the largest magnitude; 0 by default. MASK: a
 * file with a byte per element; where it is 0 the element is padding and is ignored. Exit status: 0 equal,
 * 1 different, 2 the files cannot be compared. Plain C99. Written by npuc.
 */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static unsigned char *contents(const char *path, size_t *bytes)
{
    FILE *file = fopen(path, "rb");
    unsigned char *data = NULL;
    long end;

    if (file == NULL || fseek(file, 0, SEEK_END) || (end = ftell(file)) < 0 || fseek(file, 0, SEEK_SET)) {
        perror(path);
        exit(2);
    }
    *bytes = (size_t)end;
    data = malloc(*bytes + 1);
    if (data == NULL || fread(data, 1, *bytes, file) != *bytes) {
        fprintf(stderr, "%s cannot be read\n", path);
        exit(2);
    }
    fclose(file);
    return data;
}

static double element(const unsigned char *data, size_t at, size_t bytes)
{
    uint32_t bits = 0;
    size_t each;
    float real;

    for (each = 0; each < bytes; each++)
        bits |= (uint32_t)data[at * bytes + each] << (8 * each);
    if (bytes == 1)
        return bits < 0x80 ? (double)bits : (double)bits - 0x100;
    if (bytes == 2)
        return bits < 0x8000 ? (double)bits : (double)bits - 0x10000;
    memcpy(&real, &bits, sizeof real);
    return real;
}

static int same(double expected, double found, double room)
{
    if (expected != expected || found != found)
        return expected != expected && found != found;
    return expected == found || fabs(expected - found) <= room;
}

int main(int count, char **values)
{
    size_t given, wanted, bytes, at, masked = 0, wrong = 0, first = 0;
    unsigned char *found, *expected, *mask = NULL;
    double room, most = 0;

    if (count < 4 || count > 6) {
        fprintf(stderr, "usage: %s FOUND EXPECTED int8|int16|float16|float32 [ROOM [MASK]]\n", values[0]);
        return 2;
    }
    bytes = strcmp(values[3], "int8") == 0 ? 1 : strcmp(values[3], "float32") == 0 ? 4 : 2;
    if (bytes == 2 && strcmp(values[3], "int16") != 0 && strcmp(values[3], "float16") != 0) {
        fprintf(stderr, "there is no type %s\n", values[3]);
        return 2;
    }
    found = contents(values[1], &given);
    expected = contents(values[2], &wanted);
    if (given != wanted || wanted % bytes) {
        fprintf(stderr, "%s has %lu bytes, %s has %lu\n", values[1], (unsigned long)given, values[2],
                (unsigned long)wanted);
        return 2;
    }
    mask = count == 6 ? contents(values[5], &masked) : NULL;
    if (mask != NULL && masked != wanted / bytes) {
        fprintf(stderr, "%s has %lu bytes, not one for each element\n", values[5], (unsigned long)masked);
        return 2;
    }
    room = count >= 5 ? strtod(values[4], NULL) : 0;
    for (at = 0; bytes == 4 && at < wanted / bytes; at++) {
        double size = fabs(element(expected, at, bytes));

        if (size > most && size < HUGE_VAL)
            most = size;
    }
    room *= bytes == 4 ? most : 1;
    for (at = 0; at < wanted / bytes; at++)
        if ((mask == NULL || mask[at]) && !same(element(expected, at, bytes), element(found, at, bytes), room)
            && wrong++ == 0)
            first = at;
    if (wrong)
        printf("%s: %lu of %lu elements differ, first: element %lu: expected %.9g, found %.9g\n", values[1],
               (unsigned long)wrong, (unsigned long)(wanted / bytes), (unsigned long)first,
               element(expected, first, bytes), element(found, first, bytes));
    else
        printf("%s: %lu elements as simulated\n", values[1], (unsigned long)(wanted / bytes));
    free(found);
    free(expected);
    free(mask);
    return wrong > 0;
}
