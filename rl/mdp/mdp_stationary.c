/* SPDX-License-Identifier: Apache-2.0 */
/* Long-run distribution over states under a policy.
 *
 * The process is a chain with an extra node between episodes: episodes end in it, and it leads to the start states in no time. In the long run the
 * chain is in one of the closed classes that it can reach. Each class has its own stationary distribution, whatever its period, weighted by the
 * probability of entering the class. That probability is a stationary distribution too: of the chain in which every class is one node that leads back
 * to the root.
 *
 * The distribution of a class is computed by elimination without subtraction (Grassmann, Taksar and Heyman 1985) within a band around the diagonal,
 * which is accurate in every digit however slowly the chain mixes. If the band is too wide, it is computed by steps of the chain, if they
 * converge. */
#include "lib/base/system.h"
#include "lib/base/work.h"
#include "rl/mdp/mdp_form.h"

#include <math.h>
#include <string.h>

#define FEW_OPERATIONS 1e9   /* about a second: eliminate without trying steps first */
#define MANY_OPERATIONS 1e11 /* minutes: the limit */

/* Nodes with their transitions and probabilities (rows sum to 1). */
typedef struct Chain {
    int64_t n;
    int64_t *begin; /* (n + 1) */
    int32_t *next;
    double *probability;
} Chain;

static Status chain_alloc(int64_t n, int64_t entries, Arena *arena, Chain *chain) {
    *chain = (Chain){.n = n,
                     .begin = arena_zero(arena, ((size_t)n + 2) * sizeof(int64_t)),
                     .next = arena_alloc(arena, ((size_t)entries + 1) * sizeof(int32_t)),
                     .probability = arena_alloc(arena, ((size_t)entries + 1) * sizeof(double))};
    return chain->begin && chain->next && chain->probability ? ST_OK : ST_RESOURCE;
}

static void chain_add(Chain *chain, int64_t node, int32_t next, double probability) {
    if (!(probability > 0)) return;
    int64_t k = chain->begin[node + 1]++; /* nodes are filled in order, each starting at the end of the previous one */
    chain->next[k] = next;
    chain->probability[k] = probability;
}

/* Node n_states is the node between episodes. */
static Status chain_of_process(const Mdp *process, const double *start, Arena *arena, Chain *chain) {
    int32_t between = process->n_states;
    TRY(chain_alloc((int64_t)between + 1, process->begin[between] + 2 * (int64_t)between, arena, chain));
    for (int32_t s = 0; s < between; s++) {
        double total = 0, again = process->terminal[s] ? 1 : 0;
        chain->begin[s + 1] = chain->begin[s];
        for (int64_t k = process->begin[s]; k < process->begin[s + 1]; k++) total += process->probability[k];
        for (int64_t k = process->begin[s]; k < process->begin[s + 1] && !process->terminal[s]; k++) {
            if ((process->ends && process->ends[k]) || process->terminal[process->next[k]])
                again += process->probability[k] / total;
            else
                chain_add(chain, s, process->next[k], process->probability[k] / total);
        }
        chain_add(chain, s, between, again);
    }
    chain->begin[between + 1] = chain->begin[between];
    for (int32_t s = 0; s < between; s++) chain_add(chain, between, s, start[s]);
    return ST_OK;
}

/* Strongly connected components of the nodes reachable from `root` (Tarjan 1972, without recursion); part[i] < 0: not reached. */
static Status find_parts(const Chain *chain, int64_t root, Arena *arena, int32_t *part, int32_t *count) {
    size_t n = (size_t)chain->n;
    ArenaMark mark = arena_mark(arena);
    int64_t *order = arena_alloc(arena, n * sizeof *order), *low = arena_alloc(arena, n * sizeof *low),
            *cursor = arena_alloc(arena, n * sizeof *cursor), visited = 0;
    int32_t *path = arena_alloc(arena, n * sizeof *path), *waiting = arena_alloc(arena, n * sizeof *waiting), n_path = 0, n_waiting = 0;
    if (!order || !low || !cursor || !path || !waiting) return ST_RESOURCE;
    for (size_t i = 0; i < n; i++) order[i] = part[i] = -1;
    *count = 0;
    for (int32_t entered = (int32_t)root; entered >= 0 || n_path > 0;) {
        if (entered >= 0) {
            path[n_path++] = waiting[n_waiting++] = entered;
            order[entered] = low[entered] = visited++;
            cursor[entered] = chain->begin[entered];
            entered = -1;
        }
        int32_t at = path[n_path - 1];
        for (; cursor[at] < chain->begin[at + 1] && entered < 0; cursor[at]++) {
            int32_t next = chain->next[cursor[at]];
            if (order[next] < 0)
                entered = next;
            else if (part[next] < 0)
                low[at] = MIN(low[at], order[next]);
        }
        if (entered >= 0) continue;
        if (--n_path > 0) low[path[n_path - 1]] = MIN(low[path[n_path - 1]], low[at]);
        if (low[at] != order[at]) continue;
        do part[waiting[--n_waiting]] = *count;
        while (waiting[n_waiting] != at);
        ++*count;
    }
    arena_rewind(arena, mark);
    return ST_OK;
}

