/* SPDX-License-Identifier: Apache-2.0 */
/* Warnings about pairs: rows that were left out and why, and unbalanced kinds of answers. */
#include "rl/pairs/pairs.h"

typedef void Say(void *context, const char *text);

static const char *const reasons[PAIR_DROPS] = {
    [PAIR_TOO_LONG] = "longer than data.max_length",
    [PAIR_SAME] = "both answers are the same",
    [PAIR_EMPTY] = "an answer is empty or null",
    [PAIR_PROMPTS_DIFFER] = "the two conversations ask different things",
};

const char *pair_drop_reason(PairDrop why) { return reasons[why]; }

Status pairs_none_left(const Pairs *pairs, const char *key) {
    Str text = {0};
    for (int i = 0; i < PAIR_DROPS; i++) {
        if (pairs->dropped[i] == 0) continue;
        str_printf(&text, "%s%s in %lld row%s (%s)", text.len ? "; " : "", reasons[i], (long long)pairs->dropped[i], plural(pairs->dropped[i]),
                   pairs->where[i]);
    }
    if (text.len == 0) return status_fail(ST_INPUT, "the files of '%s' hold no rows", key);
    status_fail(ST_INPUT, "no rows are left of '%s': %s", key, str_text(&text));
    str_release(&text);
    return status_hint(ST_INPUT, pairs->dropped[PAIR_TOO_LONG] > 0 ? "look at the files, or raise data.max_length" : "look at the files");
}

/* ---- answers alone, wanted or not ---- */

/* Ratios close enough to the authors' range that weights would change little (arXiv 2402.01306, section 4.3: from 1 to 4/3). */
static const double most_unequal = 2;

static void say_balance(const Pairs *pairs, const Recipe *recipe, const char *what, Say *say, void *context) {
    double wanted = 0, weights[2] = {recipe->rl_undesirable_weight, recipe->rl_desirable_weight};
    for (size_t i = 0; i < pairs->n; i++) wanted += pairs->rows[i].desirable;
    double others = (double)pairs->n - wanted, ratio = wanted * weights[1] / (others * weights[0]);
    bool more_wanted = wanted >= others;
    double most = MAX(wanted, others), least = MIN(wanted, others), share = 100 * most / (double)pairs->n;
    Str text = {0};
    str_printf(&text, "%s: %.0f of %zu answers (%.3g %%) are of one kind, label: %s", what, most, pairs->n, share, more_wanted ? "true" : "false");
    if (least == 0)
        str_append(
            &text,
            ": without answers of the other kind there is nothing to compare them with; add some, or train on the desirable ones with tune sft");
    else if (ratio >= 1 / most_unequal && ratio <= most_unequal)
        str_clear(&text);
    else if (ratio > 1)
        str_printf(&text, ", which outweighs the other: rl.undesirable_weight=%.3g makes them equal, or rl.desirable_weight=%.3g", weights[0] * ratio,
                   weights[1] / ratio);
    else
        str_printf(&text, ", which outweighs the other: rl.desirable_weight=%.3g makes them equal, or rl.undesirable_weight=%.3g", weights[1] / ratio,
                   weights[0] * ratio);
    if (text.len > 0) say(context, text.data);
    str_release(&text);
}

void pairs_report(const Pairs *pairs, const Recipe *recipe, const char *what, Say *say, void *context) {
    Str text = {0};
    for (int i = 0; i < PAIR_DROPS; i++) {
        if (pairs->dropped[i] == 0) continue;
        str_printf(&text, "%s: %lld row%s left out: %s (%s)", what, (long long)pairs->dropped[i], plural(pairs->dropped[i]), reasons[i],
                   pairs->where[i]);
        say(context, str_text(&text));
        str_clear(&text);
    }
    if (pairs->cut > 0) {
        str_printf(&text, "%s: %lld row%s longer than data.max_length cut", what, (long long)pairs->cut, plural(pairs->cut));
        say(context, str_text(&text));
        str_clear(&text);
    }
    if (pairs->against > 0) {
        str_printf(&text, "%s: in %lld row%s the scores of the row put the rejected answer first; they are trained as they are", what,
                   (long long)pairs->against, plural(pairs->against));
        say(context, str_text(&text));
    }
    str_release(&text);
    if (pairs->alone) say_balance(pairs, recipe, what, say, context);
}
