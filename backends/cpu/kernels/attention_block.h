/* backends/cpu/kernels/attention_block.h - a block of queries and its tiles (attention_vec.h): what is computed
 * together, and where its keys and values lie.
 * Include after attention_product.h. Threads: pure functions. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_BACKENDS_CPU_KERNELS_ATTENTION_BLOCK_H
#define MR_BACKENDS_CPU_KERNELS_ATTENTION_BLOCK_H

#include "backends/cpu/kernels.h"
#include "backends/cpu/kernels/attention_product.h"

enum {
    TILE = 64,
    PARTITION = MR_ATTENTION_PARTITION,
    TILE_BLOCKS = TILE / MR_KV_BLOCK,
    BLOCK_QUERIES = MR_ATTENTION_QUERIES,
    BLOCK_SUMS = MR_ATTENTION_SUMS, /* floats: 48 queries of 128 elements, 24 of 256, 12 of 512 */
    STAGE_WIDTH = 64,               /* head elements staged at once */
    PART_QUERIES = 6,               /* most queries of a product from the stage, or where MAX_QUERIES do not suffice */
};

/* Queries of one sequence and their state; 61 KiB. Each of n_kv KV heads has n queries, in order of position: query
 * g * n + j is query j of KV head kv_first + g. */
typedef struct block {
    const mr_attention_args *args;
    const int32_t *kv_blocks;
    int32_t kv_first, n_kv, n, n_positions; /* n_positions: 1 + the last position that any query of the block sees */
    int32_t head_first, group;              /* query heads of each KV head: group of them, from this one on */
    int32_t k_head_bytes, v_head_bytes;     /* of one KV head in a block of the store */
    bool is_int8;                           /* rule T8 */
    source from;                            /* of float products */
    const float *q[BLOCK_QUERIES];
    float *out[BLOCK_QUERIES];                         /* holds the sums of the merged partitions until the end */
    int32_t first[BLOCK_QUERIES], last[BLOCK_QUERIES]; /* the query sees positions [first, last) */
    float m[BLOCK_QUERIES], sink[BLOCK_QUERIES], scale[BLOCK_QUERIES]; /* scale: of scores */
    float factor[BLOCK_QUERIES + 16]; /* the present sums are multiplied by it when a tile is added */
    float share[BLOCK_QUERIES + 16];  /* rule T8: the sums of the tile are multiplied by it */
    float tile_m[BLOCK_QUERIES];      /* the maximum that the weights of the tile are relative to */
    float *all_m, *all_l;             /* of the merged partitions: in the chain, or own_m and own_l */
    float own_m[BLOCK_QUERIES], own_l[BLOCK_QUERIES * 16];
    _Alignas(64) float l[BLOCK_QUERIES * 16];
    float scores[BLOCK_QUERIES * TILE]; /* of the tile; later its weights */
    int32_t o_width;                    /* v_dim, rounded up to a multiple of 16 */
    float o[BLOCK_SUMS];                /* [query][o_width] */
    union {
        float stage[STAGE_WIDTH * TILE];
        struct {
            uint8_t x[MR_ATTENTION_ELEMENTS * 2];      /* rule T8: [query][k_dim / 32][64 bytes] */
            int32_t start[MR_ATTENTION_ELEMENTS / 32]; /* [query][k_dim / 32]: where integer sums start */
        };
    };
    ahead next;
} block;

/* One tile and KV head of a block. Queries [first, last) see at least one position of the tile. */
typedef struct tile {
    int32_t position, first, last, n_positions; /* n_positions: how many positions of the tile exist */
    const char *k[TILE_BLOCKS], *v[TILE_BLOCKS];
    const char *next_k[TILE_BLOCKS]; /* [n_next] keys of the next tile, to prefetch */
    int32_t n_next;
} tile;

static int32_t blocks_of(int32_t n_positions) {
    return (n_positions + MR_KV_BLOCK - 1) / MR_KV_BLOCK;
}

