/* SPDX-License-Identifier: Apache-2.0 */
/* Sweeps over worlds whose values do not fit into near caches. Gathered state by state, each value then costs the transfer of a line of 64 bytes: on
 * a processor with AVX-512, 2.8 ns per entry, three times the cost of reading the entry. Here entries are sorted once, by their block of rows and
 * then by the block of values that they read. Both blocks stay in the second-level cache while a tile of entries streams through, and the next block
 * of values is prefetched meanwhile. Entries of a tile are in the order of their rows, so each tile passes through the sums once. A row is summed in
 * the order of its tiles, whatever thread computes it and however many rows a block has, so results do not depend on the number of threads. (Blocked
 * sparse products: Nishtala, Vuduc, Demmel and Yelick 2007.) */
#include <omp.h>
#include <string.h>

#include "lib/base/system.h"
#include "rl/mdp/mdp_form.h"

enum {
    COLUMNS = 1 << 15,   /* values of a tile: 256 KiB */
    MOST_ROWS = 1 << 16, /* maximum rows of a tile: sums of 512 KiB */
    LEAST_ROWS = 1 << 12,
    MANY_STATES = 1 << 18,     /* values of 2 MiB: with fewer, gathering is as fast */
    AHEAD = 256,               /* prefetch distance in entries */
    LINE = 8,                  /* doubles per cache line */
    PAGE = 4096,               /* bytes: hardware prefetch does not cross pages */
    OPENED = 256,              /* bytes at the start of a page that are prefetched a page ahead */
    PADDING = AHEAD + PAGE / 4 /* padding in entries after the last */
};

/* The row and column of an entry in its tile, packed into one number, so that one load reads both. */
typedef uint32_t Place;
static inline Place place_of(int64_t row, int64_t column) { return (Place)(row << 16 | column); }

struct FormTiles {
    int64_t n_blocks, n_columns;
    int64_t *first_state; /* (n_blocks + 1) */
    int64_t *begin;       /* (n_blocks * n_columns + 1): entries of a tile */
    Place *place;
    double *probability;
    double *sums; /* (n_lanes, MOST_ROWS) */
    int n_lanes;
};

/* Whether entries lead far away: values of neighbouring states are in a cache anyway. */
static bool is_scattered(const MdpForm *form) {
    enum { EVERY = 61 };
    int64_t far = 0, seen = 0;
    for (int64_t s = 0; s < form->n; s += EVERY)
        for (int64_t k = form->begin[form_first(form, s)]; k < form->begin[form_first(form, s + 1)]; k++, seen++)
            far += form->next[k] - s > COLUMNS || s - form->next[k] > COLUMNS;
    return 4 * far > seen;
}

/* Divides states into blocks with about equal numbers of rows (up to the widest state), and blocks among lanes. False if a single state does not
 * fit. */
static bool mdp_tiles_cut(const MdpForm *form, FormTiles *tiles) {
    int64_t wanted = MIN(MAX(form->n_rows / (8 * (int64_t)tiles->n_lanes), (int64_t)LEAST_ROWS), (int64_t)MOST_ROWS),
            blocks = (form->n_rows + wanted - 1) / wanted, widest = 0;
    blocks = (blocks + tiles->n_lanes - 1) / tiles->n_lanes * tiles->n_lanes;
    for (int64_t s = 0; s < form->n; s++) widest = MAX(widest, form_first(form, s + 1) - form_first(form, s));
    int64_t most_rows = MIN(form->n_rows / blocks + widest, (int64_t)MOST_ROWS);
    tiles->n_blocks = 0;
    tiles->first_state[0] = 0;
    for (int64_t s = 0; s < form->n; s++) {
        int64_t end = form_first(form, s + 1), first = tiles->first_state[tiles->n_blocks];
        if (end - form_first(form, s) > most_rows) return false;
        if (end - form_first(form, first) > most_rows) tiles->first_state[++tiles->n_blocks] = s;
    }
    tiles->first_state[++tiles->n_blocks] = form->n;
    return true;
}

