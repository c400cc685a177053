/* SPDX-License-Identifier: Apache-2.0 */
/* model: a reward model in this process (scorer.h). It reads the sampled ids, so it must have the policy's tokenizer and, if prompts are
 * conversations, its chat template. With `retokenize` the texts of prompt and answer are rendered and tokenised by the reward model's own instead,
 * without data.system. The score is that of the answer's last token, whether the answer ended or was truncated. */
#include "data/formats/conversation.h"
#include "data/formats/row_form.h"
#include "rl/reward/reward_kinds.h"
#include "lib/model/scalar_head.h"
#include "rl/reward/scorer.h"

#include <string.h>

enum { MODEL, RETOKENIZE, COMPUTE };
static const OptionSpec options[] = {
    [MODEL] = {.name = "model", .kind = OPTION_STRING, .required = true},
    [RETOKENIZE] = {.name = "retokenize", .kind = OPTION_BOOL},
    [COMPUTE] = {.name = "compute", .kind = OPTION_STRING, .choices = "auto|f32|bf16"}, /* not given: the policy's */
    {0},
};

typedef struct Judge {
    Scorer *scorer;
    Ids turn_end;        /* the template's text after an assistant turn */
    bool other_template; /* its template differs from the policy's: it would read conversations in a form that it was not trained on */
} Judge;

static void reward_model_close(Reward *reward) {
    Judge *judge = reward->state;
    if (!judge) return;
    scorer_close(judge->scorer);
    ids_release(&judge->turn_end);
}

static Status differs(const Reward *reward, const char *what) {
    status_fail(ST_INPUT, "reward '%s': %s of the reward model '%s' is not the policy's", reward->name, what, reward->options[MODEL].text);
    return status_hint(ST_INPUT, "retokenize: true gives it the text instead of the sampled ids");
}

/* Compares both on the policy's date: the reward model's run may have begun on another date with the same template. */
static Status same_rendering(const Chat *policy, const Chat *scorer, bool *same) {
    Str x = {0}, y = {0};
    *same = chat_has_template(policy) == chat_has_template(scorer);
    if (!*same || !chat_has_template(policy)) return ST_OK;
    Chat today = *scorer;
    today.now = policy->now;
    Status status = chat_probe(policy, &x);
    if (status == ST_OK) status = chat_probe(&today, &y);
    *same = strcmp(str_text(&x), str_text(&y)) == 0;
    str_release(&x);
    str_release(&y);
    return status;
}

static Status check_tokens(const Reward *reward, Judge *judge, const RewardPolicy *policy) {
    const Scorer *scorer = judge->scorer;
    if (policy->model->config.vocab_size > scorer->model->config.vocab_size) return differs(reward, "the vocabulary");
    if (!policy->tokenizer || !scorer->tokenizer) return !policy->tokenizer == !scorer->tokenizer ? ST_OK : differs(reward, "the tokenizer");
    if (!tokenizers_agree(policy->tokenizer, scorer->tokenizer)) return differs(reward, "the tokenizer");
    bool same;
    TRY(same_rendering(policy->chat, scorer->chat, &same));
    judge->other_template = !same;
    return ST_OK;
}

/* The score is that of a conversation's last token, which may come after the token that ended the answer. */
static Status read_behind(Judge *judge) {
    const Scorer *scorer = judge->scorer;
    const char *end = chat_end_text(scorer->chat), *at = NULL;
    Str text = {0};
    if (!chat_has_template(scorer->chat) || !end || scorer->at_turn) return ST_OK;
    Status status = chat_probe(scorer->chat, &text);
    for (const char *next = str_text(&text); status == ST_OK && (next = strstr(next, end)); next++) at = next + strlen(end);
    if (at && *at) status = tokenizer_encode(scorer->tokenizer, at, strlen(at), TOKENIZE_PLAIN, &judge->turn_end);
    str_release(&text);
    return status;
}

static Status attach(Reward *reward, const RewardPolicy *policy) {
    Judge *judge = reward->state = arena_zero(reward->arena, sizeof *judge);
    if (!judge) return ST_RESOURCE;
    const ScorerOptions how = {.base = policy->model, .compute = reward->options[COMPUTE].text};
    Status status = scorer_open(reward->options[MODEL].text, &how, &judge->scorer);
    if (status != ST_OK) return status_prefix(status, "reward '%s'", reward->name);
    TRY(read_behind(judge));
    if (reward->options[RETOKENIZE].number == 0) return check_tokens(reward, judge, policy);
    return judge->scorer->tokenizer
               ? ST_OK
               : status_fail(ST_INPUT, "reward '%s': 'retokenize' needs a tokenizer, and '%s' has none", reward->name, judge->scorer->dir);
}

static uint64_t fingerprint(const Reward *reward) { return model_fingerprint(((const Judge *)reward->state)->scorer->model); }

static Status bytes(const Reward *reward, const RewardShape *shape, size_t *need) {
    const Judge *judge = reward->state;
    return scorer_bytes(judge->scorer, &(ScorerShape){shape->n_prompt, shape->n_completion + judge->turn_end.n, shape->n, shape->group}, need);
}

/* ---- the reward model's own tokens ---- */

/* The row with its answer, in the form of a training row; a new object. */
static Status whole_row(const RewardRow *row, json_t **whole) {
    json_t *messages, *text = json_stringn(row->completion.data, row->completion.len);
    *whole = row->columns ? json_copy((json_t *)(uintptr_t)row->columns) : json_object();
    Status status = row_question_messages(row->columns, &messages); /* without the row's own answer, if any */
    bool talks = messages != NULL;
    json_object_set_new(*whole, "prompt", talks ? messages : json_stringn(row->prompt.data, row->prompt.len));
    json_object_set_new(*whole, "completion", talks ? json_pack("[{s:s, s:O}]", "role", "assistant", "content", text) : json_incref(text));
    json_decref(text);
    return status == ST_OK && !*whole ? status_fail(ST_RESOURCE, "out of memory") : status;
}

