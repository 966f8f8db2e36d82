/*
 * EasyNPU as its document describes it, in software: memories, and instruction words as fused chains. The work of a
 * chain on one tile is in npuc_array.c. Written for clarity, not for speed.
 */
#include "npuc_model.h"

#include <stddef.h>
#include <string.h>

#include "npuc_array.h"

static int32_t kept[6]; /* of the word whose psums are in the pads: Ho, Wo, Co, y, x, dense; 0: none */
static struct npuc_word itcm[NPUC_ITCM_WORDS], weight[NPUC_WEIGHT_WORDS];
static struct npuc_word fmap[NPUC_FMAP_WORDS], skip[NPUC_SKIP_WORDS];

static struct stage chain[NPUC_ITCM_WORDS + 1];
static const char *fault;

void model_expect(int holds, const char *otherwise)
{
    if (!holds && fault == NULL) {
        fault = otherwise;
    }
}

const char *npuc_model_fault(void)
{
    return fault;
}

void npuc_model_power_up(void)
{
    memset(itcm, 0xA5, sizeof itcm);
    memset(weight, 0xA5, sizeof weight);
    memset(fmap, 0xA5, sizeof fmap);
    memset(skip, 0xA5, sizeof skip);
}

/* The memories. */

static struct npuc_word *memory_of(enum npuc_memory memory, uint32_t *words)
{
    switch (memory) {
    case NPUC_ITCM:
        *words = NPUC_ITCM_WORDS;
        return itcm;
    case NPUC_WEIGHT:
        *words = NPUC_WEIGHT_WORDS;
        return weight;
    case NPUC_FMAP:
        *words = NPUC_FMAP_WORDS;
        return fmap;
    default:
        *words = NPUC_SKIP_WORDS;
        return skip;
    }
}

struct npuc_word *model_words_at(enum npuc_memory memory, int64_t address, uint32_t count)
{
    uint32_t words;
    struct npuc_word *first = memory_of(memory, &words);

    model_expect(address >= 0 && address + count <= words, "words beyond the end of a memory are addressed");
    return fault == NULL ? first + address : NULL;
}

int npuc_write(enum npuc_memory memory, uint32_t address, const struct npuc_word *words, uint32_t count)
{
    struct npuc_word *place = model_words_at(memory, address, count);

    if (place == NULL) {
        return 1;
    }
    memcpy(place, words, count * sizeof *words);
    return 0;
}

int npuc_read(enum npuc_memory memory, uint32_t address, struct npuc_word *words, uint32_t count)
{
    const struct npuc_word *place = model_words_at(memory, address, count);

    if (place == NULL) {
        return 1;
    }
    memcpy(words, place, count * sizeof *words);
    return 0;
}

/* The version of the instruction set; src, dst, opb, sto, ctl, halt, dwconv_relu and prelu; the sizes. */
static const uint32_t registers[] = {
    1,
    0x1FF,
    NPUC_PE_ROWS,
    NPUC_IFMAP_PAD_ENTRIES,
    NPUC_PSUM_ENTRIES,
    NPUC_WEIGHT_PAD_ENTRIES,
    NPUC_PARAMETER_PAD_ENTRIES,
    NPUC_FMAP_WORDS,
    NPUC_SKIP_WORDS,
    NPUC_WEIGHT_WORDS,
    NPUC_ITCM_WORDS,
};

int npuc_model_register(uint32_t number, uint32_t *value)
{
    const uint32_t first = 4;

    if (number < first || number - first >= sizeof registers / sizeof *registers) {
        return 1;
    }
    *value = registers[number - first];
    return 0;
}

/* Fused chains of instruction words. */

/* Bits low .. low + width - 1 of a word. */
static int32_t field(const struct npuc_word *word, uint32_t low, uint32_t width)
{
    uint32_t value = 0, bit;

    for (bit = 0; bit < width; bit++) {
        const uint32_t at = low + bit;
        value |= (uint32_t)(word->lane[at / 8] >> at % 8 & 1) << bit;
    }
    return (int32_t)value;
}

