/* SPDX-License-Identifier: Apache-2.0 */
/* Reads the recipe's list of rewards, scores rows, and computes the sums. */
#include "rl/core/advantages.h"
#include "rl/reward/reward_kinds.h"

#include <errno.h>
#include <math.h>
#include <string.h>

static const RewardKind *const kinds[] = {
#define REWARD(name) &reward_kind_##name,
#include "rl/reward/rewards.def"
#undef REWARD
};

struct RewardSet {
    Arena *arena, *step; /* step: memory of the current scoring call */
    const char *file;
    RewardOptions context;
    Reward *rewards;
    size_t n;
    double low, high; /* clip of the sums */
    bool whiten;
    size_t n_rows;
    RewardColumn columns[REWARD_COLUMNS_MOST];
    size_t n_columns;
    RewardScores scores;
};

/* ---- errors ---- */

static Status refuse_at(const RewardSet *set, const char *what, const char *name, int line, const char *text) {
    return option_refuse(&(OptionOwner){what, name, set->file}, line, text);
}

static OptionOwner owner_of(const Reward *reward) { return (OptionOwner){"reward", reward->name, reward->set->file}; }

Status reward_refuse(const Reward *reward, const Yaml *node, const char *format, ...) {
    char text[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    OptionOwner owner = owner_of(reward);
    return option_refuse(&owner, node ? node->line : reward->line, text);
}

Status reward_at_row(Status status, const Reward *reward, const RewardRow *row) {
    if (status == ST_OK) return ST_OK;
    if (row->file) return status_prefix(status, "reward '%s', '%s' %s %lld", reward->name, row->file, row->unit, (long long)row->number);
    return status_prefix(status, "reward '%s', row %lld", reward->name, (long long)row->number);
}

/* ---- options ---- */

static bool read_range(const Yaml *node, double *low, double *high) {
    if (node->kind != YAML_LIST || node->n != 2) return false;
    for (size_t i = 0; i < 2; i++)
        if (node->items[i]->kind != YAML_NULL && !yaml_as_double(node->items[i], i ? high : low)) return false;
    return *low <= *high;
}

static const char *const keys_of_all[] = {"name", "weight", "clip"}; /* in addition to `type` */

static Status read_entry(Reward *reward, const Yaml *entry, size_t at) {
    const char *key = entry->keys[at];
    const Yaml *node = entry->items[at];
    const OptionSpec *options = reward->kind->options, *option = option_find(options, key);
    OptionOwner owner = owner_of(reward);
    if (option && node->kind == YAML_NULL && !option->required) return ST_OK;
    if (option) return option_read(&owner, option, node, reward->arena, &reward->options[option - options]);
    if (strcmp(key, "type") == 0) return ST_OK;
    if (strcmp(key, "weight") == 0)
        return yaml_as_double(node, &reward->weight) ? ST_OK : reward_refuse(reward, node, "wrong value for 'weight': expected a number");
    if (strcmp(key, "clip") == 0)
        return read_range(node, &reward->low, &reward->high)
                   ? ST_OK
                   : reward_refuse(reward, node, "wrong value for 'clip': expected [low, high]; null means no bound");
    if (strcmp(key, "name") != 0) return option_unknown(&owner, key, entry->key_lines[at], options, keys_of_all, COUNT_OF(keys_of_all));
    if (node->kind != YAML_SCALAR || !node->text[0]) return reward_refuse(reward, node, "wrong value for 'name': expected a text");
    reward->name = node->text;
    return ST_OK;
}

static Status read_options(Reward *reward, const Yaml *entry) {
    const OptionSpec *options = reward->kind->options;
    options_init(options, reward->options);
    for (size_t i = 0; i < entry->n; i++) TRY(read_entry(reward, entry, i));
    for (size_t i = 0; options[i].name; i++)
        if (options[i].required && !reward->options[i].node) return reward_refuse(reward, NULL, "option '%s' is missing", options[i].name);
    return ST_OK;
}

/* ---- opening ---- */

static Status find_kind(const RewardSet *set, const Yaml *entry, const RewardKind **kind) {
    const Yaml *type = yaml_get(entry, "type");
    bool named = type && type->kind == YAML_SCALAR;
    const char *names[COUNT_OF(kinds)];
    for (size_t i = 0; i < COUNT_OF(kinds); i++) {
        names[i] = kinds[i]->name;
        if (named && strcmp(type->text, names[i]) == 0) *kind = kinds[i];
    }
    if (*kind) return ST_OK;
    if (named)
        refuse_at(set, "unknown reward", type->text, type->line, "there is no such type");
    else
        refuse_at(set, "a reward", NULL, entry->line, "it has no 'type'");
    return status_hint_nearest(ST_CONFIG, named ? type->text : "", names, COUNT_OF(names), "the types are ");
}

/* The default name is the type, then NAME_2 for the second of a type. An explicit name that is used twice is an error. */
static Status settle_name(Reward *reward) {
    const char *base = reward->name;
    for (int i = 2; reward_before(reward, reward->name); i++) {
        if (base != reward->kind->name) return reward_refuse(reward, NULL, "another reward has this name");
        if (!(reward->name = arena_printf(reward->arena, "%s_%d", base, i))) return ST_RESOURCE;
    }
    return ST_OK;
}

static Status open_one(RewardSet *set, const Yaml *entry) {
    if (entry->kind != YAML_MAP) return refuse_at(set, "a reward", NULL, entry->line, "expected a map such as { type: number, weight: 1.0 }");
    const RewardKind *kind = NULL;
    TRY(find_kind(set, entry, &kind));
    Reward *reward = &set->rewards[set->n];
    *reward = (Reward){.kind = kind,
                       .name = kind->name,
                       .file = set->file,
                       .line = entry->line,
                       .weight = 1,
                       .low = -(double)INFINITY,
                       .high = (double)INFINITY,
                       .index = set->n,
                       .set = set,
                       .arena = set->arena,
                       .context = &set->context};
    TRY(read_options(reward, entry));
    TRY(settle_name(reward));
    set->n++; /* counted now, so that rewards_close closes it */
    return kind->open ? kind->open(reward) : ST_OK;
}

static Status read_whole(RewardSet *set, const Yaml *map, const Yaml **list) {
    for (size_t i = 0; i < map->n; i++) {
        const char *key = map->keys[i];
        const Yaml *node = map->items[i];
        bool good = true;
        if (strcmp(key, "rewards") == 0)
            *list = node;
        else if (strcmp(key, "clip") == 0)
            good = read_range(node, &set->low, &set->high);
        else if (strcmp(key, "whiten") == 0)
            good = yaml_as_bool(node, &set->whiten);
        else
            return status_hint(refuse_at(set, "unknown key", key, map->key_lines[i], "not one of a sum of rewards"),
                               "a sum takes rewards, clip, whiten; a single reward needs 'type'");
        if (!good)
            return refuse_at(set, "wrong value for", key, node->line,
                             strcmp(key, "clip") == 0 ? "expected [low, high]; null means no bound" : "expected true or false");
    }
    return ST_OK;
}

static Status read_list(RewardSet *set, const Yaml *node) {
    const Yaml *list = node;
    if (node && node->kind == YAML_MAP && !yaml_get(node, "type")) TRY(read_whole(set, node, &list));
    bool one = list && list->kind == YAML_MAP;
    size_t n = !list || list->kind == YAML_NULL ? 0 : one ? 1 : list->n;
    if (n == 0 || (!one && list->kind != YAML_LIST))
        return status_hint(refuse_at(set, "'reward'", NULL, list ? list->line : 0, "no reward is given"),
                           "name one, such as reward: [{ type: number }]");
    if (n > MAX_REWARDS) {
        char problem[40];
        snprintf(problem, sizeof problem, "more than %d rewards", MAX_REWARDS);
        return refuse_at(set, "'reward'", NULL, list->line, problem);
    }
    set->rewards = arena_zero(set->arena, n * sizeof *set->rewards);
    if (!set->rewards) return ST_RESOURCE;
    for (size_t i = 0; i < n; i++) TRY(open_one(set, one ? list : list->items[i]));
    return ST_OK;
}

Status rewards_open(YamlNode list, const char *file, const RewardOptions *options, RewardSet **out) {
    *out = NULL;
    Arena *arena = arena_new(0);
    RewardSet *set = arena ? arena_zero(arena, sizeof *set) : NULL;
    if (!set || !(set->step = arena_new(0))) {
        arena_free(arena);
        return status_errno(ENOMEM, "cannot prepare the rewards");
    }
    set->arena = arena;
    set->file = file;
    set->context = *options;
    set->low = -(double)INFINITY, set->high = (double)INFINITY;
    Status status = read_list(set, list);
    if (status == ST_OK)
        *out = set;
    else
        rewards_close(set);
    return status;
}

Status rewards_attach(RewardSet *set, const RewardPolicy *policy) {
    for (size_t i = 0; i < set->n; i++)
        if (set->rewards[i].kind->attach) TRY(set->rewards[i].kind->attach(&set->rewards[i], policy));
    return ST_OK;
}

Status rewards_bytes(const RewardSet *set, const RewardShape *shape, size_t *bytes) {
    *bytes = 0;
    for (size_t i = 0; i < set->n; i++) {
        size_t own = 0;
        if (set->rewards[i].kind->bytes) TRY(set->rewards[i].kind->bytes(&set->rewards[i], shape, &own));
        *bytes += own;
    }
    return ST_OK;
}

void rewards_close(RewardSet *set) {
    if (!set) return;
    for (size_t i = 0; i < set->n; i++)
        if (set->rewards[i].kind->close) set->rewards[i].kind->close(&set->rewards[i]);
    arena_free(set->step);
    arena_free(set->arena);
}

size_t rewards_count(const RewardSet *set) { return set->n; }

uint64_t rewards_fingerprint(const RewardSet *set) {
    uint64_t hash = 0;
    for (size_t i = 0; set && i < set->n; i++) {
        const Reward *reward = &set->rewards[i];
        if (reward->kind->fingerprint) hash = 31 * hash + reward->kind->fingerprint(reward);
    }
    return hash;
}

RewardRow reward_without_observations(const RewardRow *row) {
    RewardRow own = *row;
    if (!row->policy_text) return own;
    own.completion = (Slice){row->policy_text, strlen(row->policy_text)};
    own.completion_ids = row->own_ids;
    own.n_completion_ids = row->n_policy_ids;
    return own;
}

const Reward *reward_before(const Reward *reward, const char *name) {
    for (size_t i = 0; i < reward->index; i++)
        if (strcmp(reward->set->rewards[i].name, name) == 0) return &reward->set->rewards[i];
    return NULL;
}

/* ---- scoring ---- */

Status reward_extra(Reward *reward, const char *key, size_t i, double value) {
    RewardSet *set = reward->set;
    size_t prefix = strlen(reward->name), at = set->n;
    for (; at < set->n_columns; at++) {
        const char *name = set->columns[at].name;
        if (strncmp(name, reward->name, prefix) == 0 && name[prefix] == '/' && strcmp(name + prefix + 1, key) == 0) break;
    }
    if (at == set->n_columns) {
        if (at == REWARD_COLUMNS_MOST) return status_fail(ST_INPUT, "more than %d different numbers of rewards", REWARD_COLUMNS_MOST);
        double *values = arena_alloc(set->step, set->n_rows * sizeof *values);
        const char *name = arena_printf(set->step, "%s/%s", reward->name, key);
        if (!values || !name) return ST_RESOURCE;
        for (size_t k = 0; k < set->n_rows; k++) values[k] = (double)NAN;
        set->columns[set->n_columns++] = (RewardColumn){name, values, 0};
    }
    ((double *)(uintptr_t)set->columns[at].values)[i] = value;
    return ST_OK;
}

Status rewards_check(RewardSet *set, const RewardRow *row) {
    RewardRow asked = *row;
    asked.completion = (Slice){"", 0};
    for (size_t k = 0; k < set->n; k++) {
        Reward *reward = &set->rewards[k];
        double value = 0;
        if (reward->kind->score && option_find(reward->kind->options, "field"))
            TRY(reward_at_row(reward->kind->score(reward, &asked, &value), reward, row));
    }
    return ST_OK;
}

static Status score_one(Reward *reward, const RewardRow *rows, size_t n) {
    if (reward->kind->score_all) TRY(reward->kind->score_all(reward, rows, n, reward->values));
    for (size_t i = 0; i < n; i++) {
        double *value = &reward->values[i];
        if (reward->kind->score) TRY(reward_at_row(reward->kind->score(reward, &rows[i], value), reward, &rows[i]));
        if (isnan(*value) && reward->kind->abstains) continue;
        if (!isfinite(*value)) return reward_at_row(status_fail(ST_INPUT, "its value is %g", *value), reward, &rows[i]);
        *value = MIN(MAX(*value, reward->low), reward->high);
    }
    return ST_OK;
}

/* Scales to variance 1 (with n - 1, adding 1e-8, as PPO on text whitens rewards) and keeps the mean. */
static void whiten(double *sums, size_t n) {
    if (n == 0) return;
    double mean = 0;
    for (size_t i = 0; i < n; i++) mean += (sums[i] - sums[0]) / (double)n;
    mean += sums[0];
    advantages_normalise(sums, NULL, (int64_t)n, NORMALISE_VARIANCE, 1e-8);
    for (size_t i = 0; i < n; i++) sums[i] += mean;
}

static void add_values(const RewardColumn *column, size_t n, double *sums, bool *judged) {
    for (size_t i = 0; i < n; i++) {
        if (isnan(column->values[i])) continue;
        sums[i] += column->weight * column->values[i];
        judged[i] = true;
    }
}

/* Computes the columns of n rows on this rank. */
static Status score_rows(RewardSet *set, const RewardRow *rows, size_t n) {
    set->n_rows = n;
    set->n_columns = set->n;
    for (size_t k = 0; k < set->n; k++) {
        Reward *reward = &set->rewards[k];
        reward->values = arena_zero(set->step, MAX(n, (size_t)1) * sizeof *reward->values);
        if (!reward->values) return ST_RESOURCE;
        set->columns[k] = (RewardColumn){reward->name, reward->values, reward->weight};
    }
    for (size_t k = 0; k < set->n; k++) TRY(score_one(&set->rewards[k], rows, n));
    return ST_OK;
}

/* The same of all rows, with a part of them on each rank. */
static Status score_on_ranks(RewardSet *set, const RewardRow *rows, size_t n) {
    Comm *comm = set->context.comm;
    const size_t rank = (size_t)comm_rank(comm), ranks = (size_t)comm_size(comm);
    if (ranks == 1) return score_rows(set, rows, n);
    size_t *first = arena_alloc(set->step, (ranks + 1) * sizeof *first);
    if (!first) return ST_RESOURCE;
    reward_rows_divide(comm, rows, n, first);
    TRY(score_rows(set, rows + first[rank], first[rank + 1] - first[rank]));
    return reward_columns_share(comm, first, set->n, set->columns, &set->n_columns, set->step);
}

Status rewards_score(RewardSet *set, const RewardRow *rows, size_t n, const RewardScores **scores) {
    *scores = NULL;
    arena_reset(set->step);
    double *sums = arena_zero(set->step, n * sizeof *sums);
    bool *judged = arena_zero(set->step, n * sizeof *judged);
    if (!sums || !judged) return ST_RESOURCE;
    TRY(score_on_ranks(set, rows, n));
    for (size_t k = 0; k < set->n; k++) add_values(&set->columns[k], n, sums, judged);
    for (size_t i = 0; i < n; i++) {
        if (!isfinite(sums[i])) return status_fail(ST_INPUT, "row %lld: the sum of its rewards is %g", (long long)rows[i].number, sums[i]);
        sums[i] = MIN(MAX(sums[i], set->low), set->high);
    }
    if (set->whiten) whiten(sums, n);
    set->scores = (RewardScores){n, set->n_columns, sums, set->columns, judged};
    *scores = &set->scores;
    return ST_OK;
}
