/* Runs of the machine, with transfers of feature maps before and behind. */
#include "npuc_driver.h"

#include <stddef.h>

#define LANES 16u

/* The most words transferred in one call: 16 bytes of stack each. */
#ifndef NPUC_BURST_WORDS
#define NPUC_BURST_WORDS 32
#endif

struct pixel_group {
    uint32_t y, x, group;
};

static uint32_t in_ascending_order(uint32_t index, uint32_t extent, int32_t pitch)
{
    return pitch < 0 ? extent - 1 - index : index;
}

/* The n-th word of a window, numbered so that neighbours in memory are consecutive. */
static struct pixel_group word_of(const struct npuc_move *move, uint32_t n)
{
    const uint32_t groups = (move->size.channels + LANES - 1) / LANES;
    const uint32_t pixel = n / groups;
    struct pixel_group at;

    at.group = in_ascending_order(n % groups, groups, move->place.group);
    at.x = in_ascending_order(pixel % move->size.width, move->size.width, move->place.pixel);
    at.y = in_ascending_order(pixel / move->size.width, move->size.height, move->place.row);
    return at;
}

static uint32_t address_of(const struct npuc_place *place, struct pixel_group at)
{
    return (uint32_t)(place->base + (int32_t)at.y * place->row + (int32_t)at.x * place->pixel +
                      (int32_t)at.group * place->group);
}

/* The position in the tensor of a lane of a word, or -1 beyond the window's last channel. */
static int32_t element_of(const struct npuc_move *move, struct pixel_group at, uint32_t lane)
{
    const struct npuc_extent *whole = &move->whole, *start = &move->start;
    const uint32_t channel = LANES * at.group + lane;

    if (channel >= move->size.channels) {
        return -1;
    }
    return (int32_t)(((start->channels + channel) * whole->height + start->height + at.y) * whole->width +
                     start->width + at.x);
}

static void pack(const struct npuc_move *move, uint32_t n, const int8_t *tensor, struct npuc_word *word)
{
    const struct pixel_group at = word_of(move, n);
    uint32_t lane;

    for (lane = 0; lane < LANES; lane++) {
        const int32_t element = element_of(move, at, lane);
        word->lane[lane] = element < 0 ? 0 : (uint8_t)tensor[element];
    }
}

static void unpack(const struct npuc_move *move, uint32_t n, const struct npuc_word *word, int8_t *tensor)
{
    const struct pixel_group at = word_of(move, n);
    uint32_t lane;

    for (lane = 0; lane < LANES; lane++) {
        const int32_t element = element_of(move, at, lane);
        if (element >= 0) {
            tensor[element] = (int8_t)(word->lane[lane] < 128 ? word->lane[lane] : word->lane[lane] - 256);
        }
    }
}

/* The number of consecutive words from the n-th on, at most those of one call. */
static uint32_t burst(const struct npuc_move *move, uint32_t n, uint32_t total)
{
    const uint32_t first = address_of(&move->place, word_of(move, n));
    uint32_t count = 1;

    while (count < NPUC_BURST_WORDS && n + count < total &&
           address_of(&move->place, word_of(move, n + count)) == first + count) {
        count++;
    }
    return count;
}

static uint32_t words_of(const struct npuc_move *move)
{
    return move->size.height * move->size.width * ((move->size.channels + LANES - 1) / LANES);
}

static int load(const struct npuc_move *move, const int8_t *tensor)
{
    struct npuc_word words[NPUC_BURST_WORDS];
    const uint32_t total = words_of(move);
    uint32_t n, i, count;
    int failed;

    for (n = 0; n < total; n += count) {
        count = burst(move, n, total);
        for (i = 0; i < count; i++) {
            pack(move, n + i, tensor, &words[i]);
        }
        failed = npuc_write(move->place.memory, address_of(&move->place, word_of(move, n)), words, count);
        if (failed) {
            return failed;
        }
    }
    return 0;
}

static int store(const struct npuc_move *move, int8_t *tensor)
{
    struct npuc_word words[NPUC_BURST_WORDS];
    const uint32_t total = words_of(move);
    uint32_t n, i, count;
    int failed;

    for (n = 0; n < total; n += count) {
        count = burst(move, n, total);
        failed = npuc_read(move->place.memory, address_of(&move->place, word_of(move, n)), words, count);
        if (failed) {
            return failed;
        }
        for (i = 0; i < count; i++) {
            unpack(move, n + i, &words[i], tensor);
        }
    }
    return 0;
}