static void decode_layer(const struct npuc_word *word, struct stage *stage)
{
    /* the flags are those of 0xx_xxx_xx */
    stage->op = word->lane[0] < RESHAPE ? word->lane[0] & ~(uint32_t)(FUSED | STORED) : word->lane[0];
    stage->fused = word->lane[0] & FUSED;
    stage->stored = word->lane[0] & STORED;
    stage->Sh = field(word, 8, 4);
    stage->Sw = field(word, 12, 4);
    stage->Ph = field(word, 16, 4);
    stage->Pw = field(word, 20, 4);
    stage->Dh = field(word, 24, 4);
    stage->Dw = field(word, 28, 4);
    stage->y = field(word, 32, 6) + 1;
    stage->x = field(word, 38, 6) + 1;
    stage->yi = field(word, 44, 6) + 1;
    stage->xi = field(word, 50, 6) + 1;
    stage->Hk = field(word, 56, 8) + 1;
    stage->Wk = field(word, 64, 8) + 1;
    stage->Ho = field(word, 72, 8) + 1;
    stage->Wo = field(word, 80, 8) + 1;
    stage->Co = field(word, 88, 8) + 1;
    stage->Ci = field(word, 96, 8) + 1;
    stage->Zs = field(word, 104, 8) + 1;
    stage->Hi = field(word, 112, 8) + 1;
    stage->Wi = field(word, 120, 8) + 1;
}

/* A reshape word as a pass over the pixels of its map, with the tile of the words that it follows. */
static void decode_reshape(const struct npuc_word *word, const struct stage *head, struct stage *stage)
{
    struct reshape *reshape = &stage->reshape;
    uint32_t dimension;

    stage->op = RESHAPE;
    stage->Hk = stage->Wk = stage->Sh = stage->Sw = 1;
    stage->y = stage->yi = head == stage ? 1 : head->y;
    stage->x = stage->xi = head == stage ? 1 : head->x;
    stage->Ci = stage->Co = field(word, 96, 8) + 1;
    stage->Hi = stage->Ho = field(word, 112, 8) + 1;
    stage->Wi = stage->Wo = field(word, 120, 8) + 1;
    stage->Zs = (stage->Co + PES - 1) / PES;
    reshape->perm = field(word, 8, 5);
    reshape->minor = field(word, 16, 4);
    reshape->insert = field(word, 20, 4);
    for (dimension = 0; dimension < 4; dimension++) {
        reshape->parts[dimension] = field(word, 32 + 8 * dimension, 8) + 1;
        reshape->onto[dimension] = field(word, 64 + 2 * dimension, 2);
    }
    reshape->Ho = field(word, 72, 8) + 1;
    reshape->Wo = field(word, 80, 8) + 1;
    reshape->Co = field(word, 88, 8) + 1;
}

static void decode_operand(const struct npuc_word *word, struct stage *stage)
{
    const int role = word->lane[0] - SRC;
    struct npuc_place *place = &stage->operand[role];

    model_expect(field(word, 8, 8) < 2, "an operand lies in neither DTCM");
    model_expect(!stage->given[role], "a second extension word of its kind before one layer word");
    place->memory = field(word, 8, 8) ? NPUC_SKIP : NPUC_FMAP;
    place->base = field(word, 16, 24);
    place->row = field(word, 40, 24);
    place->pixel = field(word, 64, 24);
    place->group = field(word, 88, 24);
    stage->given[role] = 1;
}

int model_is_dense(const struct stage *stage)
{
    return stage->op == CONV || stage->op == CONV_RELU;
}

int model_multiplies(const struct stage *stage)
{
    return model_is_dense(stage) || stage->op == DWCONV || stage->op == DWCONV_RELU || stage->op == BN ||
           stage->op == AVGPOOL;
}

