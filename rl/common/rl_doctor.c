/* SPDX-License-Identifier: Apache-2.0 */
/* Rules on the metrics of reinforcement learning, and their evaluation. */
#include "lib/base/tally.h"
#include "rl/common/rl_doctor.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- the rules ---- */

/* `now` is the mean of the last `window` known values, `first` the mean of the first `window` values. */
typedef enum Look {
    ABOVE,  /* now > limit */
    BELOW,  /* now < limit */
    FALLEN, /* now < limit x first, where first is at least `floor` and no value is below 0 */
    GROWN,  /* now > limit x first, and now > `floor` */
    NEVER,  /* `now` was never above limit */
    STUCK,  /* now is not above first by more than `limit` standard errors of their difference */
} Look;

typedef struct Rule {
    const char *name;
    const char *metric; /* ending in '/': every metric with that prefix */
    /* a metric, or one of A|B, that the run must have: other kinds of training and data use the same names for other things
     */
    const char *needs;
    Look look;
    double limit, floor;
    int window, least; /* least: known values before the rule applies */
    const char *words; /* placeholders: {now}, {first}; {share}: now in percent; {pair}: A and B of a metric .../A:B */
    const char *hint;
} Rule;

/* Each limit is well outside the range seen in runs that learn (recipes/rl_*.yaml on environments) and outside the named defaults of other
 * programs. */