static void sort_block(const MdpForm *form, FormTiles *tiles, int64_t block, int64_t *at) {
    int64_t first = form_first(form, tiles->first_state[block]), end = form_first(form, tiles->first_state[block + 1]), next = form->begin[first];
    memset(at, 0, (size_t)tiles->n_columns * sizeof *at);
    for (int64_t k = form->begin[first]; k < form->begin[end]; k++) at[form->next[k] / COLUMNS]++;
    for (int64_t column = 0; column < tiles->n_columns; column++) {
        int64_t n = at[column];
        tiles->begin[block * tiles->n_columns + column] = at[column] = next;
        next += n;
    }
    for (int64_t row = first; row < end; row++)
        for (int64_t k = form->begin[row]; k < form->begin[row + 1]; k++) {
            int64_t slot = at[form->next[k] / COLUMNS]++;
            tiles->place[slot] = place_of(row - first, form->next[k] % COLUMNS);
            tiles->probability[slot] = form->probability[k];
        }
}

/* With a small cache, gathering state by state with prefetch (mdp_sweep.c) is faster: by 19 to 67 % at 5 x 10^5 to 4 x 10^6 states on a Zen 4 with 1
 * MiB. An unknown size counts as small. */
bool form_gains_by_tiles(const MdpForm *form, int64_t cache_bytes) {
    enum { MOST_VALUES = 4 };                                                      /* values read from memory per entry; gathering reads 8, a line */
    const int64_t touched = (int64_t)(sizeof(double) * (MOST_ROWS + 2 * COLUMNS)); /* sums, values, and values of the next tile */
    double entries = (double)form->begin[form->n_rows], fetched = (double)form->n * (double)form->n_rows / MOST_ROWS;
    return cache_bytes > touched && form->n >= MANY_STATES && fetched <= MOST_VALUES * entries && is_scattered(form) &&
           entries * (sizeof(Place) + sizeof(double)) <= 0.5 * (double)memory_available();
}

Status form_tile(MdpForm *form) {
    FormTiles *tiles = arena_zero(form->arena, sizeof *tiles);
    if (!tiles) return ST_RESOURCE;
    size_t n_entries = (size_t)form->begin[form->n_rows];
    tiles->n_lanes = omp_get_max_threads();
    tiles->n_columns = form->n / COLUMNS + 1; /* n + 1 values */
    tiles->first_state = arena_alloc(form->arena, ((size_t)form->n + 2) * sizeof *tiles->first_state);
    if (!tiles->first_state) return ST_RESOURCE;
    if (!mdp_tiles_cut(form, tiles)) return ST_OK;
    int64_t *at = arena_alloc(form->arena, (size_t)tiles->n_blocks * (size_t)tiles->n_columns * sizeof *at);
    tiles->begin = arena_alloc(form->arena, ((size_t)tiles->n_blocks * (size_t)tiles->n_columns + 1) * sizeof *tiles->begin);
    tiles->place = arena_alloc(form->arena, (n_entries + PADDING) * sizeof *tiles->place);
    tiles->probability = arena_alloc(form->arena, (n_entries + PADDING) * sizeof *tiles->probability);
    tiles->sums = arena_alloc(form->arena, (size_t)tiles->n_lanes * MOST_ROWS * sizeof *tiles->sums);
    if (!at || !tiles->begin || !tiles->place || !tiles->probability || !tiles->sums) return ST_RESOURCE;
#pragma omp parallel for schedule(dynamic)
    for (int64_t block = 0; block < tiles->n_blocks; block++) sort_block(form, tiles, block, at + block * tiles->n_columns);
    tiles->begin[tiles->n_blocks * tiles->n_columns] = (int64_t)n_entries;
    form->tiles = tiles;
    return ST_OK;
}

#if defined(__GNUC__)
#define FETCH(address) __builtin_prefetch(address, 0, 3)
#define FETCH_SECOND(address) __builtin_prefetch(address, 0, 2) /* into the second-level cache */
#define OWN_FUNCTION __attribute__((noinline))                  /* not inlined, so that the loop has all registers */
#else
#define FETCH(address) (void)(address)
#define FETCH_SECOND(address) (void)(address)
#define OWN_FUNCTION
#endif

/* Prefetches a line of a sequential stream. The first lines of a page are prefetched a page earlier, so that its address is already translated and
 * hardware prefetch, which restarts on each page, is already running. */
static inline void fetch_stream(const void *line) {
    FETCH(line);
    if ((uintptr_t)line % PAGE < OPENED) FETCH_SECOND((const char *)line + PAGE);
}

static inline void add_entry(Place place, double p, const double *V, double *sums) { sums[place >> 16] += p * V[place & UINT16_MAX]; }