static int32_t block_words(const struct stage *stage)
{
    const int32_t taps = stage->Hk * stage->Wk * (model_is_dense(stage) ? stage->Ci : 1);

    switch (stage->op) {
    case RELU:
    case MAXPOOL:
    case RESHAPE:
        return 0;
    case ACT:
        return TABLE_WORDS;
    case PRELU:
        return SLOPE_WORDS * stage->Zs;
    case ADD:
    case MUL:
        return BIAS_SCALE_WORDS * stage->Zs;
    default:
        return (BIAS_SCALE_WORDS + taps) * stage->Zs;
    }
}

/* Whether an output depends on anything but the input of the same pixel. */
static int has_window(const struct stage *stage)
{
    return stage->Hk != 1 || stage->Wk != 1 || stage->Sh != 1 || stage->Sw != 1 || stage->Ph != 0 ||
           stage->Pw != 0 || stage->Hi != stage->Ho || stage->Wi != stage->Wo;
}

static void check_geometry(const struct stage *stage)
{
    const int32_t rows = (stage->y - 1) * stage->Sh + (stage->Hk - 1) * (stage->Dh + 1) + 1;
    const int32_t columns = (stage->x - 1) * stage->Sw + (stage->Wk - 1) * (stage->Dw + 1) + 1;
    const int32_t positions = (stage->y * stage->x + NPUC_PE_ROWS - 1) / NPUC_PE_ROWS; /* of a row of PEs */

    model_expect(stage->Zs == (stage->Co + PES - 1) / PES, "Zs is not the groups of 16 output channels");
    model_expect(model_is_dense(stage) || stage->Ci == stage->Co, "a channel-wise word has Ci != Co");
    model_expect(stage->yi == rows && stage->xi == columns, "y' x' contradict the tile");
    model_expect(rows * columns <= NPUC_IFMAP_PAD_ENTRIES, "a sub-ifmap exceeds the pads");
    model_expect(positions * (model_is_dense(stage) ? stage->Zs : 1) <= NPUC_PSUM_ENTRIES,
                 "a tile exceeds the psums");
}

/* Refuses extension words without effect. */
static void check_operands(const struct stage *stage, const struct stage *head)
{
    model_expect(!stage->given[0] || stage == head || stage->continues, "a src word before a word without an ifmap");
    model_expect(!stage->given[DST - SRC] || !(stage->fused || stage->keeps),
                 "a dst word before a word that is continued");
    model_expect(!stage->given[OPB - SRC] || stage->op == ADD || stage->op == MUL,
                 "an opb word before a word without a second operand");
    model_expect(!stage->given[STO - SRC] || stage->stored, "a sto word before a word that is not stored");
}

/* Checks which words may follow one another. */
static void check_order(const struct stage *stage, const struct stage *head)
{
    const int sweeps = model_multiplies(stage) || stage->op == MAXPOOL;
    const int follows = stage != head && !stage->continues;

    model_expect(!(follows || !sweeps) || !has_window(stage), "a window in a word that works pixel by pixel");
    model_expect(!follows || !sweeps || stage->op == BN, "a word that cannot continue on a fused result");
    model_expect(stage->y == head->y && stage->x == head->x, "a fused word has another tile");
    model_expect(stage->Ho == head->Ho && stage->Wo == head->Wo && stage->Co == head->Co,
                 "a fused word has another ofmap");
    if (stage->keeps || stage->continues) {
        model_expect(model_multiplies(stage) && stage->op != BN && model_is_dense(stage) == model_is_dense(head),
                     "psums are kept for or by a word that does not accumulate");
        model_expect(!stage->keeps || !stage->stored, "psums are kept, and a result is wanted");
    }
}

