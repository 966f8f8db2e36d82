/*
 * Kernels as tables: reads a line, finds the call by its name, checks the kinds of its arguments and makes it.
 *
 *     bdc_relu @0 @1024 (1,64,8,8) - -
 *
 * @ is an address of local memory, $3+128 byte 128 of region 3 of system memory, (..) a shape or strides, [..]
 * padding, <..> two numbers, =3f800000 a float by its bits, - NULL, 0 or 1 a bool. Lines `parallel_start`,
 * `parallel_end` and `layer N` have no call of either engine. Nothing is trusted: a malformed table ends the program.
 */
#define _POSIX_C_SOURCE 200809L
#include "okk_table.h"

#include <errno.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "okk_fix8b.h"

#define VALUES 16
#define LINE 4096
#define FARTHEST ((uint64_t)1 << 48) /* bytes into a region */

/* An argument: an address, up to four numbers, or nothing. */
struct value {
    char kind;
    uint64_t address;
    int numbers[4];
    float real;
    dim4 shape;
    Padding padding;
    dim2 pair;
};

static struct {
    int line;
    const uint64_t *addresses;
    int count;
} state;
static npuc_ids ids;

_Noreturn static void malformed(const char *format, ...) __attribute__((format(printf, 1, 2)));
static void malformed(const char *format, ...)
{
    va_list values;
    fflush(stdout);
    fprintf(stderr, "line %d: ", state.line);
    va_start(values, format);
    vfprintf(stderr, format, values);
    va_end(values);
    fputc('\n', stderr);
    _Exit(OKK_MALFORMED);
}

/* A whole number; `at` is advanced past it. */
static long long number(const char **at, int base, long long least, unsigned long long most)
{
    bool negative = **at == '-';
    const char *first = *at + negative;
    bool digit = (*first >= '0' && *first <= '9') || (base == 16 && *first >= 'a' && *first <= 'f');
    char *end;
    if (!digit)
        malformed("a number is missing");
    errno = 0;
    unsigned long long found = strtoull(first, &end, base);
    if (errno != 0 || found > most || (negative && found > (unsigned long long)-least))
        malformed("a number is too large");
    *at = end;
    return negative ? -(long long)found : (long long)found;
}

static int small_number(const char **at)
{
    return (int)number(at, 10, -(1LL << 31), INT32_MAX);
}

static void expect(const char **at, char wanted)
{
    if (**at != wanted)
        malformed("'%c' is missing", wanted);
    (*at)++;
}

/* Numbers between brackets. */
static void numbers(struct value *made, const char **at, char close, int count)
{
    for (int index = 0; index < count; index++) {
        if (index > 0)
            expect(at, ',');
        made->numbers[index] = small_number(at);
    }
    expect(at, close);
}

static void system_place(struct value *made, const char **at)
{
    long long region = number(at, 10, 0, INT32_MAX);
    expect(at, '+');
    uint64_t offset = (uint64_t)number(at, 10, 0, FARTHEST);
    if (region >= state.count)
        malformed("there is no region %lld", region);
    made->address = state.addresses[region] + offset;
}

static struct value value(const char *at)
{
    struct value made = {.kind = *at};
    const int *given = made.numbers;
    const bool bare = *at >= '0' && *at <= '9';
    if (bare || (*at == '-' && at[1] != '\0')) {
        made.kind = 'i';
        made.numbers[0] = small_number(&at);
    } else if (*at++ == '@') {
        made.address = (uint64_t)number(&at, 10, 0, UINT32_MAX);
    } else if (made.kind == '$') {
        system_place(&made, &at);
    } else if (made.kind == '=') {
        uint32_t bits = (uint32_t)number(&at, 16, 0, UINT32_MAX);
        memcpy(&made.real, &bits, sizeof bits);
    } else if (made.kind == '(') {
        numbers(&made, &at, ')', 4);
        made.shape = (dim4){given[0], given[1], given[2], given[3]};
    } else if (made.kind == '[') {
        numbers(&made, &at, ']', 4);
        made.padding = (Padding){given[0], given[1], given[2], given[3]};
    } else if (made.kind == '<') {
        numbers(&made, &at, '>', 2);
        made.pair = (dim2){given[0], given[1]};
    } else if (made.kind != '-') {
        malformed("an argument begins with '%c'", made.kind);
    }
    if (*at != '\0')
        malformed("an argument goes on with '%c'", *at);
    return made;
}