/* The transposed chain: the entries by their target. */
static Status transpose(const Chain *chain, Arena *arena, Chain *into) {
    TRY(chain_alloc(chain->n, chain->begin[chain->n], arena, into));
    for (int64_t k = 0; k < chain->begin[chain->n]; k++) into->begin[chain->next[k] + 2]++;
    for (int64_t i = 1; i <= chain->n; i++) into->begin[i + 1] += into->begin[i];
    for (int64_t i = 0; i < chain->n; i++)
        for (int64_t k = chain->begin[i]; k < chain->begin[i + 1]; k++) {
            int64_t place = into->begin[chain->next[k] + 1]++;
            into->next[place] = (int32_t)i;
            into->probability[place] = chain->probability[k];
        }
    return ST_OK;
}

/* ---- by elimination ---- */

/* The node with the most neighbours first, then breadth first from one end to the other, so that neighbours get places near each other. *band:
 * largest distance of two neighbours, not counting the first node. */
typedef struct Places {
    int32_t *at, *of;
    int64_t band;
} Places; /* at[place] = node, of[node] = place */

static void place_neighbours(const Chain *chain, int32_t node, Places *places, int64_t *placed) {
    for (int64_t k = chain->begin[node]; k < chain->begin[node + 1]; k++) {
        if (places->of[chain->next[k]] >= 0) continue;
        places->of[chain->next[k]] = (int32_t)*placed;
        places->at[(*placed)++] = chain->next[k];
    }
}

static void place_from(const Chain *chain, const Chain *into, int32_t node, Places *places, int64_t *placed) {
    int64_t i = *placed;
    places->of[node] = (int32_t)*placed;
    places->at[(*placed)++] = node;
    for (; i < *placed; i++) {
        place_neighbours(chain, places->at[i], places, placed);
        place_neighbours(into, places->at[i], places, placed);
    }
}

static Status find_places(const Chain *chain, const Chain *into, Arena *arena, Places *places) {
    size_t n = (size_t)chain->n;
    *places = (Places){.at = arena_alloc(arena, n * sizeof *places->at), .of = arena_alloc(arena, n * sizeof *places->of)};
    if (!places->at || !places->of) return ST_RESOURCE;
    int32_t hub = 0;
    for (int32_t i = 1; i < chain->n; i++)
        if (chain->begin[i + 1] - chain->begin[i] + into->begin[i + 1] - into->begin[i] >
            chain->begin[hub + 1] - chain->begin[hub] + into->begin[hub + 1] - into->begin[hub])
            hub = i;
    int64_t placed = 1;
    for (size_t i = 0; i < n; i++) places->of[i] = -1;
    places->of[hub] = 0;
    places->at[0] = hub;
    for (int32_t i = 0; i < chain->n; i++) {
        if (places->of[i] >= 0) continue;
        int64_t first = placed;
        place_from(chain, into, i, places, &placed);
        int32_t end = places->at[placed - 1]; /* the last node found is far from the first: a better starting node */
        for (int64_t p = first; p < placed; p++) places->of[places->at[p]] = -1;
        placed = first;
        place_from(chain, into, end, places, &placed);
    }
    for (int64_t i = 0; i < chain->n; i++)
        for (int64_t k = chain->begin[i]; k < chain->begin[i + 1]; k++) {
            int64_t a = places->of[i], b = places->of[chain->next[k]];
            if (a > 0 && b > 0) places->band = MAX(places->band, a > b ? a - b : b - a);
        }
    return ST_OK;
}