/* Psums from chain to chain: of one tile (channel-wise: of 16 channels), and of the ofmap that continues on them. */
static void check_kept(const struct stage *stage, const struct stage *head)
{
    const int leaves = stage->keeps && !stage->fused;
    const int32_t now[6] = {stage->Ho, stage->Wo, stage->Co, stage->y, stage->x, model_is_dense(stage)};

    if (leaves || stage->takes) {
        model_expect(stage->y >= stage->Ho && stage->x >= stage->Wo && (model_is_dense(stage) || stage->Zs == 1),
                     "psums are kept or taken from chain to chain by a word of several tiles");
    }
    if (stage->takes) {
        model_expect(stage == head, "psums are taken by a word that does not begin a chain");
        model_expect(kept[0] != 0 && memcmp(kept, now, sizeof now) == 0, "psums are taken that no chain kept");
    }
    memset(kept, 0, sizeof kept);
    if (leaves) {
        memcpy(kept, now, sizeof now);
    }
}

static void check(const struct stage *stage, const struct stage *head)
{
    const int channel_wise = stage->op <= PRELU && stage->op % 4 == 2;

    model_expect(channel_wise || model_multiplies(stage) || stage->op == RESHAPE, "an opcode is not defined");
    check_geometry(stage);
    check_order(stage, head);
    check_operands(stage, head);
    check_kept(stage, head);
    if (stage->op == RESHAPE) {
        model_check_reshape(stage);
    }
}

/* Decodes the next chain into `chain`; returns its number of stages, 0 at the end of the program. */
static int decode_chain(uint32_t *at, uint32_t count, uint32_t *weights)
{
    int stages = 0, keeps = 0;

    memset(&chain[0], 0, sizeof chain[0]);
    while (*at < count) {
        const struct npuc_word *word = &itcm[(*at)++];
        struct stage *stage = &chain[stages];

        if (word->lane[0] == HALT) {
            break;
        }
        if (word->lane[0] >= SRC && word->lane[0] <= STO) {
            decode_operand(word, stage);
        } else if (word->lane[0] == CTL) {
            model_expect(!stage->controlled, "a second extension word of its kind before one layer word");
            stage->controlled = 1;
            stage->keeps = field(word, 8, 1);
            stage->takes = field(word, 10, 1);
            *weights = field(word, 9, 1) ? (uint32_t)field(word, 16, 24) : *weights;
        } else {
            if (word->lane[0] == RESHAPE) {
                decode_reshape(word, &chain[0], stage);
            } else {
                decode_layer(word, stage);
            }
            stage->continues = keeps || stage->takes;
            stage->block = *weights;
            *weights += (uint32_t)block_words(stage);
            keeps = stage->keeps;
            check(stage, &chain[0]);
            stages++;
            if (!stage->fused) {
                return stages;
            }
            memset(&chain[stages], 0, sizeof chain[0]);
        }
    }
    model_expect(stages == 0, "the program ends within a chain");
    return 0;
}

static void run_chain(int stages, int low)
{
    const struct stage *head = &chain[0];
    struct tile tile;

    for (tile.oy = 0; fault == NULL && tile.oy < head->Ho; tile.oy += head->y) {
        for (tile.ox = 0; fault == NULL && tile.ox < head->Wo; tile.ox += head->x) {
            tile.rows = head->Ho - tile.oy < head->y ? head->Ho - tile.oy : head->y;
            tile.columns = head->Wo - tile.ox < head->x ? head->Wo - tile.ox : head->x;
            model_run_tile(chain, stages, low, tile);
        }
    }
}

int npuc_execute(uint32_t count)
{
    uint32_t at = 0, weights = 0;
    int low = 1, stages;

    model_expect(count <= NPUC_ITCM_WORDS, "more words are run than the ITCM has");
    while (fault == NULL && (stages = decode_chain(&at, count, &weights)) > 0) {
        run_chain(stages, low);
        if (!chain[stages - 1].given[DST - SRC] && !chain[stages - 1].keeps) {
            low = !low; /* without an address a result goes to the other end of the Fmap DTCM */
        }
    }
    return fault != NULL;
}

/* The words run when the host waits for them: what it loads meanwhile is there before. */
static uint32_t started;

int npuc_start(uint32_t count)
{
    started = count;
    return fault != NULL;
}

int npuc_wait(void)
{
    return npuc_execute(started);
}