void *npuc_to(const struct npuc_inference *all, uint32_t tensor)
{
    const struct npuc_buffer *buffer = &all->buffers[tensor];

    return buffer->where == NPUC_OUTPUT ? all->outputs[buffer->at] : all->arena + buffer->at;
}

const void *npuc_from(const struct npuc_inference *all, uint32_t tensor)
{
    const struct npuc_buffer *buffer = &all->buffers[tensor];

    if (buffer->where == NPUC_CONSTANT) {
        return buffer->constant;
    }
    return buffer->where == NPUC_INPUT ? all->inputs[buffer->at] : npuc_to(all, tensor);
}

static int load_images(const struct npuc_image *images, uint32_t count)
{
    uint32_t i;
    int failed = 0;

    for (i = 0; !failed && i < count; i++) {
        failed = npuc_write(images[i].memory, images[i].address, images[i].words, images[i].count);
    }
    return failed;
}

static int load_maps(const struct npuc_move *loads, uint32_t count, const struct npuc_inference *all)
{
    uint32_t i;
    int failed = 0;

    for (i = 0; !failed && i < count; i++) {
        failed = load(&loads[i], npuc_from(all, loads[i].tensor));
    }
    return failed;
}

static int load_ahead(const struct npuc_segment *segment, const struct npuc_inference *all)
{
    int failed = load_images(segment->ahead_images, segment->ahead_image_count);

    return failed ? failed : load_maps(segment->ahead_loads, segment->ahead_load_count, all);
}

static int execute(const struct npuc_segment *segment, const struct npuc_inference *all)
{
#ifdef NPUC_OVERLAP
    int ended, failed = npuc_start(segment->instructions);

    if (failed) {
        return failed;
    }
    failed = load_ahead(segment, all);
    ended = npuc_wait(); /* no run goes on behind a load that failed */
    return failed ? failed : ended;
#else
    int failed = npuc_execute(segment->instructions);

    return failed ? failed : load_ahead(segment, all);
#endif
}

static int run_segment(const struct npuc_segment *segment, const struct npuc_inference *all)
{
    uint32_t i;
    int failed = load_images(segment->images, segment->image_count);

    if (!failed) {
        failed = load_maps(segment->loads, segment->load_count, all);
    }
    if (!failed) {
        failed = execute(segment, all);
    }
    for (i = 0; !failed && i < segment->store_count; i++) {
        failed = store(&segment->stores[i], npuc_to(all, segment->stores[i].tensor));
    }
    return failed;
}

static int meets(const struct npuc_requirement *wanted, uint32_t value)
{
    switch (wanted->demand) {
    case NPUC_EQUAL:
        return value == wanted->value;
    case NPUC_AT_LEAST:
        return value >= wanted->value;
    default:
        return (value & wanted->value) == wanted->value;
    }
}

int npuc_check(const struct npuc_program *program, npuc_register *read)
{
    uint32_t i;

    for (i = 0; i < program->requirement_count; i++) {
        const struct npuc_requirement *wanted = &program->requirements[i];
        uint32_t value = 0;
        const int failed = read(wanted->number, &value);

        if (failed) {
            return failed;
        }
        if (!meets(wanted, value)) {
            return NPUC_UNFIT - (int)wanted->number;
        }
    }
    return 0;
}

int npuc_init(const struct npuc_program *program)
{
    return load_images(program->init, program->init_count);
}

int npuc_play(const struct npuc_segment *segments, uint32_t count, const struct npuc_inference *all)
{
    uint32_t i;
    int failed = 0;

    for (i = 0; !failed && i < count; i++) {
        failed = run_segment(&segments[i], all);
    }
    return failed;
}

int npuc_infer(const struct npuc_program *program, const void *const *inputs, void *const *outputs, void *arena)
{
    struct npuc_inference all;

    all.buffers = program->buffers;
    all.inputs = inputs;
    all.outputs = outputs;
    all.arena = arena;
    return program->steps(&all);
}