/* The calls, each with the kinds of its arguments: ? is a shape or NULL, b a bool. */
#define L(at) ((local_addr_t)v[at].address)
#define S(at) ((system_addr_t)v[at].address)
#define I(at) (v[at].numbers[0])
#define B(at) (v[at].numbers[0] != 0)
#define F(at) (v[at].real)
#define X(at) ((x32){.fp32 = v[at].real})
#define D(at) (v[at].kind == '-' ? NULL : &v[at].shape)
#define P(at) (&v[at].padding)
#define T(at) (&v[at].pair)
#define CALLS                                                                                                 \
    COPY(S2L, "@$(??", L, S) COPY(L2S, "$@(??", S, L) COPY(L2L, "@@(??", L, L) COPY(S2S, "$$(??", S, S)       \
    CALL(gdma_32bit_set_C_system, "$=(?", S(0), X(1), D(2), D(3))                                             \
    CALL(gdma_32bit_matrix_S2L, "@$iiii", L(0), S(1), I(2), I(3), I(4), I(5))                                 \
    CALL(gdma_32bit_matrix_L2S, "$@iiii", S(0), L(1), I(2), I(3), I(4), I(5))                                 \
    UNARY(32bit_cpy) UNARY(relu) UNARY(neg) UNARY(reciprocal)                                                 \
    CALL(bdc_32bit_set_C, "@=(?", L(0), X(1), D(2), D(3))                                                     \
    BINARY(add) BINARY(sub) BINARY(mul) BINARY(div) BINARY(mac) BINARY(max) BINARY(min)                       \
    CONSTANT(add_C) CONSTANT(sub_C) CONSTANT(C_sub) CONSTANT(mul_C) CONSTANT(div_C) CONSTANT(C_div)           \
    CONSTANT(mac_C) CONSTANT(max_C) CONSTANT(min_C)                                                           \
    CALL(bdc_bias, "@@@(??", L(0), L(1), L(2), D(3), D(4), D(5))                                              \
    CALL(bdc_scale, "@@@(??", L(0), L(1), L(2), D(3), D(4), D(5))                                             \
    CALL(bdc_scale_bias, "@@@@(??", L(0), L(1), L(2), L(3), D(4), D(5), D(6))                                 \
    CALL(bdc_sqrt, "@@(", L(0), L(1), D(2)) CALL(bdc_rsqrt, "@@(", L(0), L(1), D(2))                          \
    SERIES(exp_tunable) SERIES(sigmoid_tunable) SERIES(tanh_tunable)                                          \
    CALL(bdc_conv2d, "@@@@(iii??bb[<<", L(0), L(1), L(2), L(3), D(4), I(5), I(6), I(7), D(8), D(9), B(10),    \
         B(11), P(12), T(13), T(14))                                                                          \
    CALL(bdc_depthwise2d, "@@@@(iib[<<", L(0), L(1), L(2), L(3), D(4), I(5), I(6), B(7), P(8), T(9), T(10))   \
    CALL(bdc_max_pool2d, "@@(ii[<", L(0), L(1), D(2), I(3), I(4), P(5), T(6))                                 \
    CALL(bdc_avg_pool2d, "@@(ii[<", L(0), L(1), D(2), I(3), I(4), P(5), T(6))                                 \
    CALL(bdc_matmul, "@@@@iiiiibb", L(0), L(1), L(2), L(3), I(4), I(5), I(6), I(7), I(8), B(9), B(10))
#define FIX8B_CALLS                                                                                           \
    CALL(fix8b_conv2d, "@@@@(iii[<<ibbi", L(0), L(1), L(2), L(3), D(4), I(5), I(6), I(7), P(8), T(9), T(10),  \
         I(11), B(12), B(13), I(14))                                                                          \
    CALL(fix8b_depthwise2d, "@@@@(ii[<ibbi", L(0), L(1), L(2), L(3), D(4), I(5), I(6), P(7), T(8), I(9),      \
         B(10), B(11), I(12))                                                                                 \
    CALL(fix8b_max_pool2d, "@@(ii[<bi", L(0), L(1), D(2), I(3), I(4), P(5), T(6), B(7), I(8))                 \
    CALL(fix8b_product, "@@@@((iibbb", L(0), L(1), L(2), L(3), D(4), D(5), I(6), I(7), B(8), B(9), B(10))     \
    CALL(fix8b_lookup, "@@@(ii", L(0), L(1), L(2), D(3), I(4), I(5))                                          \
    CALL(fix8b_sum, "@@@@(<<bbb", L(0), L(1), L(2), L(3), D(4), T(5), T(6), B(7), B(8), B(9))                 \
    CALL(fix8b_rescale, "@@@(iibb", L(0), L(1), L(2), D(3), I(4), I(5), B(6), B(7))