static int32_t clamp_lanes(int32_t n) {
    return n < 0 ? 0 : mr_min_i32(n, 16);
}

/* Query j sees positions [hidden, visible) of the tile. */
static int32_t tile_hidden(const block *u, const tile *t, int32_t j) {
    return u->first[j] > t->position ? u->first[j] - t->position : 0;
}
static int32_t tile_visible(const block *u, const tile *t, int32_t j) {
    return mr_min_i32(u->last[j] - t->position, TILE);
}
static bool sees_all(const block *u, const tile *t, int32_t j) {
    return u->first[j] <= t->position && u->last[j] >= t->position + TILE;
}

/* How many of the remaining n queries the next product takes, so that all products have nearly the same number. */
static int32_t next_queries(const block *u, int32_t n) {
    int32_t parts =
        n <= (u->from == SOURCE_STAGE ? PART_QUERIES : MAX_QUERIES) ? 1 : (n + PART_QUERIES - 1) / PART_QUERIES;
    return (n + parts - 1) / parts;
}

/* --- Memory ------------------------------------------------------------------------------------------------------ */

/* Finds the blocks of keys that hold positions [position, position + n), n <= 64. */
static void find_keys(const block *u, int32_t kv_head, int32_t position, int32_t n, const char *out[TILE_BLOCKS]) {
    const char *head = (const char *)u->args->k_store + (int64_t)kv_head * u->k_head_bytes;
    for (int32_t i = 0; i < blocks_of(n); i++)
        out[i] = head + u->kv_blocks[position / MR_KV_BLOCK + i] * (int64_t)u->args->k_block_bytes;
}
static void find_values(const block *u, int32_t kv_head, int32_t position, int32_t n, const char *out[TILE_BLOCKS]) {
    const char *head = (const char *)u->args->v_store + (int64_t)kv_head * u->v_head_bytes;
    for (int32_t i = 0; i < blocks_of(n); i++)
        out[i] = head + u->kv_blocks[position / MR_KV_BLOCK + i] * (int64_t)u->args->v_block_bytes;
}

static void tile_init(tile *t, const block *u, int32_t position, int32_t g) {
    bool is_last = g + 1 == u->n_kv; /* the first KV head of the next tile follows */
    int32_t next = is_last ? position + TILE : position, next_head = u->kv_first + (is_last ? 0 : g + 1);
    int32_t n_next = mr_min_i32(u->n_positions - next, TILE);
    t->position = position;
    t->first = g * u->n;
    t->last = t->first + u->n;
    while (u->last[t->first] <= position) /* the last query sees the last position */
        t->first++;
    while (t->last > t->first && u->first[t->last - 1] >= position + TILE)
        t->last--;
    t->n_positions = mr_min_i32(u->n_positions - position, TILE);
    t->n_next = n_next > 0 ? blocks_of(n_next) : 0;
    find_keys(u, u->kv_first + g, position, t->n_positions, t->k);
    find_values(u, u->kv_first + g, position, t->n_positions, t->v);
    find_keys(u, next_head, next, n_next, t->next_k);
}

/* Lets the products that follow prefetch these blocks, bytes of each. */
static void start_ahead(block *u, const char *const *blocks, int32_t n, int32_t bytes) {
    u->next.run_bytes = bytes;
    u->next.n_runs = n;
    u->next.run_idx = u->next.offset = 0;
    for (int32_t i = 0; i < n; i++)
        u->next.run[i] = blocks[i];
}

/* The scales of a Q8_0 block of keys or values, dim elements for each position. */
static const uint16_t *scales_of(const char *kv, int32_t dim) {
    return (const uint16_t *)(const void *)(kv + dim * MR_KV_BLOCK);
}

/* x in lanes [first, last), other in the other lanes. */
MR_ALWAYS_INLINE v16 select_range(v16 x, int32_t first, int32_t last, v16 other) {
    x = v16_select(v16m_first(clamp_lanes(last)), x, other);
    return v16_select(v16m_first(clamp_lanes(first)), other, x);
}

#endif