static Status by_elimination(const Chain *chain, const Places *places, Arena *arena, double *share) {
    int64_t n = chain->n, band = places->band, width = 2 * band + 1;
    size_t size;
    if (!size_mul((size_t)n * sizeof(double), (size_t)width, &size) || size > memory_available() / 2)
        return status_fail(ST_RESOURCE, "no memory for the elimination of %lld states", (long long)n);
    double *P = arena_zero(arena, size), *first_row = arena_zero(arena, (size_t)n * sizeof(double)),
           *first_column = arena_zero(arena, (size_t)n * sizeof(double)), *x = arena_alloc(arena, (size_t)n * sizeof(double));
    if (!P || !first_row || !first_column || !x) return ST_RESOURCE;
#define AT(i, j) P[(i)*width + (j) - (i) + band]
    for (int64_t i = 0; i < n; i++)
        for (int64_t k = chain->begin[i]; k < chain->begin[i + 1]; k++) {
            int64_t a = places->of[i], b = places->of[chain->next[k]];
            *(a == 0 ? &first_row[b] : b == 0 ? &first_column[a] : &AT(a, b)) += chain->probability[k];
        }
    for (int64_t k = n - 1; k > 0; k--) { /* censors the chain to nodes before k: paths through k are replaced by direct transitions */
        int64_t low = MAX(1, k - band);
        double out = first_column[k];
        for (int64_t j = low; j < k; j++) out += AT(k, j);
        first_row[k] /= out;
        for (int64_t j = low; j < k; j++) first_row[j] += first_row[k] * AT(k, j);
        for (int64_t i = low; i < k; i++) {
            double in = AT(i, k) /= out, *row = &AT(i, low);
            const double *through = &AT(k, low);
            if (in == 0) continue;
            first_column[i] += in * first_column[k];
            for (int64_t j = 0; j < k - low; j++) row[j] += in * through[j];
        }
        if (k % 64 == 0) work_at("looking for the shares of time in states", (uint64_t)(n - k), (uint64_t)n);
        if (k % 64 == 0 && interrupt_requested()) return status_fail(ST_INTERRUPTED, "interrupted");
    }
    work_end("looking for the shares of time in states");
    double sum = x[0] = 1;
    for (int64_t k = 1; k < n; k++) {
        x[k] = first_row[k] * x[0];
        for (int64_t i = MAX(1, k - band); i < k; i++) x[k] += AT(i, k) * x[i];
        sum += x[k];
        if (sum < 1e250) continue;
        for (int64_t i = 0; i <= k; i++) x[i] /= sum;
        sum = 1;
    }
#undef AT
    for (int64_t k = 0; k < n; k++) share[places->at[k]] = x[k] / sum;
    return ST_OK;
}

/* ---- by steps ---- */

/* A lazy step: stays with probability 1/2, so that a periodic chain converges too, to the same distribution. Returns the sum of |changes|, by blocks,
 * so that it does not depend on the number of threads. */
static double mdp_stationary_step(const Chain *into, const double *x, double *y, double *block_sums) {
    enum { BLOCK = 4096 };
    int64_t blocks = (into->n + BLOCK - 1) / BLOCK;
    double sum = 0;
#pragma omp parallel for schedule(dynamic) if (blocks > 4)
    for (int64_t block = 0; block < blocks; block++) {
        block_sums[block] = 0;
        for (int64_t i = block * BLOCK; i < MIN(into->n, (block + 1) * BLOCK); i++) {
            double in = 0;
            for (int64_t k = into->begin[i]; k < into->begin[i + 1]; k++) in += into->probability[k] * x[into->next[k]];
            y[i] = 0.5 * (in + x[i]);
            block_sums[block] += fabs(y[i] - x[i]);
        }
    }
    for (int64_t block = 0; block < blocks; block++) sum += block_sums[block];
    return sum;
}

/* Steps until changes are only rounding. *off: the estimated remaining error, from the rate of convergence, INFINITY if it would take too long.
 * Classes that rarely exchange probability show as small changes that do not shrink. */