#define TABLES CALL(fix8b_tables, "$i", S(0), I(1))
#define COPY(way, kinds, to, from) CALL(gdma_32bit_cpy_##way, kinds, to(0), from(1), D(2), D(3), D(4))
#define UNARY(name) CALL(bdc_##name, "@@(??", L(0), L(1), D(2), D(3), D(4))
#define BINARY(name) CALL(bdc_##name, "@@@(???", L(0), L(1), L(2), D(3), D(4), D(5), D(6))
#define CONSTANT(name) CALL(bdc_##name, "@@=(??", L(0), L(1), F(2), D(3), D(4), D(5))
#define SERIES(name) CALL(bdc_##name, "@@@(i", L(0), L(1), L(2), D(3), I(4))

#define CALL(name, kinds, ...)                                                                                \
    static void call_##name(const struct value *v)                                                            \
    {                                                                                                         \
        okk_##name(__VA_ARGS__);                                                                              \
    }
CALLS
#undef CALL
#define CALL(name, kinds, ...)                                                                                \
    static void call_##name(const struct value *v)                                                            \
    {                                                                                                         \
        npuc_##name(&ids, __VA_ARGS__);                                                                       \
    }
FIX8B_CALLS
#undef CALL
#define CALL(name, kinds, ...)                                                                                \
    static void call_##name(const struct value *v)                                                            \
    {                                                                                                         \
        npuc_##name(__VA_ARGS__);                                                                             \
    }
TABLES
#undef CALL

static const struct entry {
    const char *name, *kinds;
    void (*call)(const struct value *values);
} ENTRIES[] = {
#define CALL(name, kinds, ...) {#name, kinds, call_##name},
    CALLS
#undef CALL
#define CALL(name, kinds, ...) {"bdc_" #name, kinds, call_##name},
    FIX8B_CALLS
#undef CALL
#define CALL(name, kinds, ...) {"gdma_" #name, kinds, call_##name},
    TABLES
#undef CALL
};

static bool fits(char wanted, const struct value *given)
{
    switch (wanted) {
    case '?':
        return given->kind == '(' || given->kind == '-';
    case 'b':
        return given->kind == 'i' && (given->numbers[0] == 0 || given->numbers[0] == 1);
    default:
        return given->kind == wanted;
    }
}

static void make(const char *name, const struct value *values, size_t count)
{
    for (size_t at = 0; at < sizeof ENTRIES / sizeof *ENTRIES; at++) {
        const struct entry *entry = &ENTRIES[at];
        if (strcmp(entry->name, name) != 0)
            continue;
        if (count != strlen(entry->kinds))
            malformed("%s has %zu arguments, not %zu", entry->name, strlen(entry->kinds), count);
        for (size_t index = 0; index < count; index++)
            if (!fits(entry->kinds[index], &values[index]))
                malformed("argument %zu of %s is of another kind", index + 1, entry->name);
        entry->call(values);
        return;
    }
    malformed("there is no such call");
}

static void carry_out(char *line)
{
    struct value values[VALUES];
    size_t count = 0;
    char *rest, *name = strtok_r(line, " ", &rest);
    if (name == NULL)
        malformed("it is empty");
    for (char *word; (word = strtok_r(NULL, " ", &rest)) != NULL;) {
        if (count == VALUES)
            malformed("there are more than %d arguments", VALUES);
        values[count++] = value(word);
    }
    if (strcmp(name, "parallel_start") == 0 && count == 0)
        npuc_parallel_start(&ids);
    else if (strcmp(name, "parallel_end") == 0 && count == 0)
        npuc_parallel_end(&ids);
    else if (strcmp(name, "layer") != 0)
        make(name, values, count);
    else if (count != 1 || values[0].kind != 'i')
        malformed("a layer has one number");
}

void okk_table(const char *path, const uint64_t *addresses, int count)
{
    char line[LINE];
    FILE *file = fopen(path, "rb");
    state.line = 0;
    state.addresses = addresses;
    state.count = count;
    if (file == NULL)
        malformed("the table cannot be read");
    okk_initialize();
    while (fgets(line, sizeof line, file) != NULL) {
        size_t length = strlen(line);
        state.line++;
        if (length == 0 || line[length - 1] != '\n')
            malformed("it is longer than %d characters, or does not end", LINE - 2);
        line[length - 1] = '\0';
        carry_out(line);
    }
    fclose(file);
    okk_poll();
}
