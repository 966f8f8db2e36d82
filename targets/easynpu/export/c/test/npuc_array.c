/*
 * The 16 PEs, each with psums of 32 bits, on one tile. The sub-ifmap of 16 input channels at a time goes into the
 * pads; every PE multiplies a pad entry by a weight of its own output channel and adds the product to a psum. After
 * the last channel, psums are requantised to int8, go through the words fused behind the layer, and into a DTCM.
 */
#include "npuc_array.h"

#include <stddef.h>
#include <string.h>

/* Pixels of the largest tile: those of all rows of PEs, within the range of the fields x and y. */
enum { POSITIONS = NPUC_PSUM_ENTRIES * NPUC_PE_ROWS < 64 * 64 ? NPUC_PSUM_ENTRIES * NPUC_PE_ROWS : 64 * 64 };

/* Entry, input channel; then group of 16 output channels, pixel of the tile, PE: psums, and int8 between words. */
static int8_t pads[NPUC_IFMAP_PAD_ENTRIES][PES];
static int32_t psums[256 / PES][POSITIONS][PES];
static int8_t results[256 / PES][POSITIONS][PES];

static int32_t signed_byte(uint8_t byte)
{
    return byte < 128 ? byte : (int32_t)byte - 256;
}

/* A weight word's lane. */
static int32_t parameter(uint32_t address, int32_t lane)
{
    const struct npuc_word *word = model_words_at(NPUC_WEIGHT, address, 1);

    return word == NULL ? 0 : signed_byte(word->lane[lane]);
}

/* 32 bits whose bytes are in the same lane of four words, the least significant first. */
static int32_t wide_parameter(uint32_t address, int32_t lane)
{
    uint32_t bits = 0;
    int32_t value, plane;

    for (plane = 3; plane >= 0; plane--) {
        bits = bits << 8 | (uint8_t)parameter(address + (uint32_t)plane, lane);
    }
    memcpy(&value, &bits, sizeof value);
    return value;
}

static int64_t pixel_address(const struct npuc_place *place, int32_t iy, int32_t ix, int32_t group)
{
    return place->base + (int64_t)iy * place->row + (int64_t)ix * place->pixel + (int64_t)group * place->group;
}

static void read_pixel(const struct npuc_place *place, int32_t iy, int32_t ix, int32_t group, int8_t *lanes)
{
    const struct npuc_word *word = model_words_at(place->memory, pixel_address(place, iy, ix, group), 1);
    int32_t lane;

    for (lane = 0; lane < PES; lane++) {
        lanes[lane] = (int8_t)(word == NULL ? 0 : signed_byte(word->lane[lane]));
    }
}

static void write_pixel(const struct npuc_place *place, int32_t iy, int32_t ix, int32_t group, const int8_t *lanes)
{
    struct npuc_word *word = model_words_at(place->memory, pixel_address(place, iy, ix, group), 1);

    if (word != NULL) {
        memcpy(word->lane, lanes, PES);
    }
}

/* The place of a map without an extension word: from the low end upwards, or mirrored, from the last word down. */
static struct npuc_place implicit(enum npuc_memory memory, int low, int32_t channels, int32_t width)
{
    const int32_t groups = (channels + PES - 1) / PES;
    struct npuc_place place;

    place.memory = memory;
    place.base = low ? 0 : NPUC_FMAP_WORDS - 1;
    place.row = low ? width * groups : -width * groups;
    place.pixel = low ? groups : -groups;
    place.group = low ? 1 : -1;
    return place;
}

/* The PEs. */

static int32_t sum(int32_t a, int32_t b)
{
    const int64_t exact = (int64_t)a + b;

    model_expect(exact >= INT32_MIN && exact <= INT32_MAX, "a psum leaves 32 bits");
    return (int32_t)(exact >= INT32_MIN && exact <= INT32_MAX ? exact : 0);
}

/* psum / 2^n rounded half up, for scale = -n; psum * 2^scale otherwise; saturated. */
static int8_t requantised(int32_t psum, int32_t scale)
{
    int64_t value = psum;

    if (scale < -31 || scale > 31) {
        model_expect(0, "a shift scale is not in -31..31");
        return 0;
    }
    if (scale < 0) {
        value += (int64_t)1 << (-scale - 1);
        value = value < 0 ? -((-value + ((int64_t)1 << -scale) - 1) >> -scale) : value >> -scale;
    } else {
        value *= (int64_t)1 << scale;
        model_expect(value >= INT32_MIN && value <= INT32_MAX, "a left shift leaves 32 bits");
    }
    return (int8_t)(value > 127 ? 127 : value < -128 ? -128 : value);
}