static Status by_steps(const Chain *into, Arena *arena, double *share, double *off) {
    enum { ROUND = 32, PATIENCE = 4 };
    double *other = arena_alloc(arena, (size_t)into->n * sizeof *other), *block_sums = arena_alloc(arena, (size_t)into->n * sizeof *block_sums),
           sum = 0, *x = share, *y = other;
    if (!other || !block_sums) return ST_RESOURCE;
    /* The uniform distribution may be the answer already, which would show no rate */
    for (int64_t i = 0; i < into->n; i++) sum += x[i] = 1 + fmod(0.61803398875 * (double)i, 1);
    for (int64_t i = 0; i < into->n; i++) x[i] /= sum;
    double entries = (double)into->begin[into->n], rounding = (entries / (double)into->n + 4) * UNIT_ROUNDOFF,
           limit = 0.1 * MANY_OPERATIONS / entries, before = (double)INFINITY;
    int slow = 0;
    *off = (double)INFINITY;
    for (int64_t i = 1; slow < PATIENCE; i++) {
        double moved = mdp_stationary_step(into, x, y, block_sums), *keep = x;
        x = y;
        y = keep;
        if (i % ROUND != 0) continue;
        work_at("looking for the shares of time in states, steps", (uint64_t)i, 0);
        if (interrupt_requested()) return status_fail(ST_INTERRUPTED, "interrupted");
        double rate = pow(moved / before, 1.0 / ROUND), needed = log(rounding / moved) / log(rate); /* further steps needed */
        if (moved <= rounding) *off = rounding / (1 - rate);
        if (moved <= rounding) break;
        slow = isinf(before) || (rate < 1 && (double)i + needed < limit) ? 0 : slow + 1;
        before = moved;
    }
    if (x != share) memcpy(share, x, (size_t)into->n * sizeof *share);
    work_end("looking for the shares of time in states, steps");
    return ST_OK;
}

/* ---- one class, and several ---- */

/* Stationary distribution of an irreducible chain. */
static Status shares_of_class(const Chain *chain, Arena *arena, double *share) {
    Chain into;
    Places places;
    TRY(transpose(chain, arena, &into));
    TRY(find_places(chain, &into, arena, &places));
    double operations = (double)chain->n * (double)places.band * (double)places.band, off = (double)INFINITY;
    if (operations > FEW_OPERATIONS) TRY(by_steps(&into, arena, share, &off));
    if (off >= 0 && off <= 1e-8) return ST_OK;
    if (operations <= MANY_OPERATIONS) return by_elimination(chain, &places, arena, share);
    status_fail(ST_NUMERIC, "the shares of time in %lld states do not converge", (long long)chain->n);
    return status_hint(ST_NUMERIC, "the process mixes too slowly for iteration, and has too many states with long-range transitions for elimination");
}

/* The chain's nodes by component: those of component i are node[first[i]] .. node[first[i + 1] - 1], in order. */
typedef struct Parts {
    int32_t n, *of;
    int64_t *first;
    int32_t *node;
    bool *closed;
} Parts; /* of[node] < 0: not reached */

static Status parts_find(const Chain *chain, int64_t root, Arena *arena, Parts *parts) {
    parts->of = arena_alloc(arena, (size_t)chain->n * sizeof *parts->of);
    parts->node = arena_alloc(arena, (size_t)chain->n * sizeof *parts->node);
    if (!parts->of || !parts->node) return ST_RESOURCE;
    TRY(find_parts(chain, root, arena, parts->of, &parts->n));
    parts->first = arena_zero(arena, ((size_t)parts->n + 2) * sizeof *parts->first);
    parts->closed = arena_alloc(arena, (size_t)parts->n);
    if (!parts->first || !parts->closed) return ST_RESOURCE;
    memset(parts->closed, true, (size_t)parts->n);
    for (int32_t i = 0; i < chain->n; i++) {
        if (parts->of[i] < 0) continue;
        parts->first[parts->of[i] + 2]++;
        for (int64_t k = chain->begin[i]; k < chain->begin[i + 1]; k++)
            if (parts->of[chain->next[k]] != parts->of[i]) parts->closed[parts->of[i]] = false;
    }
    for (int32_t i = 0; i < parts->n; i++) parts->first[i + 1] += parts->first[i];
    for (int32_t i = 0; i < chain->n; i++)
        if (parts->of[i] >= 0) parts->node[parts->first[parts->of[i] + 1]++] = i;
    return ST_OK;
}

/* Makes a chain of one closed component. number: scratch, one per node of the full chain. */
static Status take_part(const Chain *chain, const Parts *parts, int32_t which, int32_t *number, Arena *arena, Chain *own) {
    const int32_t *node = parts->node + parts->first[which];
    int64_t n = parts->first[which + 1] - parts->first[which], entries = 0;
    for (int64_t i = 0; i < n; i++) {
        number[node[i]] = (int32_t)i;
        entries += chain->begin[node[i] + 1] - chain->begin[node[i]];
    }
    TRY(chain_alloc(n, entries, arena, own));
    for (int64_t i = 0; i < n; i++) {
        own->begin[i + 1] = own->begin[i];
        for (int64_t k = chain->begin[node[i]]; k < chain->begin[node[i] + 1]; k++) chain_add(own, i, number[chain->next[k]], chain->probability[k]);
    }
    return ST_OK;
}