static const Rule rules[] = {
    /* Counts: a mean below 0.05 over the window means that there were none. */
    {"untrained", "trained_tokens", "eos_fraction", BELOW, 0.05, 0, 3, 3,
     "no token was trained in the last steps: every completion was truncated, and rl.mask_truncated excludes those",
     "raise generate.max_new_tokens, or use rl.missing_eos_penalty instead of rl.mask_truncated"},
    {"untrained", "pairs", "ties", BELOW, 0.05, 0, 3, 3,
     "no token was trained in the last steps: all completions of a prompt had the same reward, so there was no pair to learn from",
     "prompts of another difficulty, more rl.num_generations, or a reward with more shades"},
    /* A fine-tuned model keeps some tenths of a nat per token; at a twentieth of its initial entropy it repeats itself word by word. */
    {"entropy", "entropy", "eos_fraction", FALLEN, 0.05, 0.05, 10, 20,
     "entropy has collapsed to {now} nats, from {first} at the beginning: the policy says nearly the same every time and finds nothing new",
     "a larger rl.ent_coef, a smaller train.learning_rate, or a larger rl.clip_high where the algorithm clips, keeps it open"},
    /* Policies on environments may end with less entropy: Acrobot is solved at 7 %, Pendulum at 4 % of the first entropy, which falls below 0
     * there. */
    {"entropy", "entropy", "episode_length", FALLEN, 0.02, 0.05, 10, 20,
     "entropy has collapsed to {now} nats, from {first} at the beginning: the policy does nearly the same every time and finds nothing new",
     "a larger rl.ent_coef or a smaller train.learning_rate keeps it open"},
    {"unjudged", "reward_unjudged", "reward_unjudged", ABOVE, 0, 0, 1, 1,
     "{now} completions of a step were not judged: every reward answered null for them, so they count as a reward of 0",
     "have at least one reward answer with a number for every row"},
    /* Groups with equal rewards waste their share of the work; dynamic sampling (arXiv 2503.14476) replaces them. */
    {"zero_variance", "zero_std_fraction", "groups_compared", ABOVE, 0.5, 0, 10, 10,
     "in {share} of the groups all completions earn the same: such groups teach nothing",
     "prompts of another difficulty, more rl.num_generations, or rl.sampling_rounds"},
    /* Nats per token by the estimator of rl.kl. RLHF runs stay below 0.1; at 0.5 a completion of 20 tokens is e^10 times likelier than at first. */
    {"kl", "kl", "reward", ABOVE, 0.5, 0, 10, 10,
     "the policy is {now} nats a token, or an action, away from its reference, or from what it was when it acted: text at that distance is often no language any more",
     "a larger rl.beta, or a smaller train.learning_rate"},
    /* PPO with early stopping stops at 0.01 to 0.03 (rl.target_kl; Spinning Up, stable-baselines3). */
    {"big_steps", "approx_kl", "reward", ABOVE, 0.15, 0, 10, 10,
     "one update moves the policy by {now} nats: the samples say little about the policy after it",
     "fewer rl.num_iterations, a smaller train.learning_rate, or rl.target_kl"},
    {"clipped", "clip_fraction", "reward", ABOVE, 0.4, 0, 10, 10, "{share} of the ratios are clipped: most of the samples no longer have a gradient",
     "fewer rl.num_iterations, or a smaller train.learning_rate"},
    /* A correlation over some dozens of completions has an error of about 0.2; 0.6 explains a third of the variance, over ten steps. */
    {"longer", "length_reward_correlation", "reward", ABOVE, 0.6, 0, 10, 10,
     "longer completions earn more (correlation {now} within groups): length itself may be what is learned",
     "read the samples; a reward of type length, or another one, holds it down"},
    /* In many tasks truncated completions earn nothing, so short ones may really be better: report only a near-perfect correlation. */
    {"shorter", "length_reward_correlation", "reward", BELOW, -0.8, 0, 10, 10,
     "shorter completions earn more (correlation {now} within groups): saying little may be what is learned",
     "read the samples; more generate.max_new_tokens, if they are cut off"},
    {"truncated", "eos_fraction", "reward", BELOW, 0.5, 0, 10, 10,
     "only {share} of the completions end by themselves: the others are cut at generate.max_new_tokens",
     "more generate.max_new_tokens, or rl.missing_eos_penalty"},
    /* Predicting the mean of the returns gives 0. Learned values may fall below 0 again where all episodes are alike (CartPole at 500 steps), so the
     * rule asks whether they were ever above. An update on an environment may be a few dozen steps: A2C's values on CartPole are better than the mean
     * from update 130 on. */
    {"values", "explained_variance", "eos_fraction", NEVER, 0.05, 0, 20, 40,
     "the values have not explained anything of the returns so far (explained variance {now})",
     "a larger rl.vf_coef, or another train.learning_rate"},
    {"values", "explained_variance", "episode_length", NEVER, 0.05, 0, 20, 200,
     "the values have not explained anything of the returns so far (explained variance {now})",
     "a larger rl.vf_coef, another train.learning_rate, or rl.normalize_rewards"},
    {"rewards_disagree", "reward_correlation/", "reward", BELOW, -0.5, 0, 10, 10,
     "the rewards {pair} pull in different directions (correlation {now} within groups)",
     "weigh them so that the one that matters wins, or leave one out"},
    /* Compares the mean of the last twenty steps with that of the first twenty: chance exceeds two standard errors in one run of forty. Where a given
     * policy is evaluated (td), or actions are always uniform (an epsilon of 1), the reward cannot rise. */
    {"reward_stuck", "reward", "entropy|epsilon", STUCK, 2, 0, 20, 100, "the reward has not risen: {now}, at the beginning {first}",
     "look at the samples or episodes: is anything ever rewarded? More exploration, or larger steps (train.learning_rate; rl.alpha of a table)"},
    /* In float32 they differ by 1e-6, in bf16 by some hundredths, and neither grows by itself. */
    {"sampler_diff", "sampler_logprob_diff", "reward", GROWN, 10, 0.02, 10, 20,
     "the sampler's and the trainer's log-probabilities drift apart: {now}, at the beginning {first}",
     "model.compute: f32; rl.max_logprob_diff ends such a run"},
};

/* ---- one rule on one metric ---- */

enum { WINDOW = 20, NAME = 96, WATCHES = 48, SAY_AGAIN = 3 };