/* PEs with an output channel in a group of 16; the lanes of the others are zero in every map. */
static int32_t pes_of(const struct stage *stage, int32_t ozi)
{
    const int32_t left = stage->Co - PES * ozi;

    return left < PES ? left : PES;
}

/* The bias-scale block of 16 output channels. */
static uint32_t bias_scale_of(const struct stage *stage, int32_t ozi)
{
    return stage->block + (uint32_t)(BIAS_SCALE_WORDS * ozi);
}

/* Loads the sub-ifmap of 16 input channels; entries outside the map are padding. */
static void load_pads(const struct stage *stage, const struct npuc_place *ifmap, struct tile tile, int32_t kz)
{
    int32_t row, column;

    for (row = 0; row < stage->yi; row++) {
        for (column = 0; column < stage->xi; column++) {
            const int32_t iy = tile.oy * stage->Sh - stage->Ph + row;
            const int32_t ix = tile.ox * stage->Sw - stage->Pw + column;
            int8_t *entry = pads[row * stage->xi + column];
            if (iy >= 0 && iy < stage->Hi && ix >= 0 && ix < stage->Wi) {
                read_pixel(ifmap, iy, ix, kz, entry);
            } else {
                memset(entry, stage->op == MAXPOOL ? -128 : 0, PES);
            }
        }
    }
}

/* A fused bn takes its ifmap from the previous word. */
static void load_pads_from_results(const struct stage *stage, struct tile tile, int32_t kz)
{
    int32_t oyi, oxi;

    for (oyi = 0; oyi < tile.rows; oyi++) {
        for (oxi = 0; oxi < tile.columns; oxi++) {
            memcpy(pads[oyi * stage->xi + oxi], results[kz][oyi * stage->x + oxi], PES);
        }
    }
}

static void begin_psums(const struct stage *stage)
{
    int32_t ozi, pixel, pe;

    for (ozi = 0; ozi < stage->Zs; ozi++) {
        for (pe = 0; pe < pes_of(stage, ozi); pe++) {
            const int32_t bias = stage->op == MAXPOOL ? -128 : wide_parameter(bias_scale_of(stage, ozi), pe);
            model_expect(!stage->continues || bias == 0, "a bias where psums are kept");
            for (pixel = 0; !stage->continues && pixel < stage->y * stage->x; pixel++) {
                psums[ozi][pixel][pe] = bias;
            }
        }
    }
}

/* One word of weights with all pixels of the tile: a dense weight takes input channel kzi, another its own. */
static void sweep_pixels(const struct stage *stage, struct tile tile, int32_t ozi, int32_t hki, int32_t wki,
                         uint32_t address, int32_t kzi)
{
    const int32_t pes = pes_of(stage, ozi);
    int32_t oyi, oxi, pe, w[PES];

    for (pe = 0; stage->op != MAXPOOL && pe < pes; pe++) {
        w[pe] = parameter(address, pe);
    }
    for (oyi = 0; oyi < tile.rows; oyi++) {
        for (oxi = 0; oxi < tile.columns; oxi++) {
            const int32_t row = stage->Sh * oyi + hki * (stage->Dh + 1);
            const int32_t column = stage->Sw * oxi + wki * (stage->Dw + 1);
            const int8_t *entry = pads[row * stage->xi + column];
            int32_t *psum = psums[ozi][oyi * stage->x + oxi];
            for (pe = 0; pe < pes; pe++) {
                if (stage->op == MAXPOOL) {
                    psum[pe] = entry[pe] > psum[pe] ? entry[pe] : psum[pe];
                } else {
                    psum[pe] = sum(psum[pe], entry[model_is_dense(stage) ? kzi : pe] * w[pe]);
                }
            }
        }
    }
}