/* The probability of ending in each closed class: weight (parts), 0 for transient components. Each class becomes one node that leads to `root`. */
static Status class_weights(const Chain *chain, int64_t root, const Parts *parts, int32_t *number, Arena *arena, double *weight) {
    int32_t n = 0;
    for (int32_t i = 0; i < parts->n; i++)
        for (int64_t k = parts->first[i]; k < parts->first[i + 1]; k++) {
            number[parts->node[k]] = n;
            n += !parts->closed[i] || k == parts->first[i + 1] - 1;
        }
    Chain joined;
    TRY(chain_alloc(n, chain->begin[chain->n] + n, arena, &joined));
    for (int32_t i = 0; i < parts->n; i++)
        for (int64_t m = parts->first[i]; m < (parts->closed[i] ? parts->first[i] + 1 : parts->first[i + 1]); m++) {
            int32_t node = parts->node[m], made = number[node];
            joined.begin[made + 1] = joined.begin[made];
            if (parts->closed[i])
                chain_add(&joined, made, number[root], 1);
            else
                for (int64_t k = chain->begin[node]; k < chain->begin[node + 1]; k++)
                    chain_add(&joined, made, number[chain->next[k]], chain->probability[k]);
        }
    double *share = arena_alloc(arena, (size_t)n * sizeof *share), sum = 0;
    if (!share) return ST_RESOURCE;
    TRY(shares_of_class(&joined, arena, share));
    for (int32_t i = 0; i < parts->n; i++) sum += weight[i] = parts->closed[i] ? share[number[parts->node[parts->first[i]]]] : 0;
    for (int32_t i = 0; i < parts->n; i++) weight[i] /= sum;
    return ST_OK;
}

/* Long-run distribution of a chain that starts in `root`. */
static Status shares_from(const Chain *chain, int64_t root, Arena *arena, double *share) {
    Parts parts;
    TRY(parts_find(chain, root, arena, &parts));
    int32_t *number = arena_alloc(arena, (size_t)chain->n * sizeof *number), n_closed = 0;
    double *weight = arena_zero(arena, (size_t)parts.n * sizeof *weight);
    if (!number || !weight) return ST_RESOURCE;
    for (int32_t i = 0; i < parts.n; i++) {
        n_closed += parts.closed[i];
        weight[i] = parts.closed[i];
    }
    if (n_closed > 1) TRY(class_weights(chain, root, &parts, number, arena, weight));
    memset(share, 0, (size_t)chain->n * sizeof *share);
    for (int32_t i = 0; i < parts.n; i++) {
        if (!parts.closed[i]) continue;
        ArenaMark mark = arena_mark(arena);
        Chain own;
        TRY(take_part(chain, &parts, i, number, arena, &own));
        double *own_share = arena_alloc(arena, (size_t)own.n * sizeof *own_share);
        if (!own_share) return ST_RESOURCE;
        TRY(shares_of_class(&own, arena, own_share));
        for (int64_t k = 0; k < own.n; k++) share[parts.node[parts.first[i] + k]] = weight[i] * own_share[k];
        arena_rewind(arena, mark);
    }
    return ST_OK;
}

static Status stationary(const NamedMdp *world, const double *policy, Arena *scratch, double *share) {
    const Mdp *mdp = &world->mdp;
    Mdp process;
    Chain chain;
    int64_t n = mdp->n_states;
    TRY(mdp_induced_chain(mdp, policy, world, scratch, &process));
    double *start = arena_zero(scratch, (size_t)n * sizeof *start), *all = arena_alloc(scratch, ((size_t)n + 1) * sizeof *all), sum = 0;
    if (!start || !all) return ST_RESOURCE;
    for (int64_t s = 0; s < n; s++) sum += start[s] = mdp->terminal[s] ? 0 : world->start ? world->start[s] : 1;
    if (!(sum > 0)) return status_fail(ST_INPUT, "every state to start in is terminal");
    for (int64_t s = 0; s < n; s++) start[s] /= sum;
    TRY(chain_of_process(&process, start, scratch, &chain));
    TRY(shares_from(&chain, n, scratch, all));
    for (int64_t s = 0; s < n; s++) share[s] = all[s] / (1 - all[n]); /* no time passes between episodes */
    return ST_OK;
}

Status mdp_stationary(const NamedMdp *world, const double *policy, double *share) {
    Arena *scratch = arena_new(0);
    if (!scratch) return ST_RESOURCE;
    Status status = stationary(world, policy, scratch, share);
    arena_free(scratch);
    return status;
}