/* Turns a text prompt into a message, if the model was trained that way. */
static Status as_trained(const Scorer *scorer, json_t **whole) {
    RowFound found;
    RowForm form = row_form(&(DataConfig){.as = strcmp(scorer->as, "chat") == 0 ? "chat" : "text", .chat = scorer->chat}, ROWS_AS_SCORED);
    return row_turn(&form, data_format_find("prompt_completion"), whole, &found);
}

/* Removes the template's text after the turn, and the end token of a truncated answer. */
static void trim(const Scorer *scorer, const RewardRow *row, Encoding *encoding) {
    size_t end = encoding->ids.n;
    bool cut = strcmp(row->finish_reason, "length") == 0;
    if (!scorer->at_turn && !cut) {
        encoding->ids.n = scalar_head_end(&scorer->model->config, encoding->ids.data, end);
        return;
    }
    while (end > 1 && encoding->labels.data[end - 1] == LABEL_NONE) end--;
    if (end > 1 && cut) end--;
    encoding->ids.n = end;
}

static Status own_tokens(const Judge *judge, const RewardRow *row, Arena *arena, ScorerRow *to) {
    const Scorer *scorer = judge->scorer;
    DataConfig config = {.chat = scorer->chat, .train_on = "auto", .vocab_size = scorer->model->config.vocab_size};
    Encoding encoding = {0};
    json_t *whole;
    Status status = whole_row(row, &whole);
    if (status == ST_OK) status = as_trained(scorer, &whole);
    if (status == ST_OK) status = data_format_encode(data_format_find("prompt_completion"), whole, &config, scorer->tokenizer, &encoding);
    if (status == ST_OK) trim(scorer, row, &encoding);
    int32_t *ids = status == ST_OK ? arena_alloc(arena, encoding.ids.n * sizeof *ids) : NULL;
    if (ids) {
        memcpy(ids, encoding.ids.data, encoding.ids.n * sizeof *ids);
        *to = (ScorerRow){.answer = ids, .n_answer = encoding.ids.n};
    } else if (status == ST_OK) {
        status = ST_RESOURCE;
    }
    ids_release(&encoding.ids);
    ids_release(&encoding.labels);
    json_decref(whole);
    return status;
}

/* ---- scores ---- */

static bool is_conversation(const RewardRow *row) {
    static const char *const columns[] = {"messages", "conversations", "conversation"};
    bool found = json_is_array(json_object_get(row->columns, "prompt"));
    for (size_t i = 0; i < COUNT_OF(columns); i++) found |= json_is_array(json_object_get(row->columns, columns[i]));
    return found;
}

/* Appends the template's text after a finished answer, up to the token whose score counts. */
static Status finish_turn(const Judge *judge, const RewardRow *row, Arena *arena, ScorerRow *to) {
    size_t more = is_conversation(row) ? judge->turn_end.n : 0, n = to->n_answer + more;
    int32_t *ids = arena_alloc(arena, MAX(n, 1) * sizeof *ids);
    if (!ids) return ST_RESOURCE;
    if (to->n_answer > 0) memcpy(ids, to->answer, to->n_answer * sizeof *ids);
    if (more > 0) memcpy(ids + to->n_answer, judge->turn_end.data, more * sizeof *ids);
    to->answer = ids;
    to->n_answer = n > 0 ? scalar_head_end(&judge->scorer->model->config, ids, n) : 0;
    return ST_OK;
}

static Status reward_model_prepare(const Reward *reward, const RewardRow *row, Arena *arena, ScorerRow *to) {
    const Judge *judge = reward->state;
    if (reward->options[RETOKENIZE].number != 0) return own_tokens(judge, row, arena, to);
    if (judge->other_template && is_conversation(row)) return differs(reward, "the chat template");
    *to = (ScorerRow){row->prompt_ids, row->completion_ids, row->n_prompt_ids, row->n_completion_ids};
    bool cut = strcmp(row->finish_reason, "length") == 0;
    return judge->scorer->at_turn || cut ? ST_OK : finish_turn(judge, row, arena, to);
}

static Status score_all(Reward *reward, const RewardRow *rows, size_t n, double *values) {
    Judge *judge = reward->state;
    if (!judge) return status_fail(ST_CONFIG, "reward '%s' needs a policy whose answers it judges", reward->name);
    Arena *arena = arena_new(0);
    ScorerRow *prepared = arena ? arena_alloc(arena, MAX(n, (size_t)1) * sizeof *prepared) : NULL;
    Status status = prepared ? ST_OK : status_fail(ST_RESOURCE, "out of memory for %zu rows", n);
    for (size_t i = 0; i < n && status == ST_OK; i++)
        status = reward_at_row(reward_model_prepare(reward, &rows[i], arena, &prepared[i]), reward, &rows[i]);
    if (status == ST_OK) {
        status = scorer_score(judge->scorer, prepared, n, values);
        if (status != ST_OK) status = status_prefix(status, "reward '%s'", reward->name);
    }
    arena_free(arena);
    return status;
}

const RewardKind reward_kind_model = {
    "model", options, .attach = attach, .bytes = bytes, .fingerprint = fingerprint, .close = reward_model_close, .score_all = score_all};