/* The loop nest over 16 input channels whose sub-ifmap is in the pads. */
static void sweep_channels(const struct stage *stage, struct tile tile, int32_t kz)
{
    const uint32_t weights = stage->block + (uint32_t)(BIAS_SCALE_WORDS * stage->Zs);
    const int32_t left = stage->Ci - PES * kz;
    const int32_t channels = !model_is_dense(stage) ? 1 : left < PES ? left : PES;
    int32_t kzi, hki, wki, ozi;

    for (kzi = 0; kzi < channels; kzi++) {
        for (hki = 0; hki < stage->Hk; hki++) {
            for (wki = 0; wki < stage->Wk; wki++) {
                const int32_t plane = model_is_dense(stage) ? PES * kz + kzi : kz;
                const int32_t tap = (plane * stage->Hk + hki) * stage->Wk + wki;
                if (model_is_dense(stage)) {
                    for (ozi = 0; ozi < stage->Zs; ozi++) {
                        sweep_pixels(stage, tile, ozi, hki, wki, weights + (uint32_t)(tap * stage->Zs + ozi), kzi);
                    }
                } else {
                    sweep_pixels(stage, tile, kz, hki, wki, weights + (uint32_t)tap, 0);
                }
            }
        }
    }
}

static void requantise_psums(const struct stage *stage, struct tile tile)
{
    const int relu = stage->op == CONV_RELU || stage->op == DWCONV_RELU;
    int32_t ozi, oyi, oxi, pe;

    for (ozi = 0; ozi < stage->Zs; ozi++) {
        const uint32_t scales = bias_scale_of(stage, ozi) + BIAS_SCALE_WORDS - 1;
        for (pe = 0; pe < pes_of(stage, ozi); pe++) {
            const int32_t scale = stage->op == MAXPOOL ? 0 : parameter(scales, pe);
            for (oyi = 0; oyi < tile.rows; oyi++) {
                for (oxi = 0; oxi < tile.columns; oxi++) {
                    const int32_t pixel = oyi * stage->x + oxi;
                    const int8_t value = requantised(psums[ozi][pixel][pe], scale);
                    results[ozi][pixel][pe] = relu && value < 0 ? 0 : value;
                }
            }
        }
    }
}

static void sweep_window(const struct stage *stage, const struct stage *head, const struct npuc_place *ifmap,
                         struct tile tile)
{
    int32_t kz;

    begin_psums(stage);
    for (kz = 0; kz < (stage->Ci + PES - 1) / PES; kz++) {
        if (stage == head || stage->continues) {
            load_pads(stage, ifmap, tile, kz);
        } else {
            load_pads_from_results(stage, tile, kz);
        }
        sweep_channels(stage, tile, kz);
    }
    if (!stage->keeps) {
        requantise_psums(stage, tile);
    }
}

static int8_t looked_up(const struct stage *stage, int32_t value)
{
    int32_t segment = 0;

    while (segment < PES - 1 && parameter(stage->block + 5, segment + 1) <= value) {
        segment++;
    }
    return requantised(sum(parameter(stage->block + 4, segment) * value, wide_parameter(stage->block, segment)),
                       parameter(stage->block + 6, segment));
}

static int8_t sloped(const struct stage *stage, int32_t ozi, int32_t pe, int32_t value)
{
    const uint32_t at = stage->block + (uint32_t)(SLOPE_WORDS * ozi) + (value < 0 ? 2 : 0);

    return requantised(parameter(at, pe) * value, parameter(at + 1, pe));
}

static int8_t combined(const struct stage *stage, int32_t ozi, int32_t pe, int32_t value, int32_t other)
{
    const uint32_t at = bias_scale_of(stage, ozi);

    model_expect(wide_parameter(at, pe) == 0, "a bias in the block of a sum or product");
    return requantised(stage->op == ADD ? value + other : value * other, parameter(at + BIAS_SCALE_WORDS - 1, pe));
}

/* relu, act, prelu, add, mul of one pixel's word; a reshape passes it on. */
static void pointwise(const struct stage *stage, int32_t ozi, const int8_t *other, int8_t *lanes)
{
    int32_t pe;

    for (pe = 0; pe < pes_of(stage, ozi); pe++) {
        const int8_t value = lanes[pe];
        switch (stage->op) {
        case RELU:
            lanes[pe] = value < 0 ? 0 : value;
            break;
        case ACT:
            lanes[pe] = looked_up(stage, value);
            break;
        case PRELU:
            lanes[pe] = sloped(stage, ozi, pe, value);
            break;
        case RESHAPE:
            break;
        default:
            lanes[pe] = combined(stage, ozi, pe, value, other[pe]);
            break;
        }
    }
}