typedef struct Watch {
    const Rule *rule;
    char metric[NAME];
    int64_t n; /* known values so far */
    Tally first;
    double recent[WINDOW]; /* value k at k mod the rule's window */
    int64_t say_at;        /* number of values after which it may be reported again */
    int64_t first_step, last_step;
    double best, least; /* best mean of a window, and smallest value, so far */
    double now, then;   /* values at the last finding */
    bool found, holds;
} Watch;

/* Metrics that show a step without a signal. */
static const struct {
    const char *metric, *needs;
    double value;
} silences[] = {
    {"groups_compared", "zero_std_fraction", 0}, /* algorithms that compare within groups */
    {"pairs", "ties", 0},
    {"trained_tokens", "eos_fraction", 0},
    {"zero_std_fraction", "reward_std", 1}, /* all others, as long as no step has earned a different reward */
};
enum { SILENT_STEPS = 10 };

/* Counts of lines with such a metric. */
typedef struct Silence {
    int64_t step, steps, silent, leading, first, last;      /* leading: silent steps at the beginning of the run */
    double reward;                                          /* reward of the first step */
    bool needed_seen[COUNT_OF(silences)], counted, changed; /* counted: this step is silent; changed: a reward was another one */
    bool masked;                                            /* no token was trained in a silent step */
} Silence;

struct RlDoctor {
    Silence silence;
    bool needed_seen[COUNT_OF(rules)]; /* per rule: whether the metric that it needs was seen */
    size_t n;
    Watch watches[WATCHES]; /* in the order of the rules, for metrics seen so far */
};

static bool is_found(const Watch *watch, const Tally *now) {
    const Rule *rule = watch->rule;
    const Tally *first = &watch->first;
    switch (rule->look) {
    case ABOVE: return tally_mean(now) > rule->limit;
    case BELOW: return tally_mean(now) < rule->limit;
    case FALLEN: return watch->least >= 0 && tally_mean(first) >= rule->floor && tally_mean(now) < rule->limit * tally_mean(first);
    case GROWN: return tally_mean(now) > rule->floor && tally_mean(now) > rule->limit * tally_mean(first);
    case NEVER: return watch->best < rule->limit;
    default: return tally_mean(now) - tally_mean(first) <= rule->limit * sqrt((tally_variance(now) + tally_variance(first)) / (double)now->n);
    }
}

/* Adds a value; returns whether to report the finding now. judged: the metric that the rule requires was seen. */
static bool watch_add(Watch *watch, int64_t step, double value, bool judged) {
    const Rule *rule = watch->rule;
    Tally now = {0};
    watch->least = watch->n == 0 ? value : fmin(watch->least, value);
    watch->recent[watch->n++ % rule->window] = value;
    if (watch->n <= rule->window) tally_add(&watch->first, value);
    if (watch->n < rule->window) return false;
    for (int i = 0; i < rule->window; i++) tally_add(&now, watch->recent[i]);
    watch->best = watch->n == rule->window ? tally_mean(&now) : fmax(watch->best, tally_mean(&now));
    watch->holds = judged && watch->n >= rule->least && is_found(watch, &now);
    if (!watch->holds) return false;
    if (!watch->found) watch->first_step = step;
    watch->found = true;
    watch->last_step = step;
    watch->now = tally_mean(&now);
    watch->then = tally_mean(&watch->first);
    if (watch->n < watch->say_at) return false;
    watch->say_at = SAY_AGAIN * watch->n;
    return true;
}

/* ---- words ---- */

static void append_value(Str *text, double value) { str_append(text, format_number(value, 3, (char[32]){0})); }

static void append_pair(Str *text, const char *pair) {
    size_t len = strcspn(pair, ":");
    str_printf(text, "%.*s%s%s", (int)len, pair, pair[len] ? " and " : "", pair[len] ? pair + len + 1 : "");
}

