/*
 * The history of every word of local memory: whether it was written, and which engines touched it in this region.
 *
 * GDMA and BDC overlap in a parallel region, each executing its own calls in order: a word that one of them writes
 * must not be touched by the other.
 */
#include "okk_model.h"

#include <stdlib.h>

/* A set for every word (4 bytes): written since the start, output of this call, accesses in this region. */
enum { WRITTEN = 1, OUTPUT = 2, FIRST_ENGINE = 4 };
#define READ_BY(engine) ((unsigned)FIRST_ENGINE << (2 * (engine)))
#define WRITTEN_BY(engine) ((unsigned)FIRST_ENGINE << (2 * (engine) + 1))

#define TOUCHED (1 << 25)

struct span {
    size_t first, behind; /* words of all local memory */
};

static struct {
    unsigned char *words; /* copied to a local variable in loops that write: bytes may alias the pointer itself */
    struct span *touched; /* in this region */
    size_t touched_count, touched_room;
} state;

void okk_hazards_begin(void)
{
    state.words = okk_memory((size_t)okk_machine.npus * okk_machine.local_bytes / 4);
}

void okk_hazards_region_ends(void)
{
    unsigned char *words = state.words;
    for (size_t at = 0; at < state.touched_count; at++) {
        struct span span = state.touched[at];
        for (size_t word = span.first; word < span.behind; word++)
            words[word] &= WRITTEN;
    }
    state.touched_count = 0;
}

/* Calls a function for every run of words that a tensor occupies. */
typedef void (*visit)(const struct okk_tensor *tensor, struct span words, enum okk_access access);

static void each_span(const struct okk_tensor *tensor, enum okk_access access, visit function)
{
    dim4 shape = tensor->shape, stride = tensor->stride;
    bool dense = okk_dense(shape, stride);
    int rows = dense ? 1 : shape.h, elements = dense ? shape.h * shape.w : shape.w;
    int columns = shape.w > 1 && stride.w != 1 ? shape.w : 1;
    size_t bytes = (size_t)(columns > 1 ? 1 : elements) * (size_t)tensor->bytes;
    bool together = dense && columns == 1 && stride.n == elements && bytes % 4 == 0; /* images, without a gap */
    int images = together ? 1 : shape.n;
    bytes *= together ? (size_t)shape.n : 1;
    for (int n = 0; n < images; n++)
        for (int c = 0; c < shape.c; c++)
            for (int row = 0; row < rows; row++)
                for (int column = 0; column < columns; column++) {
                    size_t element = (size_t)row * (size_t)stride.h + (size_t)column * (size_t)stride.w;
                    size_t first = (size_t)(okk_feature(tensor, n, c) - okk_machine.local);
                    first += element * (size_t)tensor->bytes;
                    function(tensor, (struct span){first / 4, (first + bytes + 3) / 4}, access);
                }
}

static unsigned flags_in(struct span words)
{
    unsigned all = 0;
    for (size_t word = words.first; word < words.behind; word++)
        all |= state.words[word];
    return all;
}

static void expect_written(const struct okk_tensor *tensor, struct span words)
{
    unsigned all = WRITTEN;
    for (size_t word = words.first; word < words.behind; word++)
        all &= state.words[word];
    if (!(all & WRITTEN))
        okk_refuse("%s is read at byte %zu of NPU %zu, which nothing has written", tensor->name,
                   words.first * 4 % okk_machine.local_bytes, words.first * 4 / okk_machine.local_bytes);
}

static void expect_no_hazard(const struct okk_tensor *tensor, struct span words, enum okk_access access)
{
    enum okk_engine engine = okk_engine(), other = engine == OKK_BDC_ENGINE ? OKK_GDMA_ENGINE : OKK_BDC_ENGINE;
    unsigned against = WRITTEN_BY(other) | (access == OKK_WRITE ? READ_BY(other) : 0u);
    unsigned found = flags_in(words) & against;
    if (found)
        okk_refuse("%s is %s in NPU %zu while %s %s it in the same parallel region", tensor->name,
                   access == OKK_WRITE ? "written" : "read", words.first * 4 / okk_machine.local_bytes,
                   engine == OKK_BDC_ENGINE ? "GDMA" : "BDC", found & WRITTEN_BY(other) ? "writes" : "reads");
}

static void remember(struct span words)
{
    if (state.touched_count == TOUCHED)
        okk_refuse("a parallel region touches more than %d pieces of memory", TOUCHED);
    if (state.touched_count == state.touched_room) {
        state.touched_room = 2 * state.touched_room + 1024;
        state.touched = realloc(state.touched, state.touched_room * sizeof *state.touched);
        if (state.touched == NULL)
            okk_refuse("the host's memory is full");
    }
    state.touched[state.touched_count++] = words;
}

static void touch_span(const struct okk_tensor *tensor, struct span words, enum okk_access access)
{
    unsigned flags = access == OKK_WRITE ? WRITTEN : 0;
    if (access == OKK_READ)
        expect_written(tensor, words);
    if (okk_is_parallel_state()) {
        expect_no_hazard(tensor, words, access);
        flags |= access == OKK_WRITE ? WRITTEN_BY(okk_engine()) : READ_BY(okk_engine());
        remember(words);
    }
    unsigned char *all = state.words;
    for (size_t word = words.first; word < words.behind; word++)
        all[word] |= (unsigned char)flags;
}

void okk_touch(const struct okk_tensor *tensor, enum okk_access access)
{
    long long elements = (long long)tensor->shape.n * okk_rows(tensor);
    long long area = (long long)tensor->shape.h * tensor->shape.w, most = okk_machine.local_bytes / tensor->bytes;
    if (access == OKK_WRITE && (area > most || elements > most / area))
        okk_refuse("elements of %s lie on each other", tensor->name);
    each_span(tensor, access, touch_span);
}

static void mark_output(const struct okk_tensor *tensor, struct span words, enum okk_access access)
{
    (void)tensor;
    unsigned char *all = state.words;
    for (size_t word = words.first; word < words.behind; word++)
        all[word] = (all[word] & ~OUTPUT & 0xFF) | (access == OKK_WRITE ? OUTPUT : 0);
}

static void expect_no_output(const struct okk_tensor *tensor, struct span words, enum okk_access access)
{
    (void)access;
    if (flags_in(words) & OUTPUT)
        okk_refuse("%s shares words with the output", tensor->name);
}

void okk_disjoint(const struct okk_tensor *output, const struct okk_tensor *input)
{
    each_span(output, OKK_WRITE, mark_output);
    each_span(input, OKK_READ, expect_no_output);
    each_span(output, OKK_READ, mark_output);
}
