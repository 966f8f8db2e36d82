/* The interface of the machine model's halves: memories, words and chains in npuc_model.c, PEs in npuc_array.c. */
#ifndef NPUC_ARRAY_H
#define NPUC_ARRAY_H

#include "npuc_driver.h"
#include "npuc_program.h"

/* Words of parameters: per 16 output channels, except for the table. */
enum { PES = 16, BIAS_SCALE_WORDS = 5, SLOPE_WORDS = 4, TABLE_WORDS = 7 };

enum operation {
    CONV = 0x00,
    DWCONV = 0x01,
    BN = 0x02,
    CONV_RELU = 0x04,
    DWCONV_RELU = 0x05,
    RELU = 0x06,
    ACT = 0x0A,
    MAXPOOL = 0x0E,
    AVGPOOL = 0x12,
    ADD = 0x16,
    MUL = 0x1A,
    PRELU = 0x1E,
    RESHAPE = 0x80
};

enum { FUSED = 0x20, STORED = 0x40, SRC = 0xC0, DST = 0xC1, OPB = 0xC2, STO = 0xC3, CTL = 0xC4, HALT = 0xFF };

/* How a map is rearranged: per dimension N, H, W, C; a bit of minor and insert each. */
struct reshape {
    int32_t perm, minor, insert, parts[4], onto[4], Ho, Wo, Co;
};

/* A layer word, and the contents of the extension words before it. */
struct stage {
    uint32_t op, fused, stored;
    int32_t Sh, Sw, Ph, Pw, Dh, Dw, y, x, yi, xi, Hk, Wk, Ho, Wo, Co, Ci, Zs, Hi, Wi;
    struct npuc_place operand[4]; /* src, dst, opb, sto */
    int given[4];
    int controlled; /* a control word precedes it */
    int keeps;      /* its psums go to the next word as they are */
    int takes;      /* it continues on the psums that the previous chain kept */
    int continues;  /* it continues on the previous word's psums, or on those */
    uint32_t block; /* its first word in the weight DTCM */
    struct reshape reshape;
};

/* Rows and columns of the ofmap that are computed together. */
struct tile {
    int32_t oy, ox, rows, columns;
};

/* Records the first reason why the machine cannot continue. */
void model_expect(int holds, const char *otherwise);

/* The words from an address on, or NULL if they exceed the memory. */
struct npuc_word *model_words_at(enum npuc_memory memory, int64_t address, uint32_t count);

/* Whether a layer word sums over its input channels; whether it sweeps a window with weights. */
int model_is_dense(const struct stage *stage);
int model_multiplies(const struct stage *stage);

/* Checks that a reshape word is consistent; the destination of an element of its map. */
void model_check_reshape(const struct stage *stage);
void model_rearranged(const struct stage *stage, int32_t *row, int32_t *column, int32_t *channel);

/* Computes one tile; low: the current map is at the low end of the Fmap DTCM. */
void model_run_tile(const struct stage *chain, int stages, int low, struct tile tile);

#endif