static void write_words(const Watch *watch, char *text, size_t size) {
    Str out = {0};
    const char *at = watch->rule->words, *brace;
    for (; (brace = strchr(at, '{')); at = strchr(brace, '}') + 1) {
        str_append_n(&out, at, (size_t)(brace - at));
        if (text_starts_with(brace, "{now}")) append_value(&out, watch->now);
        if (text_starts_with(brace, "{first}")) append_value(&out, watch->then);
        if (text_starts_with(brace, "{share}")) str_printf(&out, "%.0f %%", 100 * watch->now);
        if (text_starts_with(brace, "{pair}")) append_pair(&out, watch->metric + strlen(watch->rule->metric));
    }
    str_append(&out, at);
    size_t len = utf8_whole_prefix(str_text(&out), MIN(out.len, size - 1));
    memcpy(text, str_text(&out), len);
    text[len] = '\0';
    str_release(&out);
}

static void write_finding(const Watch *watch, RlWarning *finding) {
    *finding = (RlWarning){
        .rule = watch->rule->name, .hint = watch->rule->hint, .first_step = watch->first_step, .last_step = watch->last_step, .holds = watch->holds};
    write_words(watch, finding->text, sizeof finding->text);
}

/* ---- the stream ---- */

RlDoctor *rl_doctor_new(void) { return calloc(1, sizeof(RlDoctor)); }

void rl_doctor_free(RlDoctor *doctor) { free(doctor); }

static bool looks_at(const Rule *rule, const char *metric) {
    size_t len = strlen(rule->metric);
    return rule->metric[len - 1] == '/' ? text_starts_with(metric, rule->metric) : strcmp(metric, rule->metric) == 0;
}

/* Whether this is the metric that the rule requires. An epsilon of 1 does not count: the policy does not act on what it has learned yet. */
static bool is_needed_metric(const Rule *rule, const char *metric, double value) {
    return text_among(rule->needs, '|', metric) && !(strcmp(metric, "epsilon") == 0 && value == 1);
}

/* The watch of a rule on a metric, inserted in order if it is new. NULL: there are too many. */
static Watch *watch_of(RlDoctor *doctor, const Rule *rule, const char *metric) {
    size_t at = 0;
    for (; at < doctor->n && doctor->watches[at].rule <= rule; at++)
        if (doctor->watches[at].rule == rule && strcmp(doctor->watches[at].metric, metric) == 0) return &doctor->watches[at];
    if (doctor->n == WATCHES || strlen(metric) >= NAME) return NULL;
    Watch *watch = &doctor->watches[at];
    memmove(watch + 1, watch, (doctor->n++ - at) * sizeof *watch);
    *watch = (Watch){.rule = rule};
    snprintf(watch->metric, sizeof watch->metric, "%s", metric);
    return watch;
}

/* Notes the metric that shows a step without a signal, if this is it. */
static bool is_silent(const Silence *silence, size_t i, const char *metric, double value) {
    if (strcmp(metric, silences[i].metric) != 0 || !silence->needed_seen[i] || value != silences[i].value) return false;
    return strcmp(metric, "zero_std_fraction") != 0 || !silence->changed;
}

static void listen(Silence *silence, int64_t step, const char *metric, double value) {
    bool tells = false, silent = false;
    if (strcmp(metric, "reward") == 0) {
        if (silence->steps == 0) silence->reward = value;
        silence->changed |= value != silence->reward;
    }
    for (size_t i = 0; i < COUNT_OF(silences); i++) {
        silence->needed_seen[i] |= strcmp(metric, silences[i].needs) == 0;
        tells |= strcmp(metric, silences[i].metric) == 0;
        silent |= is_silent(silence, i, metric, value);
        silence->masked |= is_silent(silence, i, metric, value) && strcmp(metric, "trained_tokens") == 0;
    }
    if (!tells) return;
    if (silence->steps == 0 || step != silence->step) {
        silence->steps++;
        silence->counted = false;
    }
    silence->step = step;
    if (!silent || silence->counted) return;
    silence->counted = true;
    if (silence->silent++ == 0) silence->first = step;
    if (silence->silent == silence->steps) silence->leading = silence->silent;
    silence->last = step;
}