static void pass_pixels(const struct stage *stage, const struct stage *head, const struct npuc_place *ifmap,
                        const struct npuc_place *operand, struct tile tile)
{
    int32_t ozi, oyi, oxi;

    for (ozi = 0; ozi < stage->Zs; ozi++) {
        for (oyi = 0; oyi < tile.rows; oyi++) {
            for (oxi = 0; oxi < tile.columns; oxi++) {
                int8_t *lanes = results[ozi][oyi * stage->x + oxi], other[PES] = {0};
                if (stage == head) {
                    read_pixel(ifmap, tile.oy + oyi, tile.ox + oxi, ozi, lanes);
                }
                if (stage->op == ADD || stage->op == MUL) {
                    read_pixel(operand, tile.oy + oyi, tile.ox + oxi, ozi, other);
                }
                pointwise(stage, ozi, other, lanes);
            }
        }
    }
}

static void write_results(const struct stage *stage, const struct npuc_place *place, struct tile tile)
{
    int8_t lanes[PES];
    int32_t ozi, oyi, oxi;

    for (ozi = 0; ozi < stage->Zs; ozi++) {
        for (oyi = 0; oyi < tile.rows; oyi++) {
            for (oxi = 0; oxi < tile.columns; oxi++) {
                memset(lanes, 0, sizeof lanes);
                memcpy(lanes, results[ozi][oyi * stage->x + oxi], (size_t)pes_of(stage, ozi));
                write_pixel(place, tile.oy + oyi, tile.ox + oxi, ozi, lanes);
            }
        }
    }
}

/* Writes an element to its place in the rearranged map; the first of a group clears the lanes without a channel. */
static void write_element(const struct stage *stage, const struct npuc_place *place, int32_t row, int32_t column,
                          int32_t channel, int8_t value)
{
    struct npuc_word *word;

    model_rearranged(stage, &row, &column, &channel);
    word = model_words_at(place->memory, pixel_address(place, row, column, channel / PES), 1);
    if (word != NULL) {
        const int32_t left = stage->reshape.Co - channel;
        if (channel % PES == 0 && left < PES) {
            memset(&word->lane[left], 0, (size_t)(PES - left));
        }
        word->lane[channel % PES] = (uint8_t)value;
    }
}

static void write_rearranged(const struct stage *stage, const struct npuc_place *place, struct tile tile)
{
    int32_t channel, oyi, oxi;

    for (oyi = 0; oyi < tile.rows; oyi++) {
        for (oxi = 0; oxi < tile.columns; oxi++) {
            for (channel = 0; channel < stage->Co; channel++) {
                write_element(stage, place, tile.oy + oyi, tile.ox + oxi, channel,
                              results[channel / PES][oyi * stage->x + oxi][channel % PES]);
            }
        }
    }
}

/* The place in an extension word, or the implicit one. */
static const struct npuc_place *place_of(const struct stage *stage, int role, const struct npuc_place *otherwise)
{
    return stage->given[role - SRC] ? &stage->operand[role - SRC] : otherwise;
}

void model_run_tile(const struct stage *chain, int stages, int low, struct tile tile)
{
    const struct stage *last = &chain[stages - 1], *stage;
    const struct npuc_place ofmap = implicit(NPUC_FMAP, !low, last->op == RESHAPE ? last->reshape.Co : last->Co,
                                             last->op == RESHAPE ? last->reshape.Wo : last->Wo);
    const struct npuc_place kept = implicit(NPUC_SKIP, 1, last->Co, last->Wo);

    for (stage = chain; stage <= last; stage++) {
        const struct npuc_place current = implicit(NPUC_FMAP, low, stage->Ci, stage->Wi);
        const struct npuc_place *ifmap = place_of(stage, SRC, &current);

        if (model_multiplies(stage) || stage->op == MAXPOOL) {
            sweep_window(stage, chain, ifmap, tile);
        } else {
            pass_pixels(stage, chain, ifmap, place_of(stage, OPB, &kept), tile);
        }
        if (stage->stored) {
            write_results(stage, place_of(stage, STO, &kept), tile);
        }
    }
    if (last->keeps) {
        return; /* its psums are kept for the next chain */
    }
    if (last->op == RESHAPE) {
        write_rearranged(last, place_of(last, DST, &ofmap), tile);
    } else {
        write_results(last, place_of(last, DST, &ofmap), tile);
    }
}
