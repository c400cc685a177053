/* SPDX-License-Identifier: Apache-2.0 */
/* States as rows of a table, or as tiles: several grids over the observations, each shifted by a fraction of a tile, so that nearby observations
 * share most tiles (Sutton & Barto 9.5.4). */
#include "rl/learn/table.h"

#include <math.h>

enum { MOST_FEATURES = 1 << 26 };

static Status fail_length(const char *key, size_t n, const Env *env) {
    return status_fail(ST_CONFIG, "'%s' has %zu numbers, but an observation of environment '%s' has %lld", key, n, env->id,
                       (long long)env->observation.size);
}

static double at(const RealList *list, int i, double otherwise) { return list->n == 0 ? otherwise : list->items[list->n == 1 ? 0 : (size_t)i]; }

static Status table_features_tile(const Recipe *recipe, const Env *env, Features *f) {
    const Space *space = &env->observation;
    const struct {
        const char *key;
        const RealList *list;
    } lists[] = {{"rl.tiles", &recipe->rl_tiles}, {"rl.tile_low", &recipe->rl_tile_low}, {"rl.tile_high", &recipe->rl_tile_high}};
    for (size_t i = 0; i < COUNT_OF(lists); i++)
        if (lists[i].list->n > 1 && lists[i].list->n != (size_t)space->size) return fail_length(lists[i].key, lists[i].list->n, env);
    if (space->size > TILE_DIMENSIONS)
        return status_fail(ST_CONFIG, "tiles have at most %d dimensions, but an observation of environment '%s' has %lld", TILE_DIMENSIONS, env->id,
                           (long long)space->size);
    double n = f->active;
    for (int i = 0; i < f->size; i++) {
        double tiles = at(&recipe->rl_tiles, i, 8), low = at(&recipe->rl_tile_low, i, space->low[i]),
               high = at(&recipe->rl_tile_high, i, space->high[i]);
        if (tiles != floor(tiles)) return status_fail(ST_CONFIG, "'rl.tiles' is %g, expected whole numbers", tiles);
        if (!isfinite(low) || !isfinite(high)) {
            status_fail(ST_CONFIG, "number %d of the observations of environment '%s' has no bounds to lay tiles between", i, env->id);
            return status_hint(ST_CONFIG, "rl.tile_low and rl.tile_high give bounds for all %d numbers", f->size);
        }
        if (!(low < high)) return status_fail(ST_CONFIG, "tiles for number %d of the observations would lie between %g and %g", i, low, high);
        f->low[i] = low;
        f->scale[i] = tiles / (high - low);
        f->tiles[i] = (int64_t)tiles + (f->active > 1);
        n *= (double)f->tiles[i];
    }
    if (n * (double)env->action.n > MOST_FEATURES)
        return status_fail(ST_CONFIG, "%lld tilings of environment '%s' make %.3g weights, more than %d", (long long)f->active, env->id,
                           n * (double)env->action.n, MOST_FEATURES);
    f->n = (int64_t)n;
    return ST_OK;
}

Status features_open(const Recipe *recipe, const Env *env, Features *f) {
    bool numbered = env->observation.n > 0;
    int tilings = (int)recipe->rl_tilings;
    if (numbered && tilings > 0)
        return status_fail(ST_CONFIG, "'rl.tilings' are for real numbers, but the states of environment '%s' are numbered", env->id);
    *f = (Features){.n = env->observation.n, .active = MAX(tilings, 1), .size = (int)env->observation.size};
    return numbered ? ST_OK : table_features_tile(recipe, env, f);
}

/* Tiling k is shifted by k (1, 3, 5, ...) / tilings of a tile: shifts along the diagonal alone would cause diagonal artefacts in the learned
 * values. */
static int32_t tile_of(const Features *f, const double *observation, int k) {
    int64_t index = k;
    for (int i = 0; i < f->size; i++) {
        double shift = (double)(k * (2 * i + 1) % f->active) / f->active;
        double place = floor((observation[i] - f->low[i]) * f->scale[i] + shift);
        index = index * f->tiles[i] + (int64_t)fmin(fmax(place, 0), (double)(f->tiles[i] - 1));
    }
    return (int32_t)index;
}

void features_of(const Features *f, const double *observation, int32_t *S) {
    if (f->tiles[0] == 0)
        S[0] = (int32_t)observation[0];
    else
        for (int k = 0; k < f->active; k++) S[k] = tile_of(f, observation, k);
}