bool rl_doctor_no_signal(const RlDoctor *doctor, RlWarning *finding) {
    const Silence *silence = &doctor->silence;
    char among[48] = "";
    if (silence->silent == 0 || (silence->silent < SILENT_STEPS && 2 * silence->silent < silence->steps)) return false;
    if (silence->leading > 1 && silence->leading < silence->silent)
        snprintf(among, sizeof among, ", the first %lld among them,", (long long)silence->leading);
    else if (silence->leading > 1 && silence->silent < silence->steps)
        snprintf(among, sizeof among, ", the first ones,");
    *finding = (RlWarning){.rule = "silence",
                           .hint = "prompts of another difficulty, more rl.num_generations, rl.sampling_rounds, or a reward with more shades",
                           .first_step = silence->first,
                           .last_step = silence->last,
                           .holds = silence->counted};
    snprintf(finding->text, sizeof finding->text,
             "%lld of %lld step%s%s had no signal: all completions of a prompt earned the same%s, so nothing was learned in them",
             (long long)silence->silent, (long long)silence->steps, plural(silence->steps), among, silence->masked ? ", or all were cut" : "");
    return true;
}

bool rl_doctor_add(RlDoctor *doctor, int64_t step, const char *metric, double value, RlWarning *finding) {
    bool said = false;
    if (isfinite(value)) listen(&doctor->silence, step, metric, value);
    for (size_t i = 0; i < COUNT_OF(rules); i++) {
        doctor->needed_seen[i] |= is_needed_metric(&rules[i], metric, value);
        Watch *watch = isfinite(value) && looks_at(&rules[i], metric) ? watch_of(doctor, &rules[i], metric) : NULL;
        if (!watch || !watch_add(watch, step, value, doctor->needed_seen[i]) || said) continue;
        write_finding(watch, finding);
        said = true;
    }
    return said;
}

bool rl_doctor_warning(const RlDoctor *doctor, size_t i, RlWarning *finding) {
    for (size_t k = 0; k < doctor->n; k++) {
        if (!doctor->watches[k].found || i-- > 0) continue;
        write_finding(&doctor->watches[k], finding);
        return true;
    }
    return false;
}

void rl_doctor_read(RlDoctor *doctor, const json_t *line) {
    const char *key;
    json_t *value;
    RlWarning finding;
    int64_t step = json_integer_value(json_object_get(line, "step"));
    json_object_foreach((json_t *)(uintptr_t)line, key, value) if (json_is_number(value))
        rl_doctor_add(doctor, step, key, json_number_value(value), &finding);
}

/* ---- for the page ---- */

static void *reader_begin(void) { return rl_doctor_new(); }
static void reader_read(void *doctor, const json_t *line) { rl_doctor_read(doctor, line); }
static void reader_end(void *doctor) { rl_doctor_free(doctor); }

static void reader_conclude(const void *doctor, void (*warn)(void *context, const char *text), void *context) {
    RlWarning finding;
    Str text = {0};
    if (rl_doctor_no_signal(doctor, &finding)) {
        str_printf(&text, "%s; what helps: %s", finding.text, finding.hint);
        warn(context, str_text(&text));
    }
    for (size_t i = 0; rl_doctor_warning(doctor, i, &finding); i++) {
        str_clear(&text);
        str_printf(&text, "%s (", finding.text);
        if (finding.holds)
            str_printf(&text, "since step %lld", (long long)finding.first_step);
        else if (finding.first_step < finding.last_step)
            str_printf(&text, "from step %lld to %lld", (long long)finding.first_step, (long long)finding.last_step);
        else
            str_printf(&text, "in step %lld", (long long)finding.first_step);
        str_printf(&text, "); what helps: %s", finding.hint);
        warn(context, str_text(&text));
    }
    str_release(&text);
}

const MetricsReader rl_report_reader = {reader_begin, reader_read, reader_conclude, reader_end};