/* Sums one tile of n entries; `later`: the next tile's values, of which `lines` lines are prefetched meanwhile. */
OWN_FUNCTION static void add_tile(const Place *restrict place, const double *restrict p, int64_t n, const double *restrict V, const double *later,
                                  int64_t lines, double *restrict sums) {
    enum { STRIDE = 8 };
    int64_t k = 0, fetched = 0, each = MIN(lines, 1 + lines * STRIDE / MAX(n, (int64_t)1));
    for (; k + STRIDE <= n; k += STRIDE) {
        fetch_stream(p + k + AHEAD);
        if (k % (2 * STRIDE) == 0) fetch_stream(place + k + AHEAD); /* once per line: each prefetch occupies a slot for outstanding misses */
        for (int64_t i = 0; i < each; i++) FETCH(later + LINE * (fetched + i));
        fetched = MIN(fetched + each, lines - each);
        add_entry(place[k], p[k], V, sums);
        add_entry(place[k + 1], p[k + 1], V, sums);
        add_entry(place[k + 2], p[k + 2], V, sums);
        add_entry(place[k + 3], p[k + 3], V, sums);
        add_entry(place[k + 4], p[k + 4], V, sums);
        add_entry(place[k + 5], p[k + 5], V, sums);
        add_entry(place[k + 6], p[k + 6], V, sums);
        add_entry(place[k + 7], p[k + 7], V, sums);
    }
    for (; k < n; k++) add_entry(place[k], p[k], V, sums);
}

/* q of the rows of state s, from their sums; returns the best. */
static inline double best_of(const double *reward, double gamma, const double *sums, int64_t n, double *Q) {
    double best = reward[0] + gamma * sums[0];
    if (Q) Q[0] = best;
    for (int64_t i = 1; i < n; i++) {
        double q = reward[i] + gamma * sums[i];
        if (Q) Q[i] = q;
        if (q > best) best = q;
    }
    return best;
}

static void sweep_block(const MdpForm *form, Sweep sweep, int64_t block, double *sums, Change *change) {
    const FormTiles *tiles = form->tiles;
    int64_t first = tiles->first_state[block], end = tiles->first_state[block + 1], first_row = form_first(form, first);
    const int64_t *begin = tiles->begin + block * tiles->n_columns;
    memset(sums, 0, (size_t)(form_first(form, end) - first_row) * sizeof *sums);
    for (int64_t column = 0; column < tiles->n_columns; column++) {
        int64_t later = column + 1 < tiles->n_columns ? (column + 1) * COLUMNS : 0; /* the next block of rows starts with the first values */
        add_tile(tiles->place + begin[column], tiles->probability + begin[column], begin[column + 1] - begin[column], sweep.V + column * COLUMNS,
                 sweep.V + later, MIN((int64_t)COLUMNS, form->n + 1 - later) / LINE, sums);
    }
    for (int64_t s = first; s < end; s++) {
        int64_t row = form_first(form, s), n = form_first(form, s + 1) - row;
        double *Q = sweep.Q ? sweep.Q + row : NULL;
        sweep.new_V[s] = 0;
        FETCH(form->reward + row + AHEAD);
        FETCH(sweep.V + s + AHEAD);
        if (!form_is_nonterminal(form, s)) {
            for (int64_t i = 0; Q && i < n; i++) Q[i] = 0;
            continue;
        }
        double best = best_of(form->reward + row, form->gamma, sums + row - first_row, n, Q), difference = best - sweep.V[s];
        sweep.new_V[s] = best;
        change->least = MIN(change->least, difference);
        change->most = MAX(change->most, difference);
    }
}

Change form_sweep_tiles(const MdpForm *form, Sweep sweep, Change none) {
    const FormTiles *tiles = form->tiles;
    double least = none.least, most = none.most;
#pragma omp parallel num_threads(tiles->n_lanes) reduction(min : least) reduction(max : most)
    {
        double *sums = tiles->sums + (int64_t)omp_get_thread_num() * MOST_ROWS;
#pragma omp for schedule(dynamic)
        for (int64_t block = 0; block < tiles->n_blocks; block++) {
            Change change = none;
            sweep_block(form, sweep, block, sums, &change);
            least = MIN(least, change.least);
            most = MAX(most, change.most);
        }
    }
    sweep.new_V[form->n] = 0;
    return (Change){least, most};
}
