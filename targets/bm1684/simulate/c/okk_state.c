/* The machine, the kernels, the call log and the ends of a program. */
#include "okk_model.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define KERNELS 64
#define REFUSED 3 /* the exit code */

struct okk_machine okk_machine;

static struct {
    const char *call;
    int number;
    enum okk_engine engine;
    bool initialized, parallel;
    char kind; /* of the BDC calls in this region: 'o' the interface's, 'n' the firmware's */
    FILE *calls;
} state;

static struct {
    const char *name;
    okk_kernel_func_t function;
} kernels[KERNELS];

void okk_register_kernel_func(const char *name, okk_kernel_func_t func)
{
    for (int at = 0; at < KERNELS; at++) {
        if (kernels[at].name == NULL) {
            kernels[at].name = name;
            kernels[at].function = func;
            return;
        }
    }
    okk_call("okk_register_kernel_func", OKK_BDC_ENGINE);
    okk_refuse("more than %d kernels", KERNELS);
}

okk_kernel_func_t okk_kernel(const char *name)
{
    for (int at = 0; at < KERNELS && kernels[at].name != NULL; at++)
        if (strcmp(kernels[at].name, name) == 0)
            return kernels[at].function;
    return NULL;
}

void *okk_memory(size_t bytes)
{
    void *found = calloc(bytes ? bytes : 1, 1);
    if (found == NULL)
        okk_refuse("%zu bytes of the host's memory are needed", bytes);
    return found;
}

void okk_begin(const char *calls_file)
{
    okk_call("okk_begin", OKK_BDC_ENGINE);
    okk_machine.local = okk_memory((size_t)okk_machine.npus * okk_machine.local_bytes);
    okk_machine.l2 = okk_memory(OKK_L2_BYTES);
    memset(okk_machine.l2, OKK_L2_EMPTY, OKK_L2_BYTES);
    okk_hazards_begin();
    state.calls = fopen(calls_file, "w");
    if (state.calls == NULL)
        okk_refuse("%s cannot be written", calls_file);
    state.number = 0;
}

void okk_end(void)
{
    if (state.parallel)
        okk_refuse("the kernel ends inside a parallel region");
    if (fclose(state.calls) != 0)
        okk_refuse("the list of calls cannot be written");
}

void okk_call(const char *name, enum okk_engine engine)
{
    state.call = name;
    state.engine = engine;
    state.number++;
    if (state.calls != NULL && !state.initialized)
        okk_refuse("okk_initialize has not been called");
    if (!state.parallel || engine != OKK_BDC_ENGINE || strcmp(name, "okk_parallel_end") == 0)
        return;
    if (state.kind && state.kind != name[0])
        okk_refuse("the region has calls of the interface and of the firmware, which count apart");
    state.kind = name[0];
}

void okk_refuse(const char *format, ...)
{
    va_list values;
    fprintf(stderr, "%s (call %d): ", state.call, state.number);
    va_start(values, format);
    vfprintf(stderr, format, values);
    va_end(values);
    fputc('\n', stderr);
    exit(REFUSED);
}

void okk_expect(const char *what, long long value, long long least, long long most)
{
    if (value < least || value > most)
        okk_refuse("%s is %lld, outside %lld..%lld", what, value, least, most);
}

void okk_record(const char *format, ...)
{
    va_list values;
    fprintf(state.calls, "%s ", state.call);
    va_start(values, format);
    vfprintf(state.calls, format, values);
    va_end(values);
    fputc('\n', state.calls);
}

enum okk_engine okk_engine(void)
{
    return state.engine;
}

void okk_initialize(void)
{
    state.initialized = true;
}

void okk_poll(void)
{
    okk_call("okk_poll", OKK_BDC_ENGINE);
}

bool okk_is_parallel_state(void)
{
    return state.parallel;
}

void okk_parallel_start(void)
{
    okk_call("okk_parallel_start", OKK_BDC_ENGINE);
    if (state.parallel)
        okk_refuse("the region before has not ended");
    state.parallel = true;
    state.kind = 0;
    fputs("okk_parallel_start\n", state.calls);
}

void okk_parallel_end(void)
{
    okk_call("okk_parallel_end", OKK_BDC_ENGINE);
    if (!state.parallel)
        okk_refuse("no region has started");
    state.parallel = false;
    fputs("okk_parallel_end\n", state.calls);
    okk_hazards_region_ends();
}
